"""Wide residual networks without batch normalisation: `wrn-16-4`, `wrn-28-2`.

The private variant of De et al. (2022, "Unlocking high-accuracy differentially private image
classification through scale"): group normalisation, each convolution preceded by activation and
then normalisation in this order, biases everywhere, and weight standardisation as a choice. Depth
and width are those of Zagoruyko & Komodakis (2016): (depth − 4) / 6 blocks of two 3x3 convolutions
in each of three groups, of 16, 32 and 64 times `width` channels.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reticent.errors import OptionError, whole
from reticent.models.activations import ActivationFactory
from reticent.models.registry import ModelCard, Option, register
from reticent.models.shapes import Shape, image

_STEM = 16
_GROUPS = (1, 2, 4, 8, 16)
_LEAST_SIDE = 4


class StandardizedConv2d(nn.Module):
    """A convolution whose filters are centred and scaled before use, times a learned gain.

    Filter k is used as gain_k · (w_k − mean(w_k)) / sqrt(max(n · var(w_k), eps)), n its number of
    weights (Qiao et al. 2019, with the gain of Brock et al. 2021).

    It is no `nn.Conv2d` on purpose: a gradient rule for convolutions differentiates by the filter
    in use, not by the weight behind it, and would be silently wrong here.
    """

    def __init__(
        self,
        channels: int,
        filters: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        eps: float = 1e-4,
    ) -> None:
        super().__init__()
        self.stride = stride
        self.padding = padding
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(filters, channels, kernel, kernel))
        self.gain = nn.Parameter(torch.ones(filters))
        self.bias = nn.Parameter(torch.zeros(filters))
        _scale_by_fan_in(self.weight)

    def filters(self) -> Tensor:
        """Return the filters in use."""
        centred = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        squares = centred.square().sum(dim=(1, 2, 3), keepdim=True)  # n · var
        scale = self.gain.view(-1, 1, 1, 1) * squares.clamp(min=self.eps).rsqrt()
        return centred * scale

    def forward(self, x: Tensor) -> Tensor:
        """Convolve `x` with the standardised filters."""
        return F.conv2d(x, self.filters(), self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        """Sizes, as `nn.Conv2d` prints them."""
        filters, channels, kernel, _ = self.weight.shape
        return (
            f"{channels}, {filters}, kernel_size=({kernel}, {kernel}), "
            f"stride={self.stride}, padding={self.padding}"
        )


class _Layer(nn.Sequential):
    """Activation, group normalisation, convolution; padded so that stride 1 keeps the size."""

    def __init__(
        self, style: _Style, channels: int, filters: int, kernel: int, stride: int = 1
    ) -> None:
        super().__init__()
        self.activation = style.activation()
        self.norm = nn.GroupNorm(style.groups, channels)
        self.conv = style.conv(channels, filters, kernel, stride)


class _Style:
    """What all layers of one network share."""

    def __init__(self, activation: ActivationFactory, groups: int, standardize: bool) -> None:
        self.activation = activation
        self.groups = groups
        self.standardize = standardize

    def conv(self, channels: int, filters: int, kernel: int, stride: int = 1) -> nn.Module:
        kind = StandardizedConv2d if self.standardize else nn.Conv2d
        conv = kind(channels, filters, kernel, stride=stride, padding=kernel // 2)
        if isinstance(conv, nn.Conv2d):
            _initialise(conv)
        return conv


class _Block(nn.Module):
    """Two 3x3 layers around a skip; the first block of a group has a 1x1 layer on its skip."""

    def __init__(self, style: _Style, channels: int, filters: int, stride: int, first: bool):
        super().__init__()
        self.skip = _Layer(style, channels, filters, 1, stride) if first else nn.Identity()
        self.first = _Layer(style, channels, filters, 3, stride)
        self.second = _Layer(style, filters, filters, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.skip(x) + self.second(self.first(x))


class WideResNet(nn.Sequential):
    """A wide residual network of `depth` = 6·k + 4 layers for small images.

    Args:
        depth: 10, 16, 22, 28, 40, ...
        width: the factor on 16, 32 and 64 channels.
        channels: the image's channels.
        classes: how many outputs.
        activation: makes one activation module.
        groups: groups of each normalisation: 1, 2, 4, 8 or 16.
        standardize: standardise the weights of every convolution.
    """

    def __init__(
        self,
        depth: int,
        width: int,
        *,
        channels: int,
        classes: int,
        activation: ActivationFactory,
        groups: int = 16,
        standardize: bool = False,
    ) -> None:
        super().__init__()
        if whole("depth", depth, least=10) % 6 != 4:
            raise OptionError("depth", depth, "must be 6k + 4: 10, 16, 22, 28, 34, 40")
        if groups not in _GROUPS:
            raise OptionError(
                "groups", groups, "must divide the stem's 16 channels: 1, 2, 4, 8, 16"
            )
        if not isinstance(standardize, bool):
            raise OptionError("standardize", standardize, "must be True or False")
        style = _Style(activation, groups, standardize)
        self.stem = style.conv(channels, _STEM, 3)
        before = _STEM
        for number, (base, stride) in enumerate(((16, 1), (32, 2), (64, 2)), start=1):
            filters = base * whole("width", width)
            blocks = [_Block(style, before, filters, stride, first=True)]
            blocks += [
                _Block(style, filters, filters, 1, first=False) for _ in range((depth - 4) // 6 - 1)
            ]
            self.add_module(f"group{number}", nn.Sequential(*blocks))
            before = filters
        self.activation = style.activation()
        self.norm = nn.GroupNorm(groups, before)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.classifier = nn.Linear(before, classes)
        _initialise(self.classifier)


def _scale_by_fan_in(weight: Tensor) -> None:
    """Truncated normal of variance 1 / fan-in, the reference implementation's choice."""
    deviation = 1 / math.sqrt(weight[0].numel())
    nn.init.trunc_normal_(weight, std=deviation, a=-2 * deviation, b=2 * deviation)


