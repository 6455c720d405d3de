"""Accuracies that the best recipes are known to reach, as measured.

`known.toml` is written by `benchmarks/known.py` from benchmarks/results/frontier-*.json.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True)
class Known:
    """Test accuracies in percent that bracket a budget.

    Attributes:
        records: how many records they were measured with.
        delta: their δ.
        below: (ε, mean accuracy) at the largest measured ε not above the asked one, if any.
        above: the same at the smallest not below it.
        runs: how many trainings each mean is of.
    """

    records: int
    delta: float
    below: tuple[float, float] | None
    above: tuple[float, float] | None
    runs: int

    def says(self) -> str:
        """One sentence."""
        if self.below and self.above and self.below == self.above:
            return f"{self.below[1]:.1f} % at ε = {self.below[0]:g}"
        if self.below and self.above:
            return (
                f"between {self.below[1]:.1f} % (ε = {self.below[0]:g}) and "
                f"{self.above[1]:.1f} % (ε = {self.above[0]:g})"
            )
        if self.below:
            return f"at least about {self.below[1]:.1f} %, reached at ε = {self.below[0]:g}"
        assert self.above is not None
        return f"less than {self.above[1]:.1f} %, reached at ε = {self.above[0]:g}"


def known(data: str, epsilon: float) -> Known | None:
    """What the best recipe reached on a data set near this ε; None where nothing was measured.

    >>> known("nowhere", 1.0) is None
    True
    >>> near = known("mnist", 1.5)
    >>> near.below[0], near.above[0], near.below[1] < near.above[1]
    (1.0, 2.0, True)
    """
    entry = _table().get(data)
    if entry is None:
        return None
    at = sorted((float(text), row) for text, row in entry["at"].items())
    under = [(e, row["mean"]) for e, row in at if e <= epsilon]
    over = [(e, row["mean"]) for e, row in at if e >= epsilon]
    return Known(
        records=entry["records"],
        delta=entry["delta"],
        below=under[-1] if under else None,
        above=over[0] if over else None,
        runs=min(row["runs"] for _, row in at),
    )


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("reticent") / "known.toml").read_text(encoding="utf-8"))
