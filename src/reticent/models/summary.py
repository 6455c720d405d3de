"""A model seen from outside: its layers in the order they run, and its parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layer:
    """One layer as it ran.

    Attributes:
        name: the module's path in the model.
        kind: the module's class.
        details: its settings, as the module prints them.
        output: the shape of its output for one example.
        trained: how many of its parameters are trained.
        frozen: how many are not.
    """

    name: str
    kind: str
    details: str
    output: tuple[int, ...]
    trained: int
    frozen: int


def parameter_counts(model: nn.Module) -> tuple[int, int]:
    """Return how many parameters are trained and how many are frozen, a shared one once."""
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return trained, sum(p.numel() for p in model.parameters()) - trained


def layers(model: nn.Module, sample: Tensor) -> list[Layer]:
    """Run `model` on `sample` without gradients and return its layers in the order they ran.

    A layer is a module without children; one that runs twice is listed twice. Neither the
    model's mode nor its parameters change.
    """
    rows: list[Layer] = []

    def listen(name: str) -> Any:
        def hook(module: nn.Module, _: Any, output: Any) -> None:
            main = output[0] if isinstance(output, tuple) else output
            rows.append(
                Layer(
                    name,
                    type(module).__name__,
                    module.extra_repr(),
                    tuple(main.shape[1:]),
                    *parameter_counts(module),
                )
            )

        return hook

    handles = [
        module.register_forward_hook(listen(name))
        for name, module in model.named_modules()
        if next(module.children(), None) is None
    ]
    try:
        with torch.no_grad():
            model(sample)
    finally:
        for handle in handles:
            handle.remove()
    return rows
