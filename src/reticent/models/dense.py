"""Models of fully connected layers: `linear`, `linear-head`, `mlp`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import nn

from reticent.errors import OptionError, truth, whole
from reticent.models.activations import ActivationFactory
from reticent.models.registry import ModelCard, Option, register
from reticent.models.shapes import Shape

_MOST_UNITS = 1 << 20


@register(
    ModelCard(
        name="linear",
        paper="PD-SGD, appendix (Purchase-100)",
        summary="flatten, fc classes",
        input_shape=(600,),
        classes=100,
    )
)
def linear(*, classes: int, input_shape: Shape) -> nn.Module:
    """One linear layer on the flattened example."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


@register(
    ModelCard(
        name="linear-head",
        paper="Tramèr & Boneh 2021; PD-SGD, appendix (last layer of a frozen ViT-B-16)",
        summary="optional group normalisation without parameters, flatten, fc classes",
        input_shape=(512,),
        classes=10,
        options=(
            Option("groups", 0, "groups of the first dimension to normalise over; 0 for none"),
            Option("bias", True, "whether there is one"),
            Option("zero", False, "start from zeros, not at random"),
        ),
        notes=(
            "The normalisation is computed within each example and learns nothing, "
            "so it costs no privacy.",
        ),
    )
)
def linear_head(
    *, classes: int, input_shape: Shape, groups: int, bias: bool = True, zero: bool = False
) -> nn.Module:
    """One linear layer on frozen features of any shape, normalised in groups if asked."""
    for name, value in (("bias", bias), ("zero", zero)):
        truth(name, value)
    layer = nn.Linear(math.prod(input_shape), classes, bias=bias)
    if zero:
        for parameter in layer.parameters():
            nn.init.zeros_(parameter)
    return nn.Sequential(*group_norm(input_shape, groups), nn.Flatten(), layer)


def group_norm(input_shape: Shape, groups: int) -> list[nn.Module]:
    """Return a normalisation of the input without parameters, or nothing for 0 groups."""
    groups = whole("groups", groups, least=0)
    if groups == 0:
        return []
    works = [
        count
        for count in range(1, input_shape[0] + 1)
        if input_shape[0] % count == 0 and math.prod(input_shape) > count
    ]
    if groups not in works:
        choices = ", ".join(map(str, [0, *works]))
        raise OptionError(
            "groups",
            groups,
            f"must split the first dimension of {input_shape} evenly, "
            f"more than one value to a group: {choices}",
        )
    return [nn.GroupNorm(groups, input_shape[0], affine=False)]


@register(
    ModelCard(
        name="mlp",
        paper="none; a plain multilayer perceptron",
        summary="flatten, fc for each hidden size, fc classes",
        input_shape=(64,),
        classes=10,
        activation="tanh",
        options=(Option("hidden", (64,), "the hidden layers' sizes, first to last"),),
    )
)
def mlp(
    *, classes: int, input_shape: Shape, activation: ActivationFactory, hidden: Any
) -> nn.Module:
    """Fully connected layers with an activation after each but the last."""
    if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not hidden:
        raise OptionError("hidden", hidden, "must be one size or more, such as (64,) or (128, 64)")
    layers: list[nn.Module] = [nn.Flatten()]
    size = math.prod(input_shape)
    for units in hidden:
        if whole("hidden", units) > _MOST_UNITS:
            raise OptionError("hidden", hidden, f"must be sizes of at most {_MOST_UNITS:,}")
        layers += [nn.Linear(size, int(units)), activation()]
        size = int(units)
    return nn.Sequential(*layers, nn.Linear(size, classes))
