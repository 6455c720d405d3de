"""The loop that every method shares: while the ledger affords it, charge, release, evaluate."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reticent.coins import Coins
from reticent.errors import CheckpointError, ModelError, OptionError
from reticent.methods.base import Method, Stage, bill_of
from reticent.privacy import Budget, Ledger
from reticent.training.checkpoint import write_checkpoint
from reticent.training.conduct import Conduct
from reticent.training.diverged import divergence
from reticent.training.evaluation import Evaluation, Metrics, averaged_weights
from reticent.training.explaining import ran_out
from reticent.training.ledgers import check_begun
from reticent.training.memory import explain_shortage, peak_memory
from reticent.training.result import Result
from reticent.training.run import Run

_HIDDEN = ("records", "frozen parts", "model")  # hashes say nothing to a reader, or too much


_MOVING = ("last_epoch", "_step_count")  # of a scheduler, as it goes


def _described(thing: Any) -> str:
    """A loss function or scheduler by name and plain settings."""
    plain = {
        k: v
        for k, v in getattr(thing, "__dict__", {}).items()
        if isinstance(v, (str, int, float, bool)) and k not in _MOVING
    }
    return f"{getattr(thing, '__qualname__', type(thing).__name__)} {sorted(plain.items())}"


@dataclass(frozen=True)
class Release:
    """One release that was made: which, and what was measured after it, if it was due."""

    step: int
    steps: int
    metrics: Metrics | None


class Training:
    """A prepared training; iterate over it for one release at a time, or call `finish`.

    Example:
        >>> import torch, reticent as rt
        >>> data = (torch.randn(64, 4), torch.randint(0, 2, (64,)))
        >>> training = rt.run(torch.nn.Linear(4, 2), data, method=rt.DPSGD(batch=16),
        ...                   budget=rt.Budget(epsilon=1, delta=1e-3), steps=2,
        ...                   optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
        >>> [release.step for release in training]
        [1, 2]
        >>> training.result().epsilon <= 1
        True
    """

    def __init__(
        self,
        run: Run,
        method: Method,
        steps: int,
        *,
        budget: Budget | None,
        evaluation: Evaluation | None,
        every: int,
        folder: Path | None,
        checkpoint_every: float,
        config: dict[str, Any],
        piece_memory_bytes: int | None = None,
    ) -> None:
        self.run = run
        run.releases = steps
        run.conduct.before = run.ledger.to_json()["entries"]
        self.method = method
        self.steps = steps
        self.budget = budget
        self.config = config
        self.piece_memory_bytes = piece_memory_bytes
        self.metrics: list[dict[str, float]] = []
        self._evaluation = evaluation
        self._every = every
        self._folder = folder
        self._checkpoint_every = checkpoint_every
        self._seconds = 0.0
        self._started = time.monotonic()
        self._saved_at = -float("inf")
        self._stages = () if method.adaptive else method.stages(run.n, steps)
        self.held_out: Callable[[nn.Module], dict[str, Any] | None] | None = None
        self._result: Result | None = None
        self._failed = False
        self._stopping = False
        self._frozen = run.frozen_fingerprint()
        self._paid: list[dict[str, Any]] | None = run.conduct.before  # until its first release

    @property
    def evaluation(self) -> Evaluation | None:
        """What the model is measured by between releases."""
        return self._evaluation

    @property
    def seconds(self) -> float:
        """Time spent on this training, earlier sittings included."""
        return self._seconds + time.monotonic() - self._started

    @property
    def epsilon(self) -> float:
        """What has been paid for so far, at the budget's δ: an upper bound; infinite without one.

        `result` states more where the training ends before its planned number of releases.
        """
        return math.inf if self.budget is None else self.run.ledger.epsilon(self.budget.delta)

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most memory taken so far. Private: it depends on how many records were drawn."""
        return peak_memory(self.run.device)

    def __iter__(self) -> Iterator[Release]:
        if self._result is not None:
            raise RuntimeError("this training is finished; its model carries the result")
        if self._failed:
            # its coins are used up, and the state may have moved: made again, two different
            # releases would share their noise
            raise RuntimeError("a release failed half-way; resume from the last checkpoint")
        run = self.run
        if self._paid is not None:
            check_begun(run.ledger, self._paid, run.conduct)
            self._paid = None
        run.ledger.affords_all(bill_of(self._left()))  # asked once, remembered
        while run.state.step < self.steps and not self._stopping and self._affords_next():
            self._checkpoint_if_due()
            if not self.method.adaptive:
                run.ledger.pay(self._left()[0][0])  # before anything is released
            run.begin_release()
            self._failed, step = True, run.state.step
            try:
                self.method.release(run)
            except Exception as error:
                if ran_out(error):
                    raise explain_shortage(error, step, run.microbatch) from error
                raise
            if run.state.step != step + 1:  # or the next release would draw the same coins
                raise RuntimeError(f"{self.method.name} did not step exactly once in a release")
            self._failed = False
            if step == 0:
                self._check_frozen()
            yield Release(run.state.step, self.steps, self._evaluate_if_due())
        run.state.parameters.release_gradients()
        if self._stopping and self._folder is not None and run.state.step < self.steps:
            self.checkpoint()

    def _left(self) -> list[Stage]:
        """What is still to be paid of the plan."""
        made, left = self.run.state.step, []
        for price, count in self._stages:
            if made < count:
                left.append((price, count - made))
            made = max(made - count, 0)
        return left

    def _affords_next(self) -> bool:
        if self.method.adaptive:
            return self.method.affordable(self.run)
        return self.run.ledger.affords([charge for charge, _ in self._left()[0][0]])

    def stop(self) -> None:
        """End after the release under way, with a checkpoint; safe to call in a signal handler."""
        self._stopping = True

    @property
    def stopped(self) -> bool:
        """Whether `stop` left releases to be made."""
        return self._stopping and self.run.state.step < self.steps

    def finish(self, on_release: Callable[[Release], None] | None = None) -> Result:
        """Make all remaining releases; save the result where a folder was given."""
        try:
            for release in self:
                if on_release is not None:
                    on_release(release)
        finally:
            self.run.state.parameters.release_gradients()
        if self.stopped:
            raise KeyboardInterrupt
        return self.result()

    def result(self, *, public_stop: bool = False) -> Result:
        """End the training: the model carries the result, averaged weights where there are any.

        Where a folder was given the result is saved there, and the checkpoint with the key goes.

        Args:
            public_stop: An end before the planned number of releases normally pays for all of them:
                had the moment depended on what was released, the ε of the releases made so far
                would prove nothing. Say True if it was fixed beforehand or by a public rule.
        """
        if self._result is not None:
            return self._result
        if self._failed:
            raise RuntimeError("a release failed half-way; resume from the last checkpoint")
        state = self.run.state
        self._check_frozen()
        if not public_stop and self.budget is not None:
            self._pay_for_the_plan()
        if state.average is not None and state.average.count:
            state.parameters.values.copy_(state.average.values)
        state.parameters.release_gradients()
        state.parameters.detach_from_buffer()
        self._result = Result(
            model=self.run.model,
            ledger=self.run.ledger,
            budget=self.budget,
            method={"name": self.method.name, **self.method.options()},
            guarantee=self.method.guarantee,
            steps=state.step,
            metrics=self.metrics,
            seconds=None if self.method.timing_is_private else self.seconds,
            config=self.config,
            microbatch=self.run.microbatch,
            piece_memory_bytes=self.piece_memory_bytes,
            released=self.method.released(state.public),
            conduct=self.run.conduct.to_json(counted=not self.method.timing_is_private),
            held_out=None if self.held_out is None else self.held_out(self.run.model),
            diverged=divergence(self.run.model, self.metrics),
        )
        if self._folder is not None:
            # `run` has refused or removed any other run in the folder
            self._result.save(self._folder, overwrite=True)
        return self._result

    def _check_frozen(self) -> None:
        """What is not trained must not learn: no noise reaches it."""
        if self.run.frozen_fingerprint() != self._frozen:
            raise ModelError(
                "a buffer or frozen parameter changed during a release: what it took up from the "
                "records would be published without noise"
            )

    def _pay_for_the_plan(self) -> None:
        """Charge the planned releases that were not made, as far as the budget goes.

        What a filter states is its whole budget anyway.
        """
        ledger, made = self.run.ledger, self.run.state.step
        if made >= self.steps or self.method.adaptive:
            return
        for price, missing in self._left():
            charges = tuple(charge for charge, _ in price)
            count = missing if ledger.affords(charges, missing) else ledger.capacity(charges)
            for charge, purpose in price if count else ():
                ledger.charge(charge, f"{purpose}, planned but not made", count=count)
        ledger.note(
            f"stopped after {made} of {self.steps} planned releases; all are paid for, as far as "
            "the budget goes, since the moment may depend on what was released"
        )

    def _evaluate_if_due(self) -> Metrics | None:
        step = self.run.state.step
        if self._evaluation is None or (step % self._every and step != self.steps):
            return None
        with averaged_weights(self.run.state):
            measured = {key: float(v) for key, v in self._evaluation(self.run.model).items()}
        self.metrics.append({"step": step, **measured})
        return measured

    # -- checkpoints --------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        now = time.monotonic()
        if self._folder is not None and now - self._saved_at >= self._checkpoint_every:
            self.checkpoint()

    def _identity(self) -> dict[str, Any]:
        """What must be the same for a run to be the same run."""
        return {
            "method": {"name": self.method.name, **self.method.options()},
            "steps": self.steps,
            "n": self.run.n,
            "budget": None if self.budget is None else self.budget.to_json(),
            "loss": _described(self.run.loss_fn),
            "optimizer": type(self.run.state.optimizer).__name__,
            "scheduler": _described(self.run.state.scheduler),
            "average": None if self.run.state.average is None else self.run.state.average.decay,
            "device": self.run.device.type,
            "path": self.run.path,
            "precision": self.run.precision,
            "microbatch": self.run.microbatch,
            "model": repr(self.run.model),
            "frozen parts": self._frozen,
            # with the same coins on other records, the noise of two releases would cancel
            "records": self.run.records.fingerprint(),
        }

    def checkpoint(self) -> None:
        """Save all that is needed to go on: state, ledger, coins' key, generator of the model."""
        if self._folder is None:
            raise OptionError("folder", None, "a checkpoint needs a folder to be written to")
        if self._failed:
            raise RuntimeError("a release failed half-way: its state must not be kept")
        self._check_frozen()
        run = self.run
        cuda = run.device.type == "cuda"
        write_checkpoint(
            self._folder,
            {
                "identity": self._identity(),
                "state": run.state.to_checkpoint(),
                "private": run.private,
                "conduct": run.conduct.to_json(),
                "ledger": run.ledger.to_json(),
                "coins": {"key": run.coins.secret().hex(), "seeded": run.coins.seeded},
                "metrics": self.metrics,
                "piece_memory_bytes": self.piece_memory_bytes,
                "seconds": self.seconds,
                # dropout and the like draw from the global generators
                "generator": torch.get_rng_state(),
                "cuda_generator": torch.cuda.get_rng_state(run.device) if cuda else None,
            },
        )
        self._saved_at = time.monotonic()

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue from a checkpoint of this very training."""
        try:
            self._resume(saved)
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"the checkpoint lacks what a run needs ({type(error).__name__}: {error})"
            ) from error

    def _resume(self, saved: dict[str, Any]) -> None:
        for name, mine in self._identity().items():
            theirs = saved["identity"][name]
            if theirs != mine:
                shown = "" if name in _HIDDEN else f" ({theirs}, not {mine})"
                raise CheckpointError(
                    f"the checkpoint belongs to a run with other {name}{shown}: resume with what "
                    "it was begun with"
                )
        run = self.run
        run.state.from_checkpoint(saved["state"])
        run.private = {name: kept.to(run.device) for name, kept in saved["private"].items()}
        run.conduct = Conduct.from_json(saved["conduct"])
        run.ledger.go_on_with(Ledger.from_json(saved["ledger"]))  # also whoever gave it sees it
        self._paid = run.ledger.to_json()["entries"]
        run.coins = Coins(
            bytes.fromhex(saved["coins"]["key"]), seeded=bool(saved["coins"]["seeded"])
        )
        self.metrics = [dict(line) for line in saved["metrics"]]
        self._seconds = float(saved["seconds"])
        torch.set_rng_state(saved["generator"])
        if run.device.type == "cuda" and saved["cuda_generator"] is not None:
            torch.cuda.set_rng_state(saved["cuda_generator"], run.device)
