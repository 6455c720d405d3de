"""Records that occur twice, exactly or nearly.

A non-member that is a copy of a member looks like a member to every attack, and a member with a
copy among the non-members hides. An audit should leave such records out, or say how many there are.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_matrix
from torch import Tensor

from reticent.errors import DataError, OptionError, not_negative, one_of, whole
from reticent.gradients import rounding

KINDS = ("auto", "values", "tokens")
CLOSE = {"values": 0.1, "tokens": 0.5}
"""The thresholds taken if none is given."""

AXES = 64  # directions that pairs are sifted by
SAMPLE = 4096  # records that these directions are found from
NUMBERS = 1 << 25  # handled at once where pairs are compared in full

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pairs = Iterator[tuple[Ints, Ints, Floats]]  # records of a, of b, and their distances


@dataclass(frozen=True, eq=False)
class Duplicates:
    """Which records of `a` have a double. Near ones include exact ones."""

    kind: str
    threshold: float
    exact_across: Tensor
    """[len(a)] bool: the same bytes occur in `b`."""
    near_across: Tensor
    """[len(a)] bool: a record of `b` lies within the threshold."""
    nearest: Tensor
    """[len(a)] int64: the closest such record of `b`, −1 where there is none."""
    exact_within: Tensor
    """[len(a)] bool: the same bytes occur in another record of `a`."""
    near_within: Tensor
    """[len(a)] bool: another record of `a` lies within the threshold."""
    repeats: Tensor
    """[len(a)] bool: one of these comes earlier in `a`; without the repeats, no two are close."""

    def to_json(self) -> dict[str, Any]:
        """How many records, not which."""
        masks = ("exact_across", "near_across", "exact_within", "near_within", "repeats")
        return {
            "kind": self.kind,
            "threshold": self.threshold,
            "records": len(self.near_across),
            **{name: int(getattr(self, name).sum()) for name in masks},
        }


def near_duplicates(
    a: Tensor,
    b: Tensor | None = None,
    *,
    threshold: float | None = None,
    kind: str = "auto",
    within: bool = True,
    padding: int | None = 0,
    shingle: int = 3,
    device: torch.device | str = "cpu",
    block: int = 4096,
) -> Duplicates:
    """Find the records of `a` that occur in `b`, or again in `a`, exactly or nearly.

    Numbers ("values") are close if ‖x − y‖ is at most `threshold` times the root mean square
    distance of two random records of `a`: 0 is the same, 1 is no closer than any two. Records of
    one dimension (tables) have each column scaled to variance 1 first; images are compared as they
    are. A shifted or mirrored image is not close to its original in this sense.

    Sequences ("tokens") are close if the sets of their runs of `shingle` tokens have a Jaccard
    distance, 1 − |x ∩ y| / |x ∪ y|, of at most `threshold`.

    No close pair is missed: pairs are sifted by bounds that hold for all of them.

    >>> a = torch.tensor([[0.0, 1.0], [5.0, 2.0], [5.0, 2.0]])
    >>> found = near_duplicates(a, torch.tensor([[0.0, 1.0]]))
    >>> found.exact_across.tolist(), found.repeats.tolist()
    ([True, False, False], [False, False, True])

    Args:
        a: Records along dimension 0.
        b: Others of the same shape and dtype; None compares `a` with itself only.
        threshold: 0.1 for values and 0.5 for tokens, if left.
        kind: "auto" takes int32 and int64 of shape [n, length] for tokens and all else for values.
        within: Whether near duplicates inside `a` are looked for (exact ones always are).
        padding: A token that does not count; None if all do.
        shingle: Tokens per run.
        device: Where values are sifted.
        block: Records of each side that are compared at once.
    """
    mine, theirs = a.detach().cpu(), (a[:0] if b is None else b).detach().cpu()
    kind = _kind(mine, theirs, kind)
    limit = CLOSE[kind] if threshold is None else not_negative("threshold", threshold)
    size = whole("block", block)
    finder: _Values | _Tokens
    if kind == "values":
        finder = _Values(mine, limit, torch.device(device), size)
    else:
        if limit >= 1:
            raise OptionError("threshold", threshold, "must be below 1, which all sequences are at")
        finder = _Tokens(mine, theirs, limit, padding, whole("shingle", shingle), size)

    # copies count once: only the first of its kind is compared with others
    ids, other_ids = _identities(mine, theirs)
    _, first, kind_of, copies = np.unique(
        ids, return_index=True, return_inverse=True, return_counts=True
    )
    rank = np.argsort(np.argsort(first))  # kinds are numbered by where they occur first
    first, kind_of = np.sort(first), rank[kind_of]
    kinds_of_b = np.unique(other_ids, return_index=True)[1]

    nearest = np.full(len(first), -1)
    best = np.full(len(first), np.inf)
    for i, j, distance in finder.across(mine[first], theirs[kinds_of_b], first, kinds_of_b):
        order = np.argsort(-distance, kind="stable")  # of several, the last one written stays
        i, j, distance = i[order], j[order], distance[order]
        better = distance < best[i]
        best[i[better]], nearest[i[better]] = distance[better], kinds_of_b[j[better]]

    close, earlier = np.zeros(len(first), dtype=bool), np.zeros(len(first), dtype=bool)
    if within:
        for i, j, _ in finder.within(mine[first], first):
            close[i] = close[j] = earlier[np.maximum(i, j)] = True
    twice = copies[np.argsort(rank)][kind_of] > 1
    found = nearest[kind_of]
    return Duplicates(
        kind=kind,
        threshold=limit,
        exact_across=torch.from_numpy(np.isin(ids, other_ids)),
        near_across=torch.from_numpy(found >= 0),
        nearest=torch.from_numpy(found),
        exact_within=torch.from_numpy(twice),
        near_within=torch.from_numpy(twice | close[kind_of]),
        repeats=torch.from_numpy((first[kind_of] != np.arange(len(ids))) | earlier[kind_of]),
    )


def _kind(a: Tensor, b: Tensor, kind: str) -> str:
    if a.ndim < 2 or a.shape[1:] != b.shape[1:] or a.dtype != b.dtype or not len(a):
        raise DataError(
            f"a and b are {a.dtype} of shape {tuple(a.shape)} and {b.dtype} of shape "
            f"{tuple(b.shape)}: must be records of one shape and dtype along dimension 0"
        )
    whole_numbers = a.dtype in (torch.int32, torch.int64) and a.ndim == 2
    if one_of("kind", kind, KINDS) == "auto":
        return "tokens" if whole_numbers else "values"
    if kind == "tokens" and not whole_numbers:
        raise OptionError("kind", kind, "takes int32 or int64 of shape [n, length]")
    return kind


def _identities(a: Tensor, b: Tensor) -> tuple[Ints, Ints]:
    """A number for each record, equal if and only if the bytes are (but for hash collisions)."""
    digests = [
        hashlib.blake2b(row, digest_size=16).hexdigest()
        for records in (a, b)
        for row in records.flatten(1).contiguous().view(torch.uint8).numpy()
    ]
    numbers = np.unique(np.array(digests), return_inverse=True)[1].astype(np.int64).reshape(-1)
    return numbers[: len(a)], numbers[len(a) :]


def _refuse_non_finite(name: str, records: Tensor) -> None:
    if records.is_floating_point() and not bool(records.isfinite().all()):
        raise DataError(f"{name} holds NaN or infinity: give finite numbers")


class _Values:
    """Pairs of records whose numbers are close.

    Projected on orthonormal directions, no distance grows: pairs that are too far apart there need
    not be compared in full. Directions in which records vary most sift best.
    """

    def __init__(self, a: Tensor, limit: float, device: torch.device, block: int) -> None:
        self._device, self._block = device, block
        _refuse_non_finite("a", a)
        width = a[0].numel()
        self._mean, variance = torch.zeros(2, width, dtype=torch.float64)
        for part in a.split(block):  # never all of it in double precision
            self._mean += part.flatten(1).sum(0, dtype=torch.float64) / len(a)
        for part in a.split(block):
            variance += ((part.flatten(1).double() - self._mean) ** 2).sum(0) / len(a)
        self._scale = torch.ones_like(variance)
        if a.ndim == 2:
            self._scale[variance > 0] = variance[variance > 0].rsqrt()
        # two independent records lie at squared distance 2 Σ variance in the mean
        self._unit = math.sqrt(2 * float((variance * self._scale**2).sum()))
        self._reach = limit * self._unit
        self._axes = self._directions(a)
        formats = rounding.allowed(device)
        self._slack = 4e-2 if "bf16" in formats else 4e-3 if "tf32" in formats else 1e-5

    def _scaled(self, records: Tensor) -> Tensor:
        return (records.flatten(1).double() - self._mean) * self._scale

    def _directions(self, a: Tensor) -> Tensor | None:
        """Orthonormal columns near the first principal directions (Halko et al. 2011)."""
        generator = torch.Generator().manual_seed(0)
        width = self._mean.numel()
        if width <= AXES:
            return None
        some = self._scaled(a[torch.randperm(len(a), generator=generator)[:SAMPLE]])
        axes = torch.randn(width, AXES, generator=generator, dtype=torch.float64)
        for _ in range(3):
            axes = torch.linalg.qr(some.T @ (some @ torch.linalg.qr(axes).Q)).Q
        return axes

    def _short(self, records: Tensor) -> Tensor:
        parts = []
        for part in records.split(self._block):
            full = self._scaled(part)
            parts.append((full if self._axes is None else full @ self._axes).float())
        return torch.cat(parts).to(self._device)

    def across(self, a: Tensor, b: Tensor, _: Ints, __: Ints) -> Pairs:
        """Close pairs between two sets."""
        if not len(b):
            return
        _refuse_non_finite("b", b)
        short_a, short_b = self._short(a), self._short(b)
        for i in range(0, len(a), self._block):
            for j in range(0, len(b), self._block):
                yield from self._block_pairs(a, b, short_a, short_b, i, j)

    def within(self, a: Tensor, _: Ints) -> Pairs:
        """Close pairs of one set, each once."""
        short = self._short(a)
        for i in range(0, len(a), self._block):
            for j in range(i, len(a), self._block):
                yield from self._block_pairs(a, a, short, short, i, j, i == j)

    def _block_pairs(
        self, a: Tensor, b: Tensor, p: Tensor, q: Tensor, i: int, j: int, upper: bool = False
    ) -> Pairs:
        x, y = p[i : i + self._block], q[j : j + self._block]
        squares = (x**2).sum(1)[:, None] + (y**2).sum(1)
        maybe = squares * (1 - self._slack) - 2 * (x @ y.T) <= self._reach**2 * (1 + self._slack)
        if upper:
            maybe = maybe.triu(1)
        places = maybe.nonzero().cpu() + torch.tensor([i, j])
        for some in places.split(max(1, NUMBERS // self._mean.numel())):
            gap = a[some[:, 0]].flatten(1).double() - b[some[:, 1]].flatten(1).double()
            distance = (gap * self._scale).norm(dim=1)
            near = distance <= self._reach
            found = some[near].numpy()
            yield found[:, 0], found[:, 1], distance[near].numpy()


class _Tokens:
    """Pairs of sequences that share most of their runs of tokens.

    If two sets share a share t of the larger one, the rarest (1 − t)·size + 1 elements of each have
    one in common (Chaudhuri et al. 2006, prefix filtering): only pairs that meet there are counted.
    """

    def __init__(
        self, a: Tensor, b: Tensor, limit: float, padding: int | None, shingle: int, block: int
    ) -> None:
        self._share, self._block, self._n = 1 - limit, block, len(a)
        rows, runs = _runs(torch.cat([a, b]).numpy().astype(np.int64), padding, shingle)
        counts = np.bincount(runs)
        rarity = np.empty(len(counts), dtype=np.int64)
        rarity[np.argsort(counts, kind="stable")] = np.arange(len(counts))
        order = np.lexsort((rarity[runs], rows))
        rows, runs = rows[order], rarity[runs][order]
        sizes = np.bincount(rows, minlength=len(a) + len(b))
        starts = np.concatenate([[0], np.cumsum(sizes)])
        shape = (len(sizes), len(counts))
        self._sets = csr_matrix((np.ones(len(runs), dtype=np.int32), runs, starts), shape=shape)
        kept = sizes - np.ceil(self._share * sizes - 1e-9).astype(np.int64) + 1
        rare = np.arange(len(runs)) - starts[rows] < kept[rows]
        self._rare = csr_matrix(
            (np.ones(int(rare.sum()), dtype=np.int32), (rows[rare], runs[rare])), shape=shape
        )
        self._sizes = sizes

    def across(self, _: Tensor, __: Tensor, first: Ints, second: Ints) -> Pairs:
        """Close pairs between two sets."""
        if len(second):
            yield from self._pairs(first, second + self._n)

    def within(self, _: Tensor, first: Ints) -> Pairs:
        """Close pairs of one set, each once."""
        yield from self._pairs(first, first, upper=True)

    def _pairs(self, first: Ints, second: Ints, *, upper: bool = False) -> Pairs:
        columns = self._rare[second].T.tocsr()
        for start in range(0, len(first), self._block):
            i, j = (self._rare[first[start : start + self._block]] @ columns).nonzero()
            i = i.astype(np.int64) + start
            if upper:
                i, j = i[i < j], j[i < j]
            for at in range(0, len(i), 1 << 16):
                ii, jj = i[at : at + (1 << 16)], j[at : at + (1 << 16)].astype(np.int64)
                x, y = first[ii], second[jj]
                common = np.asarray(self._sets[x].multiply(self._sets[y]).sum(1)).reshape(-1)
                union = self._sizes[x] + self._sizes[y] - common
                near = common >= self._share * union - 1e-9
                yield ii[near], jj[near], 1 - common[near] / union[near]


def _runs(tokens: Ints, padding: int | None, length: int) -> tuple[Ints, Ints]:
    """Rows and numbers of all distinct runs of `length` tokens, padding dropped.

    A sequence shorter than that is one run, filled up; so is an empty one.
    """
    counted = tokens != padding if padding is not None else np.ones_like(tokens, dtype=bool)
    lengths = counted.sum(1)
    order = np.argsort(~counted, axis=1, kind="stable")
    packed = np.unique(np.take_along_axis(tokens, order, 1), return_inverse=True)[1]
    packed = packed.reshape(tokens.shape).astype(np.int64) + 1
    packed[np.arange(tokens.shape[1]) >= lengths[:, None]] = 0
    missing = max(0, length - tokens.shape[1])
    packed = np.pad(packed, ((0, 0), (0, missing)))
    places = packed.shape[1] - length + 1
    rows, starts = np.nonzero(np.arange(places) <= np.maximum(lengths - length, 0)[:, None])
    names = packed[rows, starts]
    base = int(packed.max()) + 1
    for step in range(1, length):  # numbered anew at each token, so that they never overflow
        names = np.unique(names * base + packed[rows, starts + step], return_inverse=True)[1]
        names = names.reshape(-1).astype(np.int64)
    both = np.unique(rows * (int(names.max()) + 1) + names)
    return np.divmod(both, int(names.max()) + 1)
