"""Normalising layers in kernels of their own; see `kernels` for when that is possible."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from reticent.gradients.kernels import is_channels_last, power, usable


@cache
def _triton_norms() -> Any:
    from reticent.gradients import triton_norms

    return triton_norms


def takes_group_norm(x: Tensor, groups: int) -> bool:
    """Whether `group_norm` and `group_norm_back` can take this input [B, C, ...]."""
    if x.ndim < 3 or not usable(x) or x.shape[1] // groups > 1024:
        return False
    if x.is_contiguous():
        return True
    each, block = x.shape[1] // groups, _block(x, groups)
    # channels last: a block holds several groups, which are found by splitting it in halves
    halves = each == power(each) and block == power(block)
    return is_channels_last(x) and halves and x.shape[1] % block == 0


def _block(x: Tensor, groups: int) -> int:
    """How many channels a program takes: a group, or enough of them for whole cache lines."""
    each = x.shape[1] // groups
    return each if x.is_contiguous() else max(each, min(32, x.shape[1]))


def _blocks(x: Tensor, groups: int) -> tuple[list[int], dict[str, int], int]:
    """What both kernels are told of the shape: numbers, sizes of a tile, programs per example."""
    channels, area, block = x.shape[1], x.shape[2:].numel(), _block(x, groups)
    strides = [area, 1] if x.is_contiguous() else [1, channels]
    rows = power(block)
    tile = {
        "GROUPS": block // (channels // groups),
        "CHANNELS": rows,
        "AREA": min(power(area), max(4096 // rows, 8)),
    }
    return [channels, area, block, channels * area, *strides], tile, channels // block


def group_norm(
    x: Tensor, weight: Tensor, bias: Tensor, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The layer's output, and [B, C] means and scales for `group_norm_back`."""
    numbers, tile, programs = _blocks(x, groups)
    y, means, scales = torch.empty_like(x), *x.new_empty(2, *x.shape[:2])
    count = x.shape[1:].numel() // groups
    _triton_norms().group_norm[(programs, len(x))](
        x, weight, bias, y, means, scales, *numbers, eps, count, **tile, num_warps=4
    )
    return y, means, scales


def group_norm_back(
    x: Tensor,
    g: Tensor,
    weight: Tensor,
    means: Tensor,
    scales: Tensor,
    groups: int,
    *,
    wanted: bool = True,
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradient of the input, if `wanted`; per-example ones [B, C] of weight and bias."""
    order = torch.contiguous_format if x.is_contiguous() else torch.channels_last
    g = g.contiguous(memory_format=order)
    numbers, tile, programs = _blocks(x, groups)
    dx = torch.empty_like(x) if wanted else None
    weights, biases = x.new_empty(2, *x.shape[:2])
    count = x.shape[1:].numel() // groups
    _triton_norms().group_norm_back[(programs, len(x))](
        x,
        g,
        weight,
        means,
        scales,
        x if dx is None else dx,
        weights,
        biases,
        *numbers,
        count,
        **tile,
        INPUT=wanted,
        num_warps=4,
    )
    return dx, weights, biases


def takes_layer_norm(x: Tensor, *others: Tensor) -> bool:
    """Whether `layer_norm` and `layer_norm_back` can take these [B, ..., D]."""
    contiguous = all(each.is_contiguous() for each in (x, *others))
    return x.ndim > 1 and contiguous and usable(x, *others) and x.shape[-1] <= 4096


def _rows(x: Tensor) -> tuple[tuple[int, int], dict[str, int], int]:
    """Positions and width, the sizes of a tile, programs per example."""
    positions, width = x.shape[1:-1].numel(), x.shape[-1]
    columns = power(width)
    rows = min(power(positions), max(4096 // columns, 1))
    return (positions, width), {"ROWS": rows, "WIDTH": columns}, -(-positions // rows)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """The layer's output."""
    sizes, tile, programs = _rows(x)
    y = torch.empty_like(x)
    _triton_norms().layer_norm[(programs, len(x))](
        x, weight, bias, y, *sizes, eps, **tile, num_warps=4
    )
    return y


def layer_norm_back(
    x: Tensor, g: Tensor, weight: Tensor, eps: float, *, wanted: bool = True
) -> tuple[Tensor | None, Tensor, Tensor]:
    """Gradient of the input, if `wanted`; per-example ones [B, D] of weight and bias."""
    g = g.contiguous()
    sizes, tile, programs = _rows(x)
    dx = torch.empty_like(x) if wanted else None
    weights, biases = x.new_empty(2, len(x), programs, x.shape[-1])
    _triton_norms().layer_norm_back[(programs, len(x))](
        x,
        g,
        weight,
        x if dx is None else dx,
        weights,
        biases,
        *sizes,
        eps,
        **tile,
        INPUT=wanted,
        num_warps=4,
    )
    if programs == 1:
        return dx, weights[:, 0], biases[:, 0]
    return dx, weights.sum(1), biases.sum(1)
