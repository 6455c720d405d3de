"""Published settings for those who start from them: recipes and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reticent.reproduction.tables import SOUND, Entry, load

DPSUR_TABLE = "dpsur/table2"


def dpsur_entries(data: str) -> dict[float, Entry]:
    """DPSUR's entries of Table 2 on a data set, by claimed ε; none where the paper has none.

    >>> dpsur_entries("mnist")[2.0].settings.valid_noise
    1.0
    """
    table = load(DPSUR_TABLE)
    if data not in table.data:
        return {}
    found = table.entries(data=[data], rows=["DPSUR"], variants=[SOUND])
    return {float(entry.column): entry for entry in found}


def dpsur_settings(data: str, epsilon: float, names: Sequence[str]) -> dict[str, Any]:
    """Some settings for the largest published ε that is not above this one.

    >>> dpsur_settings("mnist", 9, ["noise", "valid_noise"])
    {'noise': 1.35, 'valid_noise': 0.8}
    """
    entries = dpsur_entries(data)
    if not entries:
        return {}
    chosen = max((one for one in entries if one <= epsilon), default=min(entries))
    return {name: getattr(entries[chosen].settings, name) for name in names}
