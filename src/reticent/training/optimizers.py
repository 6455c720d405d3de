"""Optimizers for a flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from reticent.errors import OptionError, between, not_negative, one_of, single
from reticent.training.parameters import FlatParameters
from reticent.training.state import SchedulerFactory

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]

# Their update of a coordinate looks at that coordinate alone, so one flat vector will do.
ELEMENTWISE: tuple[type[Optimizer], ...] = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
)

NAMES = ("sgd", "adam", "adamw")


def by_name(
    name: str, *, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> OptimizerFactory:
    """A factory for one of the optimizers the command line knows."""
    one_of("optimizer", name, NAMES)
    single("lr", lr)
    between("momentum", momentum, 0, 1)
    if not_negative("weight_decay", weight_decay):
        single("weight_decay", weight_decay)
    if name != "sgd" and momentum:
        raise OptionError("momentum", momentum, f"is for optimizer 'sgd', not {name!r}")

    def build(parameters: Iterable[nn.Parameter]) -> Optimizer:
        if name == "sgd":
            return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(parameters, lr=lr, weight_decay=weight_decay)

    return build


def build_optimizer(
    optimizer: Optimizer | OptimizerFactory, parameters: FlatParameters
) -> Optimizer:
    """An optimizer over the flat vector where that is the same thing, else over the model's own.

    Args:
        optimizer: A factory, called with the parameters, such as
            `lambda params: torch.optim.SGD(params, lr=0.1)`; or an optimizer made from
            `model.parameters()`.
        parameters: The model's flat parameters.
    """
    works = "must be an Optimizer, or a function from parameters to one"
    if not isinstance(optimizer, Optimizer) and not callable(optimizer):
        raise OptionError("optimizer", optimizer, works)
    if isinstance(optimizer, Optimizer):
        _refuse_closures(optimizer)
        _check_held(optimizer, parameters)
        return _checked(optimizer, parameters)
    made: Any = optimizer(list(parameters.named.values()))
    if not isinstance(made, Optimizer):
        raise OptionError("optimizer", optimizer, works)
    _check_held(made, parameters)
    _refuse_closures(_checked(made, parameters))
    if type(made) in ELEMENTWISE and len(made.param_groups) == 1:
        flat = optimizer([parameters.flat])
        if any(p is parameters.flat for p in flat.param_groups[0]["params"]):
            return flat  # else it is a function that knows its parameters already
    return made


def _check_held(optimizer: Optimizer, parameters: FlatParameters) -> None:
    """Refuse an optimizer that would leave parameters to themselves, or move others."""
    own = {id(p) for p in parameters.named.values()}
    held = [p for group in optimizer.param_groups for p in group["params"]]
    strangers = [p for p in held if id(p) not in own and p.requires_grad]
    if strangers:
        raise OptionError(
            "optimizer",
            type(optimizer).__name__,
            f"holds {len(strangers)} parameter(s) that are not the model's; make it from "
            "model.parameters() of the model that is trained",
        )
    holds = {id(p) for p in held}
    missing = [name for name, p in parameters.named.items() if id(p) not in holds]
    if missing:
        raise OptionError(
            "optimizer",
            type(optimizer).__name__,
            f"does not hold the trainable parameter {missing[0]!r}; give it all of them, or "
            "switch requires_grad off for those that shall stay as they are",
        )


def _checked(optimizer: Optimizer, parameters: FlatParameters) -> Optimizer:
    """Refuse a step size or weight decay that the parameters' own precision makes infinite or 0."""
    kind = parameters.values.dtype
    most, least = torch.finfo(kind).max, torch.finfo(kind).tiny
    for group in optimizer.param_groups:
        for name in ("lr", "weight_decay"):
            value = float(group.get(name) or 0.0)  # a tensor, in some optimizers
            if value and not least <= abs(value) <= most:
                raise OptionError(
                    name,
                    value,
                    f"must lie in [{least:.2g}, {most:.2g}]: the parameters are {kind}",
                )
    return optimizer


def _refuse_closures(optimizer: Optimizer) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise OptionError(
            "optimizer", "LBFGS", "evaluates the private loss again and again in one step"
        )


def build_scheduler(
    scheduler: LRScheduler | SchedulerFactory | None, optimizer: Optimizer
) -> LRScheduler | None:
    """A scheduler of this optimizer, stepped once per release."""
    if scheduler is None:
        return None
    if not isinstance(scheduler, LRScheduler) and not callable(scheduler):
        raise OptionError("scheduler", scheduler, "must be a function from the optimizer to one")
    made = scheduler if isinstance(scheduler, LRScheduler) else scheduler(optimizer)
    if isinstance(made, ReduceLROnPlateau):
        raise OptionError(
            "scheduler",
            "ReduceLROnPlateau",
            "follows a loss, which is private; use a schedule that counts releases",
        )
    if made.optimizer is not optimizer:
        raise OptionError(
            "scheduler",
            type(made).__name__,
            "belongs to another optimizer; give a function from the optimizer to a scheduler",
        )
    return made
