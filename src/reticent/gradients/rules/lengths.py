"""Lengths of gradients, in whatever order and precision they lie in memory."""

from __future__ import annotations

import torch
from torch import Tensor

# Numbers that are squared and added one after the other, within a rounding error of 1e-6.
IN_A_ROW = 1024


def sizes(values: Tensor) -> Tensor:
    """Norms [B] of [B, ...], reading once, in whatever order they lie in memory."""
    return _norms(in_memory(values).flatten(1))


def _norms(rows: Tensor) -> Tensor:
    """On a CPU squares are added one after the other: of 10⁷ equal ones that loses 1 %."""
    if rows.device.type != "cpu" or rows.shape[1] <= IN_A_ROW:
        return torch.linalg.vector_norm(rows, dim=1)
    even = rows.shape[1] - rows.shape[1] % IN_A_ROW
    parts = torch.linalg.vector_norm(rows[:, :even].unflatten(1, (-1, IN_A_ROW)), dim=2)
    rest = torch.linalg.vector_norm(rows[:, even:], dim=1, keepdim=True)
    return _norms(torch.cat([parts, rest], 1))


def squares(grads: Tensor) -> Tensor:
    """Squared norms [B] of [B, ...]."""
    return sizes(grads).square()


def in_memory(values: Tensor) -> Tensor:
    """[B, ...] with the other dimensions in the order of memory, so that `flatten` is a view."""
    if values.is_contiguous():
        return values
    order = sorted(range(1, values.ndim), key=lambda d: values.stride(d), reverse=True)
    return values.permute(0, *order)


def wide(tensor: Tensor) -> Tensor:
    """Half precision widened to float32: a norm rounded to 8 bits cannot bound anything."""
    return tensor.to(wide_dtype(tensor)) if tensor.is_floating_point() else tensor


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """The type to add up its values in."""
    half = tensor.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if half else tensor.dtype
