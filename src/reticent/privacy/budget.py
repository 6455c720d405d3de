"""What may be spent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from reticent.errors import OptionError, positive

ADJACENCY = "add-remove"


@dataclass(frozen=True)
class Budget:
    """An (ε, δ) promise about adding or removing any one record.

    Example:
        >>> Budget(epsilon=3, delta=1e-5).adjacency
        'add-remove'
    """

    epsilon: float
    delta: float
    adjacency: str = ADJACENCY

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        positive("delta", self.delta)
        if self.delta >= 1:
            raise OptionError("delta", self.delta, "must be below 1; 1e-5 is usual")
        if self.adjacency != ADJACENCY:
            raise OptionError(
                "adjacency",
                self.adjacency,
                f"only {ADJACENCY!r} (adding or removing one record) is accounted for; replacing "
                "a record is one removal and one addition",
            )

    def to_json(self) -> dict[str, Any]:
        """The budget as JSON-ready data."""
        return asdict(self)
