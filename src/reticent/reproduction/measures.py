"""What a table measures, by name.

`accuracy` is test accuracy in percent and `rejected` the share of rejected candidates in percent.
`ATTACK.METRIC` is what a membership attack finds, between 0 and 1; `best.METRIC` is the largest of
it over the table's attacks.

>>> parse("likelihood-ratio.tpr@0.0001")
Measure(name='likelihood-ratio.tpr@0.0001', attack='likelihood-ratio', metric='tpr', level=0.0001)
"""

from __future__ import annotations

from dataclasses import dataclass

from reticent.errors import OptionError

ACCURACY, REJECTED, BEST = "accuracy", "rejected", "best"
METRICS = ("accuracy", "held_accuracy", "auc", "advantage", "tpr@0.001", "tpr@0.0001")
IN_PERCENT = (ACCURACY, REJECTED)


@dataclass(frozen=True)
class Measure:
    """One thing to measure; `attack` is None for what needs none, `level` is of `tpr` only."""

    name: str
    attack: str | None = None
    metric: str = ""
    level: float | None = None


def parse(name: str) -> Measure:
    """A measure from its name; others are refused with those that would work."""
    from reticent.audit.attacks import NAMES  # here: most tables need no attack

    if name in IN_PERCENT:
        return Measure(name, metric=name)
    attack, dot, metric = name.partition(".")
    if not dot or attack not in (*NAMES, BEST) or metric not in METRICS:
        raise OptionError(
            "measure",
            name,
            f"must be {', '.join(IN_PERCENT)} or ATTACK.METRIC with an attack of "
            f"{', '.join((*NAMES, BEST))} and a metric of {', '.join(METRICS)}",
        )
    kind, _, level = metric.partition("@")
    return Measure(name, attack, kind, float(level) if level else None)
