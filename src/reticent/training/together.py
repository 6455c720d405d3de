"""Many small models of one architecture, trained at once.

Small models leave a device idle: most of the time goes into telling it what to do. Mapped over the
models (`torch.vmap`), one step of all of them takes little longer than one step of one.

Model k comes out as `reticent.train` would have trained it alone on its records with its coins, up
to rounding: the draws, the noise, the clipping, the optimizer, schedule and average are the same.
Where that cannot be had at once, models are trained one after the other by `reticent.train` itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from reticent import gradients
from reticent.coins import Coins
from reticent.data.records import Records, as_records
from reticent.data.transfer import free_memory
from reticent.errors import OptionError, between, one_of, positive, whole
from reticent.gradients.batches import call, trainable
from reticent.gradients.losses import per_example_losses
from reticent.gradients.modes import modes_of, put_back, training_mode
from reticent.methods import DPSGD
from reticent.methods.base import Price
from reticent.privacy import NonPrivate
from reticent.training.loop import Release
from reticent.training.memory import Tally
from reticent.training.optimizers import OptimizerFactory
from reticent.training.probe import probe
from reticent.training.run import LossFn
from reticent.training.stacked_draws import StackedDraws, fetch
from reticent.training.stacking import (
    TAME,
    PartRecords,
    StackedGradients,
    StackedParameters,
)
from reticent.training.state import SchedulerFactory, State, WeightAverage
from reticent.training.together_checks import (
    against,
    check_optimizer,
    checked_method,
    checked_models,
    rate_of,
    scheduler_of,
    subset_rows,
    unclipped,
)
from reticent.training.train import pick_device, train

HOW = ("auto", "together", "apart")
# What one pass may take by default; on a device also a share of what is free.
HOST_BYTES, DEVICE_BYTES, DEVICE_SHARE = 256 * 2**20, 8 * 2**30, 0.25
# Steps between two looks at whether gradients are finite: looking means waiting for a device.
WINDOW = 64

StepProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Trained:
    """Models that were trained, and how.

    Attributes:
        models: The very modules that were given, trained in place.
        together: Whether they were trained at once.
        reason: Why not, where they were not.
    """

    models: list[nn.Module]
    together: bool
    reason: str = ""


@dataclass(frozen=True)
class _Unaccounted(DPSGD):
    """The same releases without a promise, hence without a budget."""

    guarantee: ClassVar[str] = "none"

    def price(self, n: int) -> Price:
        return ((NonPrivate("no ledger is kept of models trained together"), "training"),)


def train_together(
    models: Sequence[nn.Module],
    data: Any,
    *,
    method: DPSGD,
    optimizer: OptimizerFactory,
    steps: int,
    subsets: Tensor | Sequence[Tensor] | None = None,
    coins: Sequence[Coins] | None = None,
    n: int | None = None,
    loss_fn: LossFn | None = None,
    scheduler: SchedulerFactory | None = None,
    average: float | None = None,
    device: str | torch.device = "auto",
    data_on: str = "auto",
    how: str = "auto",
    memory: float | None = None,
    on_step: StepProgress | None = None,
) -> Trained:
    """Train several models of one architecture at once, each on records of its own.

    No ledger is kept and no ε is stated: this is for models that stay with whoever holds the
    records, such as the shadow models of an audit. To release a private model, use
    `reticent.train`, whose ledger is the one that each of these would have.

    Args:
        models: Modules of the same architecture; trained in place.
        data: The pool of records, as for `reticent.train`.
        method: `DPSGD` with flat clipping and a noise multiplier; 0 for no noise.
        optimizer: A function from parameters to one of the optimizers whose update of a coordinate
            looks at that coordinate alone, with one group of parameters.
        steps: How many steps each model makes.
        subsets: Which records of the pool model k has: a mask or positions for each model; by
            default all. Order matters as it would in `data[subset]`.
        coins: Randomness of each model's sampling and noise; fresh by default.
        n: The nominal number of records of each model; by default its real one, so that models with
            fewer records draw them at a higher rate.
        loss_fn: As for `reticent.train`.
        scheduler: A function from the optimizer to a scheduler, stepped once per step.
        average: Decay of an exponential moving average of the weights; the results carry it.
        device: `auto`, `cpu`, `cuda`, ...
        data_on: As for `reticent.train`.
        how: `together` refuses a model that cannot be mapped, `apart` trains one after the other,
            `auto` chooses.
        memory: Bytes that one pass over a batch may take; no influence on the result but rounding.
        on_step: Called with the number of steps made and to make, of all models.

    Example:
        >>> import torch, reticent as rt
        >>> pool = (torch.randn(60, 4), torch.randint(0, 2, (60,)))
        >>> models = [torch.nn.Linear(4, 2) for _ in range(3)]
        >>> halves = torch.rand(3, 60) < 0.5
        >>> done = train_together(models, pool, subsets=halves, steps=5,
        ...                       method=rt.DPSGD(batch=8, clip=float("inf"), noise=0),
        ...                       optimizer=lambda params: torch.optim.SGD(params, lr=0.5))
        >>> done.together
        True
    """
    chosen = pick_device(device)
    one_of("how", how, HOW)
    steps = whole("steps", steps, least=0)
    models = checked_models(models)
    clip = checked_method(method)
    records = as_records(data, chosen, data_on)
    rows = subset_rows(subsets, len(models), records.n)
    rates = [rate_of(method, n, row, k) for k, row in enumerate(rows)]
    average = None if average is None else between("average", average, 0, 1, open_low=True)
    room = room_for(memory, chosen)
    coins = [Coins.fresh() for _ in models] if coins is None else list(coins)
    if len(coins) != len(models):
        raise OptionError("coins", len(coins), f"must be one for each of {len(models)} models")
    loss_fn = nn.CrossEntropyLoss() if loss_fn is None else loss_fn
    if isinstance(loss_fn, nn.Module):
        loss_fn = loss_fn.to(chosen)
    modes = [modes_of(model) for model in models]
    for model in models:
        training_mode(model.to(chosen))
    try:
        probe(models[0], loss_fn, records)
        check_optimizer(optimizer, models[0])
        parameters = StackedParameters(models)
        example = gradients.synthetic_like(*records.one(), n=1)
        sums = StackedGradients(models, parameters, loss_fn, clip, example)
        reason = against(how, sums, models, records, light=unclipped(method))
        if reason:
            return _apart(models, records, rows, reason, method, coins, on_step, steps,
                          optimizer=optimizer, n=n, loss_fn=loss_fn, scheduler=scheduler,
                          average=average, device=chosen)  # fmt: skip
        made = optimizer([parameters.flat])
        state = State(
            parameters,
            made,
            scheduler_of(scheduler, made),
            None if average is None else WeightAverage(average, parameters.values),
        )
        draws = StackedDraws([c.claim() for c in coins], rows, rates, chosen)
        work = _Work(
            sums, records, draws, method, room, bytes_per_example(models[0], loss_fn, records)
        )
        _make_steps(state, work, steps, on_step)
    except BaseException:
        for own in modes:
            put_back(own)
        raise
    averaged = state.average is not None and state.average.count > 0
    parameters.hand_back(
        models, state.average.values if state.average and averaged else parameters.values
    )
    return Trained(models, together=True)


# -- the steps ------------------------------------------------------------------------------------


@dataclass
class _Work:
    """What a step needs besides the state."""

    sums: StackedGradients
    records: Records
    draws: StackedDraws
    method: DPSGD
    room: int
    bytes_each: int

    def piece(self, quick: bool) -> int:
        """How many examples of each model fit into a pass."""
        return self.sums.piece(self.room, self.bytes_each, clipped=not quick)

    def released(self, step: int, *, quick: bool, last: bool) -> tuple[Tensor, Tensor | None]:
        """The mean gradients with noise [K, P]; when quick also whether all of it is sound."""
        positions, valid = self.draws.take(step, last=last)
        batch = fetch(self.records, positions) if positions.shape[1] else ((), ())
        total = (self.sums.plain if quick else self.sums.clipped)(batch, valid, self.piece(quick))
        sound = (total.abs() < TAME).all() if quick else None
        assert self.method.noise is not None
        if self.method.noise:
            scale = self.method.noise * self.sums.clip.sensitivity
            for row, coins in zip(total, self.draws.coins, strict=True):
                row.add_(
                    coins.normal(
                        tuple(row.shape), "noise", step, 0, device=row.device, dtype=row.dtype
                    ),
                    alpha=scale,
                )
        return total.div_(self.method.batch), sound


def _make_steps(state: State, work: _Work, steps: int, on_step: StepProgress | None) -> None:
    """All steps; where one went wrong for being quick, those since the last look are made again.

    Without clipping and noise nothing needs single examples' gradients, unless one is not finite: a
    separate run leaves that example out, so then they are computed after all.
    """
    quick, told = unclipped(work.method), 0
    models = len(state.parameters.values)
    while state.step < steps:
        before = state.snapshot() if quick else None
        doubts: list[Tensor] = []
        for step in range(state.step, min(state.step + WINDOW, steps)):
            gradient, sound = work.released(step, quick=quick, last=step + 1 == steps)
            state.advance(gradient)
            if sound is not None:
                doubts.append(sound)
            if on_step is not None and state.step > told:
                told = state.step
                on_step(models * told, models * steps)
        if before is not None and not bool(torch.stack(doubts).all()):
            state.restore(before)
            quick = False


def room_for(memory: float | None, device: torch.device) -> int:
    """What one pass may take, in bytes."""
    if memory is not None:
        return int(positive("memory", memory))
    if device.type != "cuda":
        return HOST_BYTES
    return int(min(DEVICE_BYTES, DEVICE_SHARE * free_memory(device)))


def bytes_per_example(model: nn.Module, loss_fn: LossFn, records: Records) -> int:
    """What one more example takes in a pass of one model, measured on made-up ones."""
    one = records.one()

    def peak(count: int) -> int:
        inputs, targets = gradients.synthetic_like(*one, n=count)
        with Tally() as tally:
            losses = per_example_losses(loss_fn, call(model, inputs), targets)
            torch.autograd.grad(losses.sum(), list(trainable(model).values()), allow_unused=True)
        return tally.peak

    try:
        return max((peak(20) - peak(4)) // 16, 1)
    except Exception:  # it is the counting that the model does not stand
        return 2**20


# -- one after the other --------------------------------------------------------------------------


def _apart(
    models: list[nn.Module],
    records: Records,
    rows: list[Tensor],
    reason: str,
    method: DPSGD,
    coins: list[Coins],
    on_step: StepProgress | None,
    steps: int,
    **options: Any,
) -> Trained:
    """Each model by `reticent.train`, with the same outcome."""
    same = _Unaccounted(batch=method.batch, clip=method.clip, noise=method.noise)
    for k, (model, row, own) in enumerate(zip(models, rows, coins, strict=True)):

        def tell(release: Release, before: int = k * steps) -> None:
            if on_step is not None:
                on_step(before + release.step, len(models) * steps)

        train(
            model,
            PartRecords(records, row.to(records.indices_on or options["device"])),
            method=same,
            coins=own,
            steps=steps,
            on_release=tell,
            **options,
        )
    return Trained(models, together=False, reason=reason)
