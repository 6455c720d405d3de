"""Ordinary training by mini-batches, to compare private training with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from reticent.errors import OptionError, whole
from reticent.methods.base import Method, Price
from reticent.privacy import Budget, Ledger, NonPrivate

if TYPE_CHECKING:
    from reticent.training.run import Run


def no_budget(method: Method, budget: Budget) -> OptionError:
    """The refusal of a method that no amount of noise would bound."""
    return OptionError(
        "budget",
        f"epsilon {budget.epsilon:g}",
        f"{method.name} promises no differential privacy that it could bound; leave it out",
    )


@dataclass(frozen=True)
class SGD(Method):
    """Mini-batch gradients as they are: nothing is clipped, no noise is added.

    Formal guarantee: none. The records are shuffled once an epoch and split into about n/batch
    batches whose sizes differ by at most one, so each record is used exactly once in an epoch. The
    order comes from coins addressed by the epoch: a resumed run goes on in the middle of one.

    Args:
        batch: About how many records a step takes.

    Example:
        >>> SGD(batch=256).price(n=60000)[0][0]
        NonPrivate(reason='neither clipped nor noised')
    """

    batch: int

    name: ClassVar[str] = "sgd"
    title: ClassVar[str] = "Stochastic gradient descent, not private"
    paper: ClassVar[str] = "Robbins and Monro, A stochastic approximation method, 1951"
    guarantee: ClassVar[str] = "none"

    def __post_init__(self) -> None:
        whole("batch", self.batch)

    def price(self, n: int) -> Price:
        """As the base class says."""
        if self.batch > n:
            raise OptionError("batch", self.batch, f"exceeds the number of records {n}")
        return ((NonPrivate("neither clipped nor noised"), "training"),)

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> SGD:
        """Refused: there is nothing to calibrate."""
        raise no_budget(self, budget)

    def release(self, run: Run) -> None:
        """As the base class says."""
        batches = max(round(run.records.n / self.batch), 1)
        epoch, number = divmod(run.state.step, batches)
        drawn = run.shuffled(epoch, "sampling").tensor_split(batches)[number]
        run.step(run.batch_gradient(drawn))

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return {"batch": self.batch}
