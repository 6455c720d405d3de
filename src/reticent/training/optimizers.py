"""Optimizers for a flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from reticent.errors import OptionError, between, not_negative, one_of, single
from reticent.training.parameters import FlatParameters

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
    own = list(parameters.named.values())
    if isinstance(optimizer, Optimizer):
        _refuse_closures(optimizer)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        stranger = [p for group in optimizer.param_groups for p in group["params"]]
        stranger = [p for p in stranger if all(p is not q for q in own) and p.requires_grad]
        if stranger:
            raise OptionError(
                "optimizer",
                type(optimizer).__name__,
                f"holds {len(stranger)} parameter(s) that are not the model's; make it from "
                "model.parameters() of the model that is trained",
            )
        missing = [name for name, p in parameters.named.items() if id(p) not in held]
        if missing:
            raise OptionError(
                "optimizer",
                type(optimizer).__name__,
                f"does not hold the trainable parameter {missing[0]!r}; give it all of them, or "
                "switch requires_grad off for those that shall stay as they are",
            )
        return _checked(optimizer, parameters)
    made: Any = optimizer(own)
    if not isinstance(made, Optimizer):
        raise OptionError(
            "optimizer", optimizer, "must be an Optimizer, or a function from parameters to one"
        )
    _refuse_closures(_checked(made, parameters))
    if type(made) in ELEMENTWISE and len(made.param_groups) == 1:
        return optimizer([parameters.flat])
    return made


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
