"""The run: prepare, then release while the ledger affords it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from reticent.coins import Coins
from reticent.data.records import Records, as_records
from reticent.errors import (
    DivergenceWarning,
    OptionError,
    between,
    not_negative,
    whole,
)
from reticent.files import check_folder, to_json
from reticent.gradients import rounding
from reticent.gradients.modes import modes_of, put_back, training_mode
from reticent.gradients.rounding import check_precision
from reticent.methods.base import Method
from reticent.privacy import Budget, Ledger, delta_note
from reticent.training.checkpoint import CHECKPOINT, read_checkpoint
from reticent.training.diverged import in_words
from reticent.training.evaluation import Evaluation
from reticent.training.ledgers import check_continued, check_planned, open_ledger
from reticent.training.loop import Release, Training
from reticent.training.memory import Piece, choose_microbatch
from reticent.training.norms_seen import NormsSeen
from reticent.training.optimizers import (
    OptimizerFactory,
    build_optimizer,
    build_scheduler,
)
from reticent.training.parameters import FlatParameters
from reticent.training.planning import plan
from reticent.training.probe import check_model, probe
from reticent.training.restoring import check_restorable
from reticent.training.result import MODEL_FILE, RUN_FILE, Result, refuse_taken
from reticent.training.run import LossFn, Run
from reticent.training.state import SchedulerFactory, State, WeightAverage

PUBLIC_SIZE_NOTE = (
    "the nominal number of records is the data set's real size, which treats that size as public"
)
SEEDED_NOTE = (
    "the coins come from a stated seed: the guarantee holds only against those who do not know or "
    "guess it, and not for two runs with the same seed, which share their noise"
)

SomeTraining = TypeVar("SomeTraining", bound=Training)


def pick_device(device: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is one."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        float(torch.zeros(1, device=chosen).sum())
    except (RuntimeError, AssertionError, NotImplementedError) as error:
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
    data_on: str = "auto",
    path: str = "auto",
    precision: str | None = None,
    coins: Coins | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_every: float = 60.0,
    private_diagnostics: bool = False,
    held_out: Callable[[nn.Module], dict[str, Any] | None] | None = None,
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
        ledger: Charges already paid from the same budget, to go on with; the same charges again
            when such a run is resumed. If it has paid for more than statistics of the inputs, it
            must have been opened with `planned=True`.
        device: `auto`, `cpu`, `cuda`, ...
        microbatch: How many records are processed at once; no influence on the result but rounding
            (and, with dropout, which masks are drawn). By default as many as fit, measured on
            made-up records; a resumed run goes on with what it was begun with.
        data_on: Where tensors are kept: `device`, `host`, or `auto`, which is the device if they
            take at most half of its free memory.
        path: How gradients are computed: `auto`, `fast` or `reference`.
        precision: What layers compute in: `float32`, `tf32` (CUDA) or `bf16`; by default PyTorch's
            own settings. Norms and sums are never in half precision.
        coins: Randomness of sampling and noise; fresh by default. A seed makes a run reproducible
            and its guarantee depend on the seed's secrecy.
        folder: Where checkpoints and the result go.
        resume: Continue from the folder's checkpoint.
        overwrite: Replace the run in the folder, once all options have been found good.
        checkpoint_every: Seconds between checkpoints; 0 saves before every release.
        private_diagnostics: Keep what the method saw on its way, such as the number of trials, in
            `training.run.diagnostics`, and gradient norms in `training.run.norms_seen`. Nothing of
            it is covered by ε: it must not leave whoever holds the records, and it is never written
            to `run.json`.
        held_out: Called on the final model; what it returns is kept in `run.json`, such as
            `class_counts` of held-out records.
        config: Public facts to be kept in `run.json`.
    """
    check_model(model)
    chosen = pick_device(device)
    check_precision(precision, chosen)
    not_negative("checkpoint_every", checkpoint_every)
    folder = None if folder is None else Path(folder)
    saved = _occupied(folder, resume, overwrite)
    try:
        to_json(config or {})
    except (TypeError, ValueError) as error:
        raise OptionError("config", config, f"must be plain JSON data: {error}") from None
    if ledger is not None and saved is None:
        check_planned(ledger)
    loss_fn = nn.CrossEntropyLoss() if loss_fn is None else loss_fn
    if isinstance(loss_fn, nn.Module):
        loss_fn = loss_fn.to(chosen)
    records = as_records(data, chosen, data_on)
    modes = modes_of(model)
    training_mode(model.to(chosen))

    def piece_for(settled: Method) -> Piece:
        piece = _piece(microbatch, saved)
        if piece is None:
            with rounding.precision(precision, chosen):
                piece = choose_microbatch(model, loss_fn, records, settled, chosen, path)
        return piece

    try:
        probe(model, loss_fn, records, path, evaluated=method.restores, precision=precision)
        training = assemble(
            Training,
            model,
            records,
            method=method,
            optimizer=optimizer,
            budget=budget,
            steps=steps,
            epochs=epochs,
            n=n,
            loss_fn=loss_fn,
            scheduler=scheduler,
            average=average,
            evaluation=evaluation,
            every=every,
            ledger=ledger,
            coins=coins,
            device=chosen,
            config=config,
            piece_for=piece_for,
            path=path,
            precision=precision,
            folder=folder,
            checkpoint_every=checkpoint_every,
        )
    except BaseException:
        put_back(modes)
        raise
    training.held_out = held_out
    if private_diagnostics:
        training.run.diagnostics, training.run.norms_seen = [], NormsSeen()
    if saved is not None:
        check_continued(ledger, training.run.conduct.before, saved)
        training.resume(saved)
    elif folder is not None:
        for name in (RUN_FILE, MODEL_FILE, CHECKPOINT):  # and nothing else that lies there
            (folder / name).unlink(missing_ok=True)
    return training


