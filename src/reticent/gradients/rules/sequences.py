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

ALL = slice(None)


class Inputs(NamedTuple):
    """The inputs' pre-activations [B, T, G] of each direction, or what to compute them from.

    Where x [B, T, I + 1] (see `with_ones`), W_ih [D, G, I] and its bias are given, `parts` only
    have the shape: pre-activations computed a few steps at a time never leave the CPU's cache.
    """

    parts: Sequence[Tensor]
    x: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def at(self, some: slice) -> list[Tensor]:
        """What `put` needs of some steps: [n, B, ·] of each direction."""
        return taken(self.parts if self.x is None else [self.x] * len(self.parts), some)

    def put(
        self, whole: Tensor, owns: Sequence[Tensor], bias: Tensor | None, columns: slice = ALL
    ) -> None:
        """Write the pre-activations in `columns`, plus bias [D, G], to [n, D, B, ·]."""
        if self.weight is None:
            part = None if bias is None else bias[:, columns]
            put(whole, [own[..., columns] for own in owns], part)
            return
        for d, own in enumerate(owns):
            weight = self.weight[d, columns]
            if bias is None:
                own = own[..., :-1]
            else:  # the ones' weight: handed to `addmm`, it would be copied to every row first
                weight = torch.cat([weight, bias[d, columns, None]], 1)
            rows = own.flatten(0, 1)
            torch.mm(rows, weight.mT, out=whole[:, d].view(len(rows), len(weight)))

    def with_own(self, bias: Tensor | None) -> Tensor | None:
        """A bias for `put`, together with the inputs' own if that is missing."""
        return bias if self.bias is None or bias is None else bias + self.bias


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


def empty(parts: Sequence[Tensor], lease: Lease | None = None) -> Tensor:
    """Memory [T, D, B, G] for [B, T, G] of each direction."""
    batch, length, width = parts[0].shape
    return memory(parts[0], lease, length, len(parts), batch, width)


def memory(
    like: Tensor, lease: Lease | None, length: int, directions: int, batch: int, width: int
) -> Tensor:
    """[T, D, B, G]; on the CPU a direction's steps follow each other, as rows of one product."""
    if like.device.type != "cpu":
        return like.new_empty(length, directions, batch, width)
    return taken_from(lease, like, directions, length, batch, width).transpose(0, 1)


def with_ones(x: Tensor) -> Tensor:
    """[B, T, I] as [B, T, I + 1] with ones at the end, in memory in the order of the steps."""
    batch, length, width = x.shape
    rows = x.new_empty(length, batch, width + 1)
    rows[..., :-1] = x.transpose(0, 1)
    rows[..., -1] = 1.0
    return rows.transpose(0, 1)


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
    whole = empty(parts)
    for some in blocks(whole):
        put(whole[some], taken(parts, some), bias, shared)
    return whole


def like(whole: Tensor) -> list[Tensor]:
    """Memory [B, T, G] for each direction."""
    length, directions, batch, width = whole.shape
    return [whole.new_empty(batch, length, width) for _ in range(directions)]


def give(parts: list[Tensor], some: slice, whole: Tensor) -> None:
    """Some steps the other way."""
    for d, (part, own) in enumerate(zip(parts, whole.unbind(1), strict=True)):
        length = part.shape[1]
        place = part[:, length - some.stop : length - some.start] if d else part[:, some]
        place.copy_((own.flip(0) if d else own).transpose(0, 1))


def given(whole: Tensor | Sequence[Tensor]) -> list[Tensor]:
    """All steps of [T, D, B, G], or of T tensors [D, B, G], as [B, T, G] for each direction."""
    whole = whole if isinstance(whole, Tensor) else torch.stack(list(whole))
    parts = like(whole)
    for some in blocks(whole):
        give(parts, some, whole[some])
    return parts


def together(whole: Tensor) -> Tensor:
    """All steps of [T, D, B, G] as [B, T, D·G]."""
    length, directions, batch, width = whole.shape
    both = whole.new_empty(batch, length, directions * width)
    parts = list(both.chunk(directions, -1))
    for some in blocks(whole):
        give(parts, some, whole[some])
    return both


def room(first: Tensor, steps: int, lease: Lease | None = None) -> Tensor:
    """Memory for a state before, between and after the steps."""
    states = taken_from(lease, first, steps + 1, *first.shape)
    states[0] = first
    return states
