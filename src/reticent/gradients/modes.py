"""The modes of a model's modules: a whole model is trained or evaluated, but for frozen norms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase


def training_mode(model: nn.Module) -> nn.Module:
    """`model.train()`, but norms that rest stay as they are.

    A batch norm in evaluation mode, with nothing of its own to train, maps each example by public
    statistics: in a pretrained network it can stay what it is.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    >>> _ = model.eval().requires_grad_(False)
    >>> [module.training for module in training_mode(model)]
    [False, True]
    """
    resting = [module for module in model.modules() if rests(module)]
    model.train()
    for module in resting:
        module.eval()
    return model


def rests(module: nn.Module) -> bool:
    """Whether a norm uses the statistics that it has, takes up none and is not trained."""
    return (
        isinstance(module, _NormBase)
        and not module.training
        and module.running_mean is not None
        and not any(own.requires_grad for own in module.parameters(recurse=False))
    )


def modes_of(model: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Every module with its mode, the model itself first."""
    return [(module, module.training) for module in model.modules()]


def put_back(modes: Sequence[tuple[nn.Module, bool]]) -> None:
    """Every module's own mode again."""
    model, training = modes[0]
    model.train(training)  # some modules do more than note it
    for module, mode in modes:
        module.training = mode


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """`model.eval()`, then every module's own mode again."""
    modes = modes_of(model)
    model.eval()
    try:
        yield
    finally:
        put_back(modes)


@contextmanager
def evaluated_quickly(model: nn.Module) -> Iterator[None]:
    """The same for modules that only note their mode: written past the slow `__setattr__`."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, training in modes:
            if training:
                _set_mode(module, False)
        yield
    finally:
        for module, training in modes:
            if training:
                _set_mode(module, True)


def _set_mode(module: nn.Module, training: bool) -> None:
    if "training" in module.__dict__:
        module.__dict__["training"] = training
    else:  # a scripted module keeps it elsewhere
        module.training = training
