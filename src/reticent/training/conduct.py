"""What a run did with the records, in public numbers: at which rates it drew, what noise it added.

Kept beside the ledger in `run.json`, so that what was charged can be compared with what was done.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from reticent.errors import CheckpointError


@dataclass
class _Line:
    count: int = 0
    low: float = math.inf
    high: float = 0.0

    @property
    def range(self) -> tuple[float, float]:
        return self.low, self.high

    def add(self, value: float) -> None:
        self.count += 1
        self.low, self.high = min(self.low, value), max(self.high, value)


@dataclass
class Conduct:
    """Draws by (stream, rate), noise by (stream, multiplier) with the range of sensitivities.

    A rate of None stands for draws with a probability for each record; a choice among candidates is
    kept by its ε.
    """

    draws: dict[tuple[str, float | None], int] = field(default_factory=dict)
    noise: dict[tuple[str, float], _Line] = field(default_factory=dict)
    choices: dict[tuple[str, float], int] = field(default_factory=dict)
    #: lines of the ledger that were there when the run began
    before: list[dict[str, Any]] = field(default_factory=list)

    def drew(self, stream: str, rate: float | None, times: int = 1) -> None:
        """Records were drawn from this stream, each with this probability."""
        self.draws[stream, rate] = self.draws.get((stream, rate), 0) + times

    def noised(self, stream: str, multiplier: float, sensitivity: float) -> None:
        """Noise of this multiplier was added to something of this sensitivity."""
        self.noise.setdefault((stream, float(multiplier)), _Line()).add(float(sensitivity))

    def chose(self, stream: str, epsilon: float) -> None:
        """A noisy choice was made with this ε."""
        self.choices[stream, epsilon] = self.choices.get((stream, epsilon), 0) + 1

    def to_json(self, *, counted: bool = True) -> dict[str, Any]:
        """As JSON-ready data; without counts where the number of trials is private."""

        def shown(count: int) -> int | None:
            return count if counted else None

        return {
            "draws": [
                {"stream": stream, "rate": rate, "count": shown(count)}
                for (stream, rate), count in self.draws.items()
            ],
            "noise": [
                {
                    "stream": stream,
                    "multiplier": multiplier,
                    "count": shown(line.count),
                    # a run without noise may have no bound
                    "sensitivity": [v if math.isfinite(v) else None for v in line.range],
                }
                for (stream, multiplier), line in self.noise.items()
            ],
            "choices": [
                {"stream": stream, "epsilon": epsilon, "count": shown(count)}
                for (stream, epsilon), count in self.choices.items()
            ],
            "paid_before": self.before,
        }

    @classmethod
    def from_json(cls, data: Any) -> Conduct:
        """Read it back; for checkpoints, which hold all counts."""
        found = cls()
        try:
            for line in data["draws"]:
                found.draws[line["stream"], line["rate"]] = int(line["count"])
            for line in data["noise"]:
                low, high = (math.inf if v is None else v for v in line["sensitivity"])
                found.noise[line["stream"], line["multiplier"]] = _Line(
                    int(line["count"]), low, high
                )
            for line in data["choices"]:
                found.choices[line["stream"], line["epsilon"]] = int(line["count"])
            found.before = list(data["paid_before"])
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"not a run's conduct: {type(error).__name__}") from None
        return found
