"""From settings to a training: data, features, model, method and optimizer put together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler

import reticent
from reticent import data as datasets
from reticent import methods, models
from reticent.cli.own_data import described
from reticent.cli.preparing import prepare
from reticent.cli.settings import Settings
from reticent.coins import Coins
from reticent.data.imdb import SPECIAL
from reticent.data.own import OwnSplits
from reticent.errors import OptionError, one_of
from reticent.privacy import Budget
from reticent.training import Training, evaluate
from reticent.training.evaluation import class_counts
from reticent.training.optimizers import by_name
from reticent.training.train import pick_device

SCHEDULES = ("constant", "linear", "cosine")
NEVER = 2**62  # releases between evaluations
SELECTION = ("valid_batch", "valid_noise", "bound", "beta", "trials", "pad")


def build_training(
    settings: Settings,
    *,
    folder: Path,
    resume: bool,
    coins: Coins | None,
    overwrite: bool = False,
    method: methods.Method | None = None,
    config: dict[str, Any] | None = None,
    **options: Any,
) -> Training:
    """The training that these settings describe; `method` and `config` go beyond them."""
    budget = budget_of(settings)
    method = build_method(settings) if method is None else method
    prepared = prepare(settings, budget, coins, folder, resume=resume, overwrite=overwrite)
    splits = prepared.splits
    device = pick_device(settings.device)
    held_out = datasets.as_records(splits.test, device)
    training = reticent.run(
        build_model(settings, splits),
        splits.train,
        method=method,
        budget=budget,
        n=settings.n,
        evaluation=functools.partial(evaluate, data=held_out, device=device),
        every=_every(settings, method),
        ledger=prepared.ledger,
        device=device,
        coins=coins,
        folder=folder,
        resume=resume and prepared.begun,
        overwrite=overwrite,
        held_out=functools.partial(
            class_counts, data=held_out, classes=splits.info.classes, device=device
        )
        if settings.confusion
        else None,
        config={
            "settings": settings.to_json(),
            "public_seeds": {"model": settings.seed},
            **({"records": described(splits)} if isinstance(splits, OwnSplits) else {}),
            **(config or {}),
        },
        **run_options(settings, len(splits.train[0])),
        **options,
    )
    if not resume:
        prepared.keep(folder)
    for note in splits.notes:
        training.run.ledger.note(note)
    return training


def budget_of(settings: Settings) -> Budget | None:
    """What may be spent; None for a run without a guarantee, or with another than an ε."""
    if settings.non_private or not settings.promises_epsilon:
        return None
    return Budget(settings.epsilon, settings.delta)


def _every(settings: Settings, method: methods.Method) -> int | None:
    """How often to evaluate; only at the end where only the final model may be seen."""
    if settings.every is None and method.guarantee == "plausible-deniability":
        return NEVER
    return settings.every


def build_model(settings: Settings, splits: datasets.Splits) -> nn.Module:
    """The untrained model of these settings."""
    extras: dict[str, Any] = {}
    if "vectors" in splits.extras:
        extras["vectors"] = splits.extras["vectors"]
    elif splits.info.vocabulary is not None:  # what a model makes vectors of its own for
        extras["vocabulary"] = splits.info.vocabulary + len(SPECIAL)
    takes = {option.name for option in models.describe(settings.model).options}
    try:
        return models.build(
            settings.model,
            classes=splits.info.n_classes,
            input_shape=tuple(splits.train[0].shape[1:]),
            activation=settings.activation,
            seed=settings.seed,
            **{name: value for name, value in extras.items() if name in takes}
            | settings.model_options,
        )
    except OptionError as error:
        if error.option != "input_shape":
            error.of = "model_option"
            raise
        shape = tuple(splits.train[0].shape[1:])
        raise OptionError(
            "model", settings.model, f"records have shape {shape}: {error.hint}"
        ) from None


def run_options(settings: Settings, n: int) -> dict[str, Any]:
    """What `reticent.run` is told about a training on `n` records, besides its data and method."""
    return {
        "steps": settings.steps,
        "epochs": settings.epochs,
        "optimizer": by_name(
            settings.optimizer,
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        ),
        "scheduler": _schedule(settings, n),
        "average": settings.average,
        "microbatch": settings.microbatch,
        "data_on": settings.data_on,
        "path": settings.path,
        "precision": settings.precision,
    }


def build_method(settings: Settings) -> methods.Method:
    """The method that these settings describe."""
    named = {
        "batch": settings.batch,
        "clip": settings.clip,
        "clipping": settings.clipping,
        "noise": 0.0 if settings.non_private else settings.noise,
        **{name: value for name in SELECTION if (value := getattr(settings, name)) is not None},
    }
    takes = {option.name for option in methods.describe(settings.method).options}
    for name, plain in (("clipping", "flat"), ("noise", None)):
        if name not in takes and named[name] == plain:
            del named[name]  # nobody asked for it
    if not settings.promises_epsilon:  # `resolve` has refused those that were asked for
        named = {name: value for name, value in named.items() if name in takes or name in SELECTION}
    for name, value in settings.method_options.items():
        if name in named or name in SELECTION:
            raise OptionError(name, value, "has a flag of its own; give it there")
    try:
        return methods.build(settings.method, **named, **settings.method_options)
    except OptionError as error:
        if error.option in settings.method_options:
            error.of = "set"
        raise


def _schedule(settings: Settings, n: int) -> Callable[[Optimizer], LRScheduler] | None:
    one_of("schedule", settings.schedule, SCHEDULES)
    if settings.schedule == "constant":
        return None
    if settings.steps is None and settings.epochs is None:
        raise OptionError(
            "schedule", settings.schedule, "needs to know the length: give steps or epochs"
        )
    nominal = settings.n or n
    total = settings.steps or max(round((settings.epochs or 0) * nominal / settings.batch), 1)
    if settings.schedule == "cosine":
        return lambda optimizer: CosineAnnealingLR(optimizer, T_max=total)
    return lambda optimizer: LinearLR(
        optimizer, start_factor=1.0, end_factor=0.01, total_iters=total
    )