def _initialise(layer: nn.Conv2d | nn.Linear) -> None:
    _scale_by_fan_in(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def _card(depth: int, width: int, paper: str, classes: int) -> ModelCard:
    return ModelCard(
        name=f"wrn-{depth}-{width}",
        paper=paper,
        summary=f"wide residual network, depth {depth}, width {width}, group normalisation",
        input_shape=(3, 32, 32),
        classes=classes,
        activation="relu",
        options=(
            Option("groups", 16, "groups of each normalisation: 1, 2, 4, 8 or 16"),
            Option("standardize", False, "standardise the weights of every convolution"),
        ),
        notes=(
            "Standardised convolutions need a gradient rule of their own; "
            "plain nn.Conv2d layers are used unless asked for.",
        ),
    )


def _sized(
    depth: int,
    width: int,
    *,
    classes: int,
    input_shape: Shape,
    activation: ActivationFactory,
    groups: int,
    standardize: bool,
) -> nn.Module:
    channels, *sides = image(f"wrn-{depth}-{width}", input_shape)
    if min(sides) < _LEAST_SIDE:
        raise OptionError(
            "input_shape",
            input_shape,
            f"wrn-{depth}-{width} needs height and width of at least {_LEAST_SIDE}",
        )
    return WideResNet(
        depth,
        width,
        channels=channels,
        classes=classes,
        activation=activation,
        groups=groups,
        standardize=standardize,
    )


WRN_16_4 = _card(16, 4, "De et al. 2022; PD-SGD (CIFAR-10 from scratch)", classes=10)
WRN_28_2 = _card(28, 2, "PD-SGD, appendix (CIFAR-100 from scratch)", classes=100)
register(WRN_16_4)(partial(_sized, 16, 4))
register(WRN_28_2)(partial(_sized, 28, 2))
