"""Sequences [B, T, G] of each direction, and the memory [T, D, B, G] a recursion walks through.

There, step 0 of the reverse direction is the last of its sequence.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from reticent.gradients.rules.base import AT_ONCE, CACHED
from reticent.gradients.rules.leases import Lease, taken_from


class Inputs(NamedTuple):
    """The inputs' pre-activations [B, T, G] of each direction, or what to compute them from.

    Where x [B, T, I], W_ih [D, G, I] and its bias are given, `parts` only have the shape.
    """

    parts: Sequence[Tensor]
    x: Tensor | None
    weight: Tensor | None
    bias: Tensor | None


def blocks(whole: Tensor) -> Iterator[slice]:
    """Runs of steps of [T, D, B, G], on the CPU as long as its cache holds.

    Temporary results then stay in the cache, and memory that was just used is used again.
    """
    limit = CACHED // 4 if whole.device.type == "cpu" else AT_ONCE
    length = max(1, limit // max(whole[0].numel(), 1))
    for start in range(0, len(whole), length):
        yield slice(start, min(start + length, len(whole)))


def steps(some: slice) -> range:
    """The numbers of a run of steps."""
    return range(some.start, some.stop)


def memory(
    like: Tensor, lease: Lease | None, length: int, directions: int, batch: int, width: int
) -> Tensor:
    """[T, D, B, G]; on the CPU with a spare row after every step.

    Without it, an example's steps are often a large power of two apart, where a CPU's cache has
    room for a few of them only: a product over the steps then takes up to half as long again.
    """
    if like.device.type != "cpu":
        return like.new_empty(length, directions, batch, width)
    rows = directions * batch
    whole = taken_from(lease, like, length, rows + 1, width)
    return whole[:, :rows].unflatten(1, (directions, batch))


def taken(parts: Sequence[Tensor], some: slice) -> list[Tensor]:
    """Some steps [n, B, G] of each direction."""
    found: list[Tensor] = []
    for d, part in enumerate(parts):
        own, length = part.transpose(0, 1), part.shape[1]
        found.append(own[length - some.stop : length - some.start].flip(0) if d else own[some])
    return found


def put(
    whole: Tensor, owns: Sequence[Tensor], bias: Tensor | None = None, shared: int | None = None
) -> None:
    """Write steps [n, B, G] of each direction to [n, D, B, G], plus bias [D, G].

    With `shared`, only so many columns are taken, and the bias stands alone in the others.
    """
    for d, own in enumerate(owns):
        place, own = whole[:, d, :, :shared], own[..., :shared]
        if bias is None:
            place.copy_(own)
        else:
            torch.add(own, bias[d, :shared], out=place)
    if shared is not None:
        whole[..., shared:] = 0.0 if bias is None else bias[:, None, shared:]


def filled(
    parts: Sequence[Tensor], bias: Tensor | None = None, shared: int | None = None
) -> Tensor:
    """All steps."""
    batch, length, width = parts[0].shape
    whole = parts[0].new_empty(length, len(parts), batch, width)
    for some in blocks(whole):
        put(whole[some], taken(parts, some), bias, shared)
    return whole


def give(parts: Sequence[Tensor], some: slice, whole: Tensor) -> None:
    """Some steps the other way."""
    for d, (part, own) in enumerate(zip(parts, whole.unbind(1), strict=True)):
        length = part.shape[1]
        place = part[:, length - some.stop : length - some.start] if d else part[:, some]
        place.copy_((own.flip(0) if d else own).transpose(0, 1))


def given(whole: Tensor) -> list[Tensor]:
    """All steps of [T, D, B, G] as [B, T, G] for each direction."""
    length, directions, batch, width = whole.shape
    parts = [whole.new_empty(batch, length, width) for _ in range(directions)]
    for some in blocks(whole):
        give(parts, some, whole[some])
    return parts


def views(whole: Tensor) -> list[Tensor]:
    """The same without copying: the reverse direction stays flipped in time."""
    return [own.transpose(0, 1) for own in whole.unbind(1)]


def together(whole: Tensor) -> Tensor:
    """All steps of [T, D, B, G] as [B, T, D·G]."""
    length, directions, batch, width = whole.shape
    both = whole.new_empty(batch, length, directions * width)
    parts = list(both.chunk(directions, -1))
    for some in blocks(whole):
        give(parts, some, whole[some])
    return both


def added(whole: Tensor) -> Tensor:
    """The directions of [T, D, B, G] added up, [B, T, G]."""
    first, *other = views(whole)
    total = torch.empty_like(first, memory_format=torch.contiguous_format).copy_(first)
    for own in other:
        total += own.flip(1)
    return total


def room(first: Tensor, steps: int, lease: Lease | None = None) -> Tensor:
    """Memory for a state before, between and after the steps."""
    states = memory(first, lease, steps + 1, *first.shape)
    states[0] = first
    return states


def with_inputs(first: Tensor, x: Tensor, *, ones: bool) -> Tensor:
    """Rows [h, x, 1] before every step, [T + 1, D, B, H + I + 1]: x [B, T, I] is filled in.

    So is the first h. Behind the last h nothing is: no step follows.
    """
    (directions, batch, width), length = first.shape, x.shape[1]
    rows = memory(first, None, length + 1, directions, batch, width + x.shape[2] + ones)
    rows[0, ..., :width] = first
    put(rows[:-1, ..., width : width + x.shape[2]], taken([x] * directions, slice(0, length)))
    if ones:
        rows[:-1, ..., -1] = 1.0
    return rows
