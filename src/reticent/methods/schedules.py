"""Numbers that fall along a public schedule: a shape that depends on how many releases were made.

Symbols: t the stage (by default the epoch), k = `rate`, f(t) the factor that a number has then.

| shape         | f(t)                                   |
|---------------|----------------------------------------|
| `constant`    | 1                                      |
| `exponential` | exp(−k·t)                              |
| `step`        | k^⌊t / period⌋                         |
| `polynomial`  | (1 − end)·(1 − t / period)^k + end     |
| `linear`      | the same with k = 1                    |
| `time`        | 1 / (1 + k·t)                          |

No factor falls below `end`. The step counter, the nominal number of records and the batch are
public, so what follows a schedule costs nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reticent.errors import OptionError, between, not_negative, one_of, whole
from reticent.gradients import Flat

SHAPES = ("constant", "exponential", "step", "polynomial", "linear", "time")
# k where none is given; the other shapes have none
RATES = {"exponential": 0.01, "step": 0.7, "polynomial": 2.0, "time": 0.05}


@dataclass(frozen=True)
class Schedule:
    """A factor for every stage, 1 at first.

    Args:
        schedule: The shape, one of `SHAPES`.
        rate: k; by default 0.01 (exponential), 0.7 (step), 2 (polynomial), 0.05 (time).
        period: After so many stages a `step` is taken, a `polynomial` or `linear` has ended.
        end: The smallest factor.
        stage: How many releases a stage has; by default an epoch's, round(n / batch).

    Example:
        >>> [Schedule("step", rate=0.5, period=2).factor(t) for t in range(5)]
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """

    schedule: str = "exponential"
    rate: float | None = None
    period: int = 10
    end: float = 0.1
    stage: int | None = None

    def __post_init__(self) -> None:
        one_of("schedule", self.schedule, SHAPES)
        if self.rate is not None and self.schedule not in RATES:
            raise OptionError("rate", self.rate, f"means nothing for schedule {self.schedule!r}")
        if self.rate is not None and self.schedule == "step":
            between("rate", self.rate, 0, 1, open_low=True)
        elif self.rate is not None:
            not_negative("rate", self.rate)
        whole("period", self.period)
        between("end", self.end, 0, 1, open_low=True)
        if self.stage is not None:
            whole("stage", self.stage)

    def length(self, n: int, batch: int) -> int:
        """How many releases a stage has."""
        return max(round(n / batch), 1) if self.stage is None else self.stage

    def factor(self, t: int) -> float:
        """f(t)."""
        k = RATES.get(self.schedule, 1.0) if self.rate is None else self.rate
        if self.schedule == "constant" or k == 0:
            return 1.0
        if self.schedule == "exponential":
            fallen = math.exp(-k * t)
        elif self.schedule == "step":
            fallen = k ** (t // self.period)
        elif self.schedule == "time":
            fallen = 1 / (1 + k * t)
        else:
            left = max(1 - t / self.period, 0.0)
            fallen = self.end + (1 - self.end) * left**k
        return max(min(fallen, 1.0), self.end)


@dataclass(frozen=True)
class Scheduled(Schedule):
    """Flat clipping whose bound starts at `initial` and follows a public schedule.

    The charge is that of a constant bound: noise is the multiplier times the bound of the day.

    Example:
        >>> clip = Scheduled("linear", period=4, end=0.5, stage=1, initial=2.0)
        >>> [clip.at(step, n=600, batch=60).bound for step in range(6)]
        [2.0, 1.75, 1.5, 1.25, 1.0, 1.0]
    """

    schedule: str = "linear"
    initial: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(Flat(self.initial).bound):
            raise OptionError("initial", self.initial, "must be a finite number")
        Flat(self.initial * self.end)  # bounds are checked there

    def at(self, step: int, n: int, batch: int) -> Flat:
        """The clipping of the release after `step` others."""
        return Flat(self.initial * self.factor(step // self.length(n, batch)))
