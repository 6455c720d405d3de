"""Convolutions in one, two and three dimensions.

A convolution is a linear map of windows: with U the [C·K, T] matrix of the padded input's windows,
one example's gradient is g Uᵀ, group by group. Windows are a strided view of the padded input.

Norms: written out (bmm of g and U), or by Gram matrices when 2T² is smaller (Bu, Mao, Xu 2022,
"mixed ghost clipping"). The Gram matrix of windows is a sum of shifted copies of the Gram matrix of
single pixels, (UᵀU)_ts = Σ_k p_{t+k}·p_{s+k}: for stride 1 that is K times less arithmetic.

The weighted sum is the ordinary weight gradient with scaled output gradients.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import product
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from reticent.gradients.rules.base import (
    Grads,
    NoFastPathError,
    Rule,
    joined,
    pieces,
    register_rule,
)
from reticent.gradients.rules.linear import gram_norms, writing_is_cheaper


def _padded(conv: _ConvNd, x: Tensor) -> Tensor:
    """The input with its padding written out, as the layer itself sees it."""
    pads = list(conv._reversed_padding_repeated_twice)
    if not any(pads):
        return x
    if conv.padding_mode == "zeros":
        return F.pad(x, pads)
    return F.pad(x, pads, mode=conv.padding_mode)


def _windows(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """[B, G, C/G, *kernel, *output] view of the padded input: no copy."""
    padded = _padded(conv, x)
    spatial = padded.stride()[2:]
    channels = padded.shape[1] // conv.groups
    return padded.as_strided(
        (padded.shape[0], conv.groups, channels, *conv.kernel_size, *g.shape[2:]),
        (
            padded.stride(0),
            padded.stride(1) * channels,
            padded.stride(1),
            *(s * d for s, d in zip(spatial, conv.dilation, strict=True)),
            *(s * d for s, d in zip(spatial, conv.stride, strict=True)),
        ),
        padded.storage_offset(),
    )


def _split(conv: _ConvNd, g: Tensor) -> Tensor:
    """Output gradients as [B, G, O/G, T]."""
    return g.reshape(g.shape[0], conv.groups, g.shape[1] // conv.groups, -1)


class ConvRule(Rule):
    """x is [B, C, *spatial], g is [B, O, *output]."""

    parameters = frozenset({"weight", "bias"})

    def argument(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """One batched tensor: an unbatched image would be taken for a batch of channels."""
        x = super().argument(module, args, kwargs)
        if x.ndim != len(cast(_ConvNd, module).kernel_size) + 2:
            raise NoFastPathError(f"its input has {x.ndim} dimensions: no batch dimension")
        return x

    def positions(self, module: nn.Module, x: Tensor) -> tuple[int, ...]:
        """The spatial sizes."""
        return tuple(x.shape[2:])

    def instantiates(self, module: nn.Module, x: Tensor, g: Tensor) -> bool:
        """Whether writing the gradients out is cheaper than the Gram matrices."""
        conv = cast(_ConvNd, module)
        inner = (x.shape[1] // conv.groups) * prod(conv.kernel_size)
        return writing_is_cheaper(g.shape[2:].numel(), inner, g.shape[1] // conv.groups)

    def squared_norms(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """By Gram matrices or instantiation, whichever is smaller."""
        conv = cast(_ConvNd, module)
        norms: Grads = {}
        if "weight" in roles:
            take = _written_norms if self.instantiates(module, x, g) else _gram_norms
            norms["weight"] = joined([take(conv, a, b) for a, b in _pieces(conv, x, g)])
        if "bias" in roles:
            norms["bias"] = g.flatten(2).sum(2).square().sum(1)
        return norms

    def mass(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Σ_t ‖g_t‖‖u_t‖ over windows u, and Σ_t ‖g_t‖."""
        conv = cast(_ConvNd, module)
        heights = _split(conv, g).norm(dim=2)  # [B, G, T]
        sizes: Grads = {"bias": heights.sum((1, 2))} if "bias" in roles else {}
        if "weight" in roles:
            sizes["weight"] = (_window_norms(conv, x, g) * heights).sum((1, 2))
        return sizes

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """G Uᵀ, group by group."""
        conv = cast(_ConvNd, module)
        grads: Grads = {}
        if "weight" in roles:
            grads["weight"] = joined([_written(conv, a, b) for a, b in _pieces(conv, x, g)])
        if "bias" in roles:
            grads["bias"] = g.flatten(2).sum(2)
        return grads

    def weighted_sum(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """The ordinary weight gradient, as `torch.nn.grad.conv2d_weight` computes it."""
        conv = cast(_ConvNd, module)
        grads: Grads = {}
        if "weight" in roles:
            padding: list[int] = [0] * len(conv.kernel_size)
            if conv.padding_mode == "zeros" and not isinstance(conv.padding, str):
                padding = list(conv.padding)
            else:
                x = _padded(conv, x)
            grads["weight"] = torch.ops.aten.convolution_backward(
                g,
                x,
                x.new_empty(1).expand(conv.weight.shape),
                None,
                list(conv.stride),
                padding,
                list(conv.dilation),
                False,
                [0] * len(conv.kernel_size),
                conv.groups,
                (False, True, False),
            )[1]
        if "bias" in roles:
            grads["bias"] = g.transpose(0, 1).flatten(1).sum(1)
        return grads


def _window_norms(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Norms of the windows, [B, G, T]: box sums of the pixels' squared norms, axis by axis."""
    padded = _padded(conv, x)
    energy = padded.reshape(x.shape[0] * conv.groups, -1, *padded.shape[2:]).square().sum(1)
    for axis, taps in enumerate(conv.kernel_size):
        length = (g.shape[2 + axis] - 1) * conv.stride[axis] + 1
        every = (*(slice(None),) * (1 + axis), slice(None, None, conv.stride[axis]))
        parts = [
            energy.narrow(1 + axis, tap * conv.dilation[axis], length)[every] for tap in range(taps)
        ]
        energy = parts[0] if taps == 1 else parts[0] + parts[1]
        for part in parts[2:]:
            energy += part
    return energy.reshape(x.shape[0], conv.groups, -1).sqrt()


def _pieces(conv: _ConvNd, x: Tensor, g: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The batch in pieces, by the size of an example's windows."""
    return pieces(x, g, x.shape[1] * prod(conv.kernel_size) * g.shape[2:].numel())


def _written(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """G Uᵀ, group by group: [B, O, C/G, *kernel]."""
    split = _split(conv, g)
    windows = _windows(conv, x, g).reshape(*split.shape[:2], -1, split.shape[3])
    return (split @ windows.mT).reshape(x.shape[0], *conv.weight.shape)


def _written_norms(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Squared norms [B] of the written-out gradients."""
    return _written(conv, x, g).flatten(1).square().sum(1)


def _gram_norms(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Squared norms [B] from Gram matrices."""
    split = _split(conv, g)
    return gram_norms(_gram(conv, x, g), split.mT @ split).sum(1)


def _gram(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Gram matrices of the windows, [B, G, T, T]."""
    batch, groups = x.shape[0], conv.groups
    kernel, output = conv.kernel_size, tuple(g.shape[2:])
    sizes = [s + a + b for s, a, b in _padded_sizes(conv, x)]
    positions, pixels, taps = prod(output), prod(sizes), prod(kernel)
    channels = x.shape[1] // groups
    # Multiplications of either way; the shifted sums are bound by memory, hence the weight of 8.
    if pixels**2 * channels + 8 * taps * positions**2 >= positions**2 * channels * taps:
        windows = _windows(conv, x, g).reshape(batch, groups, -1, positions)
        return windows.mT @ windows
    return _pixel_gram(conv, x, g)


def _pixel_gram(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """The same from the pixels' Gram matrices: shifted copies, one per tap of the kernel."""
    batch, groups = x.shape[0], conv.groups
    output = tuple(g.shape[2:])
    padded = _padded(conv, x)
    sizes, positions = padded.shape[2:], prod(output)
    flat = padded.reshape(batch, groups, x.shape[1] // groups, -1)
    single = (flat.mT @ flat).reshape(batch * groups, *sizes, *sizes)
    total: Tensor | None = None
    for shift in product(*(range(k) for k in conv.kernel_size)):
        cut = tuple(
            slice(k * d, k * d + (n - 1) * s + 1, s)
            for k, d, n, s in zip(shift, conv.dilation, output, conv.stride, strict=True)
        )
        both = (slice(None), *cut, *cut)
        part = single[both]
        total = part.clone() if total is None else total.add_(part)
    assert total is not None
    return total.reshape(batch, groups, positions, positions)


def _padded_sizes(conv: _ConvNd, x: Tensor) -> list[tuple[int, int, int]]:
    """(size, padding before, padding after) of each spatial dimension."""
    pads = conv._reversed_padding_repeated_twice
    count = len(conv.kernel_size)
    return [
        (x.shape[2 + i], pads[2 * (count - 1 - i)], pads[2 * (count - 1 - i) + 1])
        for i in range(count)
    ]


for _kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
    register_rule(_kind, ConvRule())
