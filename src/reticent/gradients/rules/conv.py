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
from math import prod
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from reticent.gradients import kernels, rounding
from reticent.gradients.rules.base import (
    Grads,
    NoFastPathError,
    Rule,
    joined,
    pieces,
    register_rule,
)
from reticent.gradients.rules.lengths import sizes, squares, wide_dtype
from reticent.gradients.rules.linear import gram_measures, measures_of, writing_is_cheaper


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
    brief = frozenset({"bias"})

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
        if kernels.takes_conv(conv, x, g):
            return 2 * g.shape[2:].numel() ** 2 >= conv.weight.numel()
        inner = (x.shape[1] // conv.groups) * prod(conv.kernel_size)
        return writing_is_cheaper(g.shape[2:].numel(), inner, g.shape[1] // conv.groups)

    def squared_norms(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """By Gram matrices or instantiation, whichever is smaller."""
        return self.measures(module, x, g, roles)[0]

    def measures(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> tuple[Grads, Grads]:
        """Masses come with the Gram matrices."""
        conv = cast(_ConvNd, module)
        gram = "weight" in roles and not self.instantiates(module, x, g)
        masses = self.mass(module, x, g, set(roles) - {"weight"} if gram else roles)
        squared = {role: mass.square() for role, mass in masses.items()}
        norms: Grads = {}
        if gram:
            parts = _pieces(conv, x, g, windows=not _by_pixels(conv, x, g))
            found = [_gram_measures(conv, a, b) for a, b in parts]
            norms["weight"], squared["weight"] = (joined(list(f)) for f in zip(*found, strict=True))
        elif "weight" in roles and kernels.takes_conv(conv, x, g):
            norms["weight"] = kernels.conv_norms(conv, x, g)
        elif "weight" in roles:
            norms["weight"] = joined([_written_norms(conv, *p) for p in _pieces(conv, x, g)])
        if "bias" in roles:
            norms["bias"] = squares(g.flatten(2).sum(2))
        return norms, squared

    def mass(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Σ_t ‖g_t‖‖u_t‖ over windows u is at most ‖g‖‖U‖; and Σ_t ‖g_t‖ at most ‖g‖√T.

        A pixel lies in at most as many windows as the kernel has taps, or taps per stride where
        they are next to each other.
        """
        conv = cast(_ConvNd, module)
        if not roles:
            return {}
        size = sizes(g)
        found: Grads = {"bias": size * g.shape[2:].numel() ** 0.5} if "bias" in roles else {}
        if "weight" in roles:
            shapes = zip(conv.kernel_size, conv.stride, conv.dilation, strict=True)
            often = prod(-(-k // s) if d == 1 else k for k, s, d in shapes)
            seen = x if conv.padding_mode == "zeros" else _padded(conv, x)
            found["weight"] = size * sizes(seen) * often**0.5
        return found

    def prepared(
        self,
        module: nn.Module,
        x: Tensor,
        g: Tensor,
        factors: Tensor,
        roles: Collection[str],
        ours: bool,
    ) -> tuple[Tensor, Tensor]:
        """Channels last, which the matrix units want: other layouts are turned on every call."""
        if (
            kernels.takes_conv(cast(_ConvNd, module), x, g)
            and x.is_contiguous()
            and g.is_contiguous()
        ):
            return (
                kernels.channels_last(x, factors, scaled=False),
                kernels.channels_last(g, factors, scaled=True),
            )
        return super().prepared(module, x, g, factors, roles, ours)

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """G Uᵀ, group by group."""
        conv = cast(_ConvNd, module)
        grads: Grads = {}
        if "weight" in roles:
            if kernels.takes_conv(conv, x, g):
                grads["weight"] = kernels.conv_written(conv, x, g)
            else:
                grads["weight"] = joined([_written(conv, a, b) for a, b in _pieces(conv, x, g)])
        if "bias" in roles:
            grads["bias"] = g.flatten(2).sum(2, dtype=wide_dtype(g))
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


def _pieces(
    conv: _ConvNd, x: Tensor, g: Tensor, *, windows: bool = True
) -> list[tuple[Tensor, Tensor]]:
    """The batch in pieces, by the size of an example's windows or of its pixels' Gram matrices."""
    if windows:
        return pieces(x, g, x.shape[1] * prod(conv.kernel_size) * g.shape[2:].numel())
    pixels = prod(size + a + b for size, a, b in _padded_sizes(conv, x))
    return pieces(x, g, 2 * conv.groups * pixels**2)


def _written(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """G Uᵀ, group by group: [B, O, C/G, *kernel]."""
    split = _split(conv, g)
    windows = _windows(conv, x, g).reshape(*split.shape[:2], -1, split.shape[3])
    return (split @ windows.mT).reshape(x.shape[0], *conv.weight.shape)


def _written_norms(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Squared norms [B] of the written-out gradients."""
    return squares(_written(conv, x, g))


def _gram_measures(conv: _ConvNd, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Squared norms [B] and masses from Gram matrices."""
    if kernels.takes_conv(conv, x, g) and _by_pixels(conv, x, g):
        return _pixel_measures(conv, x, g)
    split = _split(conv, g)
    norms, masses = gram_measures(_gram(conv, x, g), split.mT @ split)
    return norms.sum(1), masses.sum(1)


def _pixel_measures(conv: _ConvNd, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """The same from the Gram matrices of single pixels, shifted and added up in one kernel."""
    flat, split = x.flatten(2).mT, g.flatten(2).mT  # views in either order of memory
    with rounding.products_like_convolutions(x.device):
        pixels, outer = flat @ flat.mT, split @ split.mT
    return measures_of(kernels.window_terms(conv, pixels, outer, x, g), outer.shape[1])


def _by_pixels(conv: _ConvNd, x: Tensor, g: Tensor) -> bool:
    """Whether the Gram matrix of windows is cheaper from that of single pixels."""
    positions, taps = g.shape[2:].numel(), prod(conv.kernel_size)
    pixels = prod(size + a + b for size, a, b in _padded_sizes(conv, x))
    channels = x.shape[1] // conv.groups
    # Multiplications of either way; the shifted sums are bound by memory, hence the weight of 8.
    return pixels**2 * channels + 8 * taps * positions**2 < positions**2 * channels * taps


def _gram(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Gram matrices of the windows, [B, G, T, T]."""
    if _by_pixels(conv, x, g):
        return _pixel_gram(conv, x, g)
    windows = _windows(conv, x, g).reshape(x.shape[0], conv.groups, -1, g.shape[2:].numel())
    return windows.mT @ windows


def _pixel_gram(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """The same from the pixels' Gram matrices: shifted copies are added up, axis by axis."""
    batch, groups, dims = x.shape[0], conv.groups, len(conv.kernel_size)
    padded = _padded(conv, x)
    sizes, positions = padded.shape[2:], g.shape[2:].numel()
    flat = padded.reshape(batch, groups, x.shape[1] // groups, -1)
    total = (flat.mT @ flat).reshape(batch * groups, *sizes, *sizes)
    for axis, taps in enumerate(conv.kernel_size):
        gap, step, length = conv.dilation[axis], conv.stride[axis], g.shape[2 + axis]
        parts = []
        for tap in range(taps):
            cut = slice(tap * gap, tap * gap + (length - 1) * step + 1, step)
            every: list[slice] = [slice(None)] * (1 + 2 * dims)
            every[1 + axis] = every[1 + dims + axis] = cut
            parts.append(total[tuple(every)])
        total = parts[0] if taps == 1 else parts[0] + parts[1]
        for part in parts[2:]:
            total += part
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
