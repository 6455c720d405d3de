"""Methods as their authors' code ran them, leaks included: for reproduction, never for privacy.

Nothing here is known to the catalog or to `reticent train`, and nothing here has an ε.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from reticent.methods.base import Price
from reticent.methods.dpsgd import DPSGD
from reticent.methods.dpsur import DPSUR
from reticent.privacy import NonPrivate

if TYPE_CHECKING:
    from reticent.training.run import Run

START_LOSS = 1e5  # what the first validation loss is compared with


@dataclass(frozen=True)
class PublishedDPSUR(DPSUR):
    """DPSUR with the two leaks of its public code, each a switch.

    Formal guarantee: none. With `leaky_momentum`, a rejection puts the parameters back and leaves
    the optimizer as it is: every rejected gradient is released through the momentum. With
    `stale_validation`, a candidate's loss is compared with the loss that the last accepted model
    had on another batch: a raw number computed from the records, carried from release to release.
    """

    leaky_momentum: bool = True
    stale_validation: bool = True

    name: ClassVar[str] = "dpsur-published"
    title: ClassVar[str] = "Selective update and release, as the public code runs it"
    guarantee: ClassVar[str] = "none"

    def price(self, n: int) -> Price:
        """What it costs is unbounded."""
        super().price(n)
        leaks = [
            text
            for on, text in (
                (self.leaky_momentum, "rejected gradients stay in the momentum"),
                (self.stale_validation, "validation losses are kept across releases"),
            )
            if on
        ]
        return ((NonPrivate("; ".join(leaks) or "for reproduction only"), "training"),)

    def _passes(self, run: Run) -> bool:
        judges = [run.sample(self._valid_rate(run.n), "validation")]
        if self.stale_validation:
            last = run.state.public.get("valid_loss", torch.tensor(START_LOSS)).to(run.device)
        else:
            last = run.mean_losses(judges, "model before")[0]
        DPSGD.release(self, run)
        loss = run.mean_losses(judges, "model after")[0]
        passed = bool(self._noisy_change(run, loss - last) < self.beta * self.bound)
        if passed and self.stale_validation:
            run.state.public["valid_loss"] = loss
        return passed

    def release(self, run: Run) -> None:
        """As the base class says, but for what a rejection leaves behind."""
        for trial in run.trials(self.most_trials):
            before = run.state.snapshot()
            if self._passes(run):
                run.diagnose(trials=trial + 1)
                return
            kept = run.state.snapshot().optimizer_state
            run.state.restore(before)
            if self.leaky_momentum:
                run.state.optimizer.state.clear()
                run.state.optimizer.state.update(kept)
        raise self._exhausted(run)

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return {
            **super().options(),
            "leaky_momentum": self.leaky_momentum,
            "stale_validation": self.stale_validation,
        }
