"""One of several trainings that go on side by side: its own ledger, coins, budget and result."""

from __future__ import annotations

import time

from torch import Tensor

from reticent.methods import DPSGD, SGD
from reticent.methods.base import bill_of
from reticent.privacy import Sensitive
from reticent.training.evaluation import Metrics
from reticent.training.loop import Training
from reticent.training.optimizers import OptimizerFactory
from reticent.training.packs import Pack
from reticent.training.result import Result
from reticent.training.state import SchedulerFactory


class Beside(Training):
    """A training whose gradients are computed together with those of others.

    All else it does as a training by itself does: it asks its ledger whether to go on, pays before
    a release, adds noise from its own coins, and is evaluated when due.

    Attributes:
        number: Which of the models it trains.
        optimizer: The function its optimizer was made by.
        scheduler: The same of its schedule.
    """

    number: int
    optimizer: OptimizerFactory
    scheduler: SchedulerFactory | None

    def open(self) -> None:
        """Begin: the time counts from here, and the whole plan is asked for once."""
        self._started = time.monotonic()
        self.run.ledger.affords_all(bill_of(self._left()))

    @property
    def goes_on(self) -> bool:
        """Whether there is a release to make that the budget affords."""
        return self.run.state.step < self.steps and self._affords_next()

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of a release."""
        return self._failed

    def begin(self) -> None:
        """Pay for a release, before anything is released."""
        self.run.ledger.pay(self._left()[0][0])
        self.run.begin_release()
        self._failed = True

    def noised(self, total: Tensor) -> Tensor:
        """The clipped sum of a release with its noise."""
        assert isinstance(self.method, DPSGD)
        bound = self.method.bound_now(self.run).sensitivity
        return self.run.noisy(Sensitive(total, bound), self.method.noise_now(self.run))

    def part_of_epoch(self) -> Tensor:
        """The records of a plain step, as `SGD` takes them."""
        assert isinstance(self.method, SGD)
        run = self.run
        batches = max(round(run.records.n / self.method.batch), 1)
        epoch, number = divmod(run.state.step, batches)
        return run.shuffled(epoch, "sampling").tensor_split(batches)[number]

    def end(self) -> None:
        """The release was made, and the row has moved."""
        self.run.state.hold()
        self._failed = False

    @property
    def due(self) -> bool:
        """Whether the model is to be evaluated now."""
        step = self.run.state.step
        return self._evaluation is not None and not (step % self._every and step != self.steps)

    def measure(self) -> Metrics | None:
        """Evaluate the model itself, where its row was taken from."""
        return self._evaluate_if_due()

    def measured(self, metrics: Metrics) -> None:
        """What was found when it was evaluated with others."""
        self.metrics.append({"step": self.run.state.step, **metrics})

    def take(self, pack: Pack, row: int) -> None:
        """Bring the model to where its row is."""
        state = self.run.state
        state.parameters.values.copy_(pack.state.parameters.values[row])
        if state.average is not None and pack.state.average is not None:
            state.average.values.copy_(pack.state.average.values[row])
            state.average.count = pack.state.average.count

    def finished(self) -> Result:
        """The result; pieces were not chosen for this model alone, so it names none."""
        result = self.result()
        result.microbatch = result.piece_memory_bytes = None
        return result