def assemble(
    kind: type[SomeTraining],
    model: nn.Module,
    records: Records,
    *,
    method: Method,
    optimizer: Optimizer | OptimizerFactory,
    budget: Budget | None,
    steps: int | None,
    epochs: float | None,
    n: int | None,
    loss_fn: LossFn,
    scheduler: LRScheduler | SchedulerFactory | None,
    average: float | None,
    evaluation: Evaluation | None,
    every: int | None,
    ledger: Ledger | None,
    coins: Coins | None,
    device: torch.device,
    config: dict[str, Any] | None,
    piece_for: Callable[[Method], Piece],
    path: str = "auto",
    precision: str | None = None,
    folder: Path | None = None,
    checkpoint_every: float = 60.0,
) -> SomeTraining:
    """A training of a model that was probed: ledger opened, length and noise settled.

    The options are those of `run`; `piece_for` says how many records go through at once.
    """
    nominal = records.n if n is None else whole("n", n)
    opened = open_ledger(ledger, budget)
    coins = Coins.fresh() if coins is None else coins
    large = None if budget is None else delta_note(budget.delta, nominal)
    for note, applies in (
        (PUBLIC_SIZE_NOTE, n is None),
        (SEEDED_NOTE, coins.seeded),
    ):
        if applies:
            opened.note(note)
    if large is not None:
        opened.note(large)
    method, steps = plan(method, budget, nominal, steps, epochs, opened)
    average = None if average is None else between("average", average, 0, 1, open_low=True)
    every = max(steps // 10, 1) if every is None else whole("every", every)
    piece = piece_for(method)
    parameters = FlatParameters(model)
    made = build_optimizer(optimizer, parameters)
    state = State(
        parameters,
        made,
        build_scheduler(scheduler, made),
        None if average is None else WeightAverage(average, parameters.values),
    )
    if method.restores:
        check_restorable(state)
    return kind(
        Run(
            model=model,
            records=records,
            loss_fn=loss_fn,
            state=state,
            ledger=opened,
            coins=coins.claim(),
            n=nominal,
            device=device,
            microbatch=piece.microbatch,
            path=path,
            precision=precision,
        ),
        method,
        steps,
        budget=budget,
        evaluation=evaluation,
        every=every,
        folder=folder,
        checkpoint_every=checkpoint_every,
        config=dict(config or {}),
        piece_memory_bytes=piece.bytes,
    )


def _piece(microbatch: int | None, saved: dict[str, Any] | None) -> Piece | None:
    """The piece that was asked for, or that a resumed run was begun with; None: to be chosen.

    What would be chosen now depends on the memory that is free now.
    """
    if microbatch is not None:
        return Piece(whole("microbatch", microbatch))
    identity = (saved or {}).get("identity")
    begun_with = identity.get("microbatch") if isinstance(identity, dict) else None
    if saved is None or not isinstance(begun_with, int):
        return None
    return Piece(begun_with, saved.get("piece_memory_bytes"))


def _occupied(folder: Path | None, resume: bool, overwrite: bool) -> dict[str, Any] | None:
    """The checkpoint to go on from, if that is wanted; refuses a folder that is taken."""
    if folder is None:
        if resume:
            raise OptionError("resume", True, "needs the folder of the run to continue")
        return None
    check_folder("folder", folder)
    if resume:
        return read_checkpoint(folder)
    if not overwrite:
        refuse_taken(folder)
    return None


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
    for name in options.keys() - _OPTIONS:
        hint = "; the loss is loss_fn" if name in ("loss", "criterion") else ""
        raise TypeError(f"train() got an unexpected keyword argument {name!r}{hint}")
    result = run(model, data, **options).finish(on_release)
    if result.diverged is not None:
        warnings.warn(in_words(result.diverged), DivergenceWarning, stacklevel=2)
    return result


_OPTIONS = frozenset(inspect.signature(run).parameters)
