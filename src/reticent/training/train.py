"""The run: prepare, then release while the ledger affords it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from reticent.coins import Coins
from reticent.data.records import as_records
from reticent.errors import (
    CheckpointError,
    OptionError,
    whole,
)
from reticent.methods.base import Method, Price
from reticent.privacy import Budget, Ledger
from reticent.training.evaluation import Evaluation, Metrics, averaged_weights
from reticent.training.files import CHECKPOINT, read_checkpoint, write_checkpoint
from reticent.training.optimizers import OptimizerFactory, build_optimizer
from reticent.training.parameters import FlatParameters
from reticent.training.planning import plan
from reticent.training.probe import probe
from reticent.training.result import RUN_FILE, Result
from reticent.training.run import LossFn, Run
from reticent.training.state import SchedulerFactory, State, WeightAverage

# Physical pieces that keep per-example work in cache or on the card; the result does not depend
# on them beyond rounding.
MICROBATCH = {"cpu": 512, "cuda": 2048}

PUBLIC_SIZE_NOTE = (
    "the nominal number of records is the data set's real size, which treats that size as public"
)
SEEDED_NOTE = (
    "the coins come from a stated seed: the guarantee holds only against those who do not know it"
)


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
    ) -> None:
        self.run = run
        self.method = method
        self.steps = steps
        self.budget = budget
        self.config = config
        self.metrics: list[dict[str, float]] = []
        self._evaluation = evaluation
        self._every = every
        self._folder = folder
        self._checkpoint_every = checkpoint_every
        self._seconds = 0.0
        self._started = time.monotonic()
        self._saved_at = -float("inf")
        self._price: Price = method.price(run.n)
        self._finished = False
        self._failed = False

    @property
    def seconds(self) -> float:
        """Time spent on this training, earlier sittings included."""
        return self._seconds + time.monotonic() - self._started

    def __iter__(self) -> Iterator[Release]:
        if self._finished:
            raise RuntimeError("this training is finished; its model carries the result")
        if self._failed:
            # its coins are used up, and the state may have moved: made again, two different
            # releases would share their noise
            raise RuntimeError("a release failed half-way; resume from the last checkpoint")
        run, ledger = self.run, self.run.ledger
        charges = tuple(charge for charge, _ in self._price)
        while run.state.step < self.steps and ledger.affords(charges):
            self._checkpoint_if_due()
            ledger.pay(self._price)  # before anything is released
            run.begin_release()
            self._failed = True
            self.method.release(run)
            self._failed = False
            yield Release(run.state.step, self.steps, self._evaluate_if_due())
        run.state.parameters.release_gradients()

    def finish(self, on_release: Callable[[Release], None] | None = None) -> Result:
        """Make all remaining releases; save the result where a folder was given."""
        for release in self:
            if on_release is not None:
                on_release(release)
        result = self.result()
        if self._folder is not None:
            result.save(self._folder)
            (self._folder / CHECKPOINT).unlink(missing_ok=True)  # the key has served its purpose
        return result

    def result(self) -> Result:
        """End the training: the model carries the result, averaged weights where there are any."""
        state = self.run.state
        if not self._finished:
            self._finished = True
            if state.average is not None and state.average.count:
                state.parameters.values.copy_(state.average.values)
            state.parameters.release_gradients()
            state.parameters.detach_from_buffer()
        return Result(
            model=self.run.model,
            ledger=self.run.ledger,
            budget=self.budget,
            method={"name": self.method.name, **self.method.options()},
            guarantee=self.method.guarantee,
            steps=state.step,
            metrics=self.metrics,
            seconds=self.seconds,
            config=self.config,
        )

    def _evaluate_if_due(self) -> Metrics | None:
        step = self.run.state.step
        if self._evaluation is None or (step % self._every and step != self.steps):
            return None
        with averaged_weights(self.run.state):
            measured = self._evaluation(self.run.model)
        self.metrics.append({"step": step, **measured})
        return measured

    # -- checkpoints --------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        now = time.monotonic()
        if self._folder is not None and now - self._saved_at >= self._checkpoint_every:
            self.checkpoint()

    def checkpoint(self) -> None:
        """Save all that is needed to go on: state, ledger, coins' key, generator of the model."""
        if self._folder is None:
            raise OptionError("folder", None, "a checkpoint needs a folder to be written to")
        run = self.run
        cuda = run.device.type == "cuda"
        write_checkpoint(
            self._folder,
            {
                "state": run.state.to_checkpoint(),
                "ledger": run.ledger.to_json(),
                "coins": {"key": run.coins.secret().hex(), "seeded": run.coins.seeded},
                "method": {"name": self.method.name, **self.method.options()},
                "steps": self.steps,
                "records": run.records.fingerprint(),
                "metrics": self.metrics,
                "seconds": self.seconds,
                # dropout and the like draw from the global generators
                "generator": torch.get_rng_state(),
                "cuda_generator": torch.cuda.get_rng_state(run.device) if cuda else None,
            },
        )
        self._saved_at = time.monotonic()

    def resume(self, saved: dict[str, Any]) -> None:
        """Continue from a checkpoint of this very training."""
        mine = {"name": self.method.name, **self.method.options()}
        if saved["method"] != mine or saved["steps"] != self.steps:
            raise CheckpointError(
                f"the checkpoint was written by {saved['method']} for {saved['steps']} steps, this "
                f"run is {mine} for {self.steps} steps: resume with the options it began with"
            )
        run = self.run
        if saved["records"] != run.records.fingerprint():
            # with the same coins on other records, the two runs' noise would cancel
            raise CheckpointError("the records are not those the checkpoint was written for")
        run.state.from_checkpoint(saved["state"])
        run.ledger = Ledger.from_json(saved["ledger"])
        run.coins = coins_of(saved)
        self.metrics = [dict(line) for line in saved["metrics"]]
        self._seconds = float(saved["seconds"])
        torch.set_rng_state(saved["generator"])
        if run.device.type == "cuda" and saved["cuda_generator"] is not None:
            torch.cuda.set_rng_state(saved["cuda_generator"], run.device)


