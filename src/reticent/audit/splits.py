"""Who trains the target, who trains the shadow models, and who trains neither.

Membership inference is judged on records that the target was trained on and records that it was
not; whoever attacks has records of the same kind for models of their own. The papers cut a data set
2:1:2:1 into these four parts (Salem et al. 2019 and the work that follows them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from reticent.errors import DataError, OptionError, positive, whole

RATIO = (2.0, 1.0, 2.0, 1.0)
PARTS = ("target_train", "target_test", "shadow_train", "shadow_test")


@dataclass(frozen=True, eq=False)
class AuditSplit:
    """Positions of the records of each part, ascending; together every record once.

    Attributes:
        target_train: What the audited model is trained on: the members.
        target_test: What it is not trained on: the non-members.
        shadow_train: What the attacker's models may be trained on.
        shadow_test: The attacker's own non-members.
    """

    target_train: Tensor
    target_test: Tensor
    shadow_train: Tensor
    shadow_test: Tensor

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """How many records each part has, in the order of `PARTS`."""
        return (
            len(self.target_train),
            len(self.target_test),
            len(self.shadow_train),
            len(self.shadow_test),
        )

    @property
    def n(self) -> int:
        """How many records there are in all."""
        return sum(self.sizes)

    def mask(self, part: str) -> Tensor:
        """A part as [n] booleans."""
        if part not in PARTS:
            raise OptionError("part", part, f"must be one of {', '.join(PARTS)}")
        found = torch.zeros(self.n, dtype=torch.bool)
        found[getattr(self, part)] = True
        return found

    def audited(self, most: int | None = None, *, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Records to try an attack on: positions, and which of them are members.

        As many members as non-members, drawn at random, so that guessing is right half of the time.

        Args:
            most: How many of each at most; by default as many as the smaller part has.
            seed: Decides which.
        """
        each = min(len(self.target_train), len(self.target_test))
        each = each if most is None else min(each, whole("most", most))
        generator = _generator(seed)
        picked = [
            rows[torch.randperm(len(rows), generator=generator)[:each]].sort().values
            for rows in (self.target_train, self.target_test)
        ]
        return torch.cat(picked), torch.arange(2 * each) < each

    def shadow_memberships(self, count: int, *, seed: int = 0) -> Tensor:
        """[count, n] booleans: what each shadow model is trained on.

        Each draws as many records as `shadow_train` has from the attacker's two parts, and nothing
        from the target's.
        """
        whole("count", count)
        generator = _generator(seed)
        own = torch.cat([self.shadow_train, self.shadow_test])
        members = torch.zeros((count, self.n), dtype=torch.bool)
        for row in members:
            picked = torch.randperm(len(own), generator=generator)[: len(self.shadow_train)]
            row[own[picked]] = True
        return members


def split(
    n: int,
    *,
    ratio: Sequence[float] = RATIO,
    labels: Tensor | None = None,
    seed: int = 0,
) -> AuditSplit:
    """Cut n records into the four parts at random, sizes to the nearest whole numbers.

    Args:
        n: How many records there are.
        ratio: The parts' shares, in the order of `PARTS`.
        labels: [n]; with them, every class is cut alike: a part has at most 5/3 records of a class
            more or fewer than its share. The sizes are the same as without.
        seed: Decides which record goes where.

    Example:
        >>> split(60000).sizes
        (20000, 10000, 20000, 10000)
    """
    n = whole("n", n, least=len(PARTS))
    sizes = part_sizes(n, ratio)
    order = torch.randperm(n, generator=_generator(seed))
    if labels is None:
        groups = torch.repeat_interleave(torch.arange(len(PARTS)), torch.tensor(sizes))
    else:
        if labels.dim() != 1 or len(labels) != n or labels.is_floating_point():
            raise DataError(
                f"labels have shape {tuple(labels.shape)} and type {labels.dtype}: must be {n} "
                "whole numbers"
            )
        order = order[torch.argsort(labels.cpu()[order], stable=True)]
        groups = torch.tensor(_spread(sizes))
    rows = [order[groups == part].sort().values for part in range(len(PARTS))]
    return AuditSplit(*rows)


