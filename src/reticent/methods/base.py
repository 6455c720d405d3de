"""What a method is: public hyperparameters, the charge of one release, and the release itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from reticent.privacy import Bill, Budget, Charge, Ledger

if TYPE_CHECKING:
    from reticent.training.run import Run

# (charge, what it pays for): the price of one release
Price = tuple[tuple[Charge, str], ...]
# consecutive releases of one price
Stage = tuple[Price, int]


def bill_of(stages: Iterable[Stage]) -> Bill:
    """All charges of a plan, with their numbers."""
    counts: dict[Charge, int] = {}
    for price, count in stages:
        for charge, _ in price:
            counts[charge] = counts.get(charge, 0) + count
    return tuple(counts.items())


@dataclass(frozen=True)
class Method(ABC):
    """Base of all methods; subclasses are frozen dataclasses of public numbers.

    `release` may keep nothing between calls except in `run.state`, which is public.
    """

    name: ClassVar[str] = ""
    title: ClassVar[str] = ""
    paper: ClassVar[str] = ""
    #: differential-privacy, plausible-deniability, empirical or none; only the first has an ε
    guarantee: ClassVar[str] = "differential-privacy"
    #: whether it puts back the state after a candidate, so that nothing may live outside of it
    restores: ClassVar[bool] = False
    #: whether the running time says something about the records that ε does not cover
    timing_is_private: ClassVar[bool] = False

    #: whether charges depend on earlier releases: then `release` pays for itself, by `run.pay`
    adaptive: ClassVar[bool] = False

    @abstractmethod
    def price(self, n: int) -> Price:
        """What one release costs on a data set of nominal size `n`, the first one if they differ.

        Of an adaptive method: the most that one is expected to cost.
        """

    def stages(self, n: int, steps: int) -> tuple[Stage, ...]:
        """The prices of a plan, in order: what a release costs, and how many cost that."""
        return ((self.price(n), steps),)

    @property
    def drawn(self) -> int | None:
        """How many records a release computes on, as expected; None if that is not known."""
        return getattr(self, "batch", None)

    def affordable(self, run: Run) -> bool:
        """Whether an adaptive method can pay for one more release."""
        return True

    @abstractmethod
    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> Method:
        """This method with its noise set so that the budget affords `steps` releases."""

    @abstractmethod
    def release(self, run: Run) -> None:
        """Make one release; it has been paid for."""

    def released(self, public: dict[str, Any]) -> dict[str, Any]:
        """What it released besides the model, of its public numbers, for `run.json`."""
        return {}

    @abstractmethod
    def options(self) -> dict[str, Any]:
        """The hyperparameters as JSON-ready data."""