def coins_of(saved: dict[str, Any]) -> Coins:
    """The coins a checkpoint carries."""
    return Coins(bytes.fromhex(saved["coins"]["key"]), seeded=bool(saved["coins"]["seeded"]))


def pick_device(device: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise OptionError("device", str(device), f"cannot be used here: {error}") from None
    return chosen


def run(
    model: nn.Module,
    data: Any,
    *,
    method: Method,
    optimizer: Optimizer | OptimizerFactory,
    budget: Budget | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    n: int | None = None,
    loss_fn: LossFn | None = None,
    scheduler: LRScheduler | SchedulerFactory | None = None,
    average: float | None = None,
    evaluation: Evaluation | None = None,
    every: int | None = None,
    ledger: Ledger | None = None,
    device: str | torch.device = "auto",
    microbatch: int | None = None,
    path: str = "auto",
    coins: Coins | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 60.0,
    config: dict[str, Any] | None = None,
) -> Training:
    """Prepare a training and hand it over, for people who own their loop.

    Args:
        model: Any module whose examples do not interact; it is trained in place.
        data: The private records: (inputs, targets), a `Dataset`, or `Records`.
        method: How a release is made, such as `DPSGD(batch=256, clip=1.0)`.
        optimizer: A function from parameters to an optimizer, or an optimizer made from
            `model.parameters()`.
        budget: What may be spent. None only for a method that states it has no noise.
        steps: How many releases to make; with neither `steps` nor `epochs`, as many as the budget
            affords at the method's noise.
        epochs: The same as passes over the nominal number of records.
        n: The nominal number of records, a public number that rates are computed from. By default
            the real number, which the ledger notes.
        loss_fn: Per-example loss; applied to one example at a time in meaning. Cross-entropy by
            default.
        scheduler: A function from the optimizer to a scheduler, stepped once per release.
        average: Decay of an exponential moving average of the weights; the result carries it.
        evaluation: Called on the model every `every` releases; see only held-out records there.
        every: How often to evaluate; by default ten times in all.
        ledger: Charges already paid from the same budget, to go on with.
        device: `auto`, `cpu`, `cuda`, ...
        microbatch: How many records are processed at once; no influence on the result.
        path: How gradients are computed: `auto`, `fast` or `reference`.
        coins: Randomness of sampling and noise; fresh by default. A seed makes a run reproducible
            and its guarantee depend on the seed's secrecy.
        folder: Where checkpoints and the result go.
        resume: Continue from the folder's checkpoint.
        checkpoint_every: Seconds between checkpoints; 0 saves before every release.
        config: Public facts to be kept in `run.json`.
    """
    chosen = pick_device(device)
    loss_fn = nn.CrossEntropyLoss() if loss_fn is None else loss_fn
    if isinstance(loss_fn, nn.Module):
        loss_fn = loss_fn.to(chosen)
    model.to(chosen)
    model.train()
    records = as_records(data, chosen)
    probe(model, loss_fn, records, path)
    nominal = records.n if n is None else whole("n", n)
    saved = None
    if resume:
        if folder is None:
            raise OptionError("resume", True, "needs the folder of the run to continue")
        saved = read_checkpoint(Path(folder))
    elif folder is not None and (Path(folder) / RUN_FILE).exists():
        raise CheckpointError(f"{str(folder)!r} holds a finished run; choose another folder")
    elif folder is not None and (Path(folder) / CHECKPOINT).exists():
        raise CheckpointError(
            f"{str(folder)!r} holds an unfinished run; resume it, or choose another folder"
        )
    opened = _open_ledger(ledger, budget)
    if n is None:
        opened.note(PUBLIC_SIZE_NOTE)
    coins = Coins.fresh() if coins is None else coins
    if coins.seeded:
        opened.note(SEEDED_NOTE)
    method, steps = plan(method, budget, nominal, steps, epochs, opened)

    parameters = FlatParameters(model)
    made = build_optimizer(optimizer, parameters)
    state = State(
        parameters,
        made,
        _scheduler(scheduler, made),
        None if average is None else WeightAverage(average, parameters.values),
    )
    training = Training(
        Run(
            model=model,
            records=records,
            loss_fn=loss_fn,
            state=state,
            ledger=opened,
            coins=coins,
            n=nominal,
            device=chosen,
            microbatch=whole("microbatch", microbatch or MICROBATCH.get(chosen.type, 512)),
            path=path,
        ),
        method,
        steps,
        budget=budget,
        evaluation=evaluation,
        every=max(steps // 10, 1) if every is None else whole("every", every),
        folder=None if folder is None else Path(folder),
        checkpoint_every=checkpoint_every,
        config=dict(config or {}),
    )
    if saved is not None:
        training.resume(saved)
    return training


def train(
    model: nn.Module,
    data: Any,
    *,
    on_release: Callable[[Release], None] | None = None,
    **options: Any,
) -> Result:
    """Train a model privately; the options are those of `reticent.run`.

    Example:
        >>> import torch, reticent as rt
        >>> data = (torch.randn(64, 4), torch.randint(0, 2, (64,)))
        >>> result = rt.train(torch.nn.Linear(4, 2), data, method=rt.DPSGD(batch=16, clip=1.0),
        ...                   budget=rt.Budget(epsilon=3, delta=1e-3), steps=5,
        ...                   optimizer=lambda params: torch.optim.SGD(params, lr=0.5))
        >>> result.epsilon <= 3
        True
    """
    return run(model, data, **options).finish(on_release)


def _open_ledger(ledger: Ledger | None, budget: Budget | None) -> Ledger:
    if ledger is None:
        return Ledger(budget)
    if ledger.budget != budget:
        raise OptionError("ledger", ledger.budget, f"was opened for another budget than {budget}")
    return ledger


def _scheduler(
    scheduler: LRScheduler | SchedulerFactory | None, optimizer: Optimizer
) -> LRScheduler | None:
    if scheduler is None:
        return None
    made = scheduler if isinstance(scheduler, LRScheduler) else scheduler(optimizer)
    if made.optimizer is not optimizer:
        raise OptionError(
            "scheduler",
            type(made).__name__,
            "belongs to another optimizer; give a function from the optimizer to a scheduler",
        )
    return made