def part_sizes(n: int, ratio: Sequence[float] = RATIO) -> list[int]:
    """Whole numbers in this ratio that add up to n: those with the largest remainders round up.

    >>> part_sizes(10)
    [3, 2, 3, 2]
    """
    if len(ratio) != len(PARTS):
        raise OptionError("ratio", tuple(ratio), f"must be {len(PARTS)} numbers")
    shares = [positive("ratio", share) for share in ratio]
    exact = [n * share / sum(shares) for share in shares]
    sizes = [int(share) for share in exact]
    by_remainder = sorted(range(len(PARTS)), key=lambda part: sizes[part] - exact[part])
    for part in by_remainder[: n - sum(sizes)]:
        sizes[part] += 1
    if 0 in sizes:
        raise OptionError(
            "ratio", tuple(ratio), f"leaves no record of {n} to {PARTS[sizes.index(0)]}"
        )
    return sizes


def _spread(sizes: Sequence[int]) -> list[int]:
    """A sequence with `sizes[j]` times j whose every beginning is nearly in proportion.

    Tijdeman 1980, "The chairman assignment problem": with k parts of shares λ, after t places no
    part has more than 1 − 1/(2k−2) more or fewer than λt. A stretch, such as a class, is off by at
    most twice that. Among the parts with λt − x ≥ 1/(2k−2), the one that is due first comes next.
    """
    n, slack = sum(sizes), 2 * len(sizes) - 2
    counts, found = [0] * len(sizes), []
    for t in range(1, n + 1):
        # behind[j] = n·(λt − x), whole numbers throughout
        behind = [size * t - count * n for size, count in zip(sizes, counts, strict=True)]
        due = [
            (((slack - 1) * n - slack * late) / size, part)
            for part, (late, size) in enumerate(zip(behind, sizes, strict=True))
            if slack * late >= n
        ]
        chosen = min(due)[1]
        counts[chosen] += 1
        found.append(chosen)
    return found


def in_out(n: int, count: int, *, seed: int = 0) -> Tensor:
    """[count, n] memberships with every record in exactly half of the models, at random.

    Carlini et al. 2022, "Membership inference attacks from first principles", section V-A: the
    attack on a record needs models with it and models without it.

    Example:
        >>> in_out(1000, 8).sum(0).unique()
        tensor([4])
    """
    whole("n", n)
    if whole("count", count) % 2:
        raise OptionError("count", count, "must be even: every record is in half of the models")
    draws = torch.rand((count, n), generator=_generator(seed), dtype=torch.float64)
    return draws.argsort(0) < count // 2


def out_only(n: int, count: int, audited: Tensor, *, share: float = 0.5, seed: int = 0) -> Tensor:
    """[count, n] memberships with the audited records in no model, for attacks without "in" models.

    Each model has the same number of the other records, drawn at random.

    Args:
        n: How many records the pool has.
        count: How many models.
        audited: Positions, or [n] booleans.
        share: Which part of the other records a model has.
        seed: Decides which.
    """
    whole("count", count)
    outside = torch.ones(whole("n", n), dtype=torch.bool)
    if audited.dtype == torch.bool and audited.shape != (n,):
        raise OptionError("audited", tuple(audited.shape), f"as a mask must have shape ({n},)")
    outside[audited.cpu()] = False
    others = outside.nonzero()[:, 0]
    each = round(len(others) * positive("share", share))
    if not 1 <= each <= len(others):
        raise OptionError("share", share, f"asks for {each} of {len(others)} records")
    generator = _generator(seed)
    members = torch.zeros((count, n), dtype=torch.bool)
    for row in members:
        row[others[torch.randperm(len(others), generator=generator)[:each]]] = True
    return members


def take(data: Any, rows: Tensor) -> Any:
    """These records of a tensor, or of tuples and dicts of tensors."""
    return tree_map(lambda column: column[rows.to(column.device)], data)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(whole("seed", seed, least=0))
