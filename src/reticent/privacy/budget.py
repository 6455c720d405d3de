"""What may be spent."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from reticent.errors import OptionError, positive

ADJACENCY = "add-remove"
MOST_EPSILON = 1e6  # e^ε left the floating-point numbers long before
LEAST_EPSILON = 1e-9


def delta_note(delta: float, n: int) -> str | None:
    """What is wrong with a δ of 1/n or more for `n` records; None for a smaller one.

    Publishing each record with probability δ, and nothing else, is (0, δ)-private: with δ = 1/n
    that is one whole record on average (Dwork and Roth 2014, section 2.3).

    Example:
        >>> delta_note(1e-5, 1000) is None
        True
    """
    if delta * n < 1:
        return None
    return (
        f"δ = {delta:g} is not below 1/n = {1 / n:.2g}: publishing {round(delta * n):,} whole "
        "record(s) at random would keep such a promise too; take δ well below 1/n"
    )


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
        if positive("epsilon", self.epsilon) < LEAST_EPSILON:
            raise OptionError(
                "epsilon", self.epsilon, f"must be at least {LEAST_EPSILON:g}; nothing is learned"
            )
        if self.epsilon > MOST_EPSILON:
            raise OptionError(
                "epsilon",
                self.epsilon,
                f"must be at most {MOST_EPSILON:g}, and below 10 to promise anything; train without"
                " a guarantee if that is meant",
            )
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
