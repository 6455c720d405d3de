"""Attacks that compare a record's loss with the losses of other records (Ye et al. 2022, P and S).

Both put a threshold on the loss that a share α of non-members falls below, one per class: losses of
classes differ more than those of members and non-members. As a score this is the share of
non-members with a greater loss, whose threshold 1 − α is the same for all classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reticent.audit.attacks.base import POPULATION, SHADOWS, Attack, Scores
from reticent.audit.signals import Evidence, losses
from reticent.errors import DataError, whole


@dataclass(frozen=True)
class Population(Attack):
    """The loss against the target's own losses on population records.

    Args:
        least: A class is compared with itself if it has this many population records, with all
            classes otherwise. 0: always with all.
    """

    least: int = 50

    name: ClassVar[str] = "population"
    title: ClassVar[str] = "P: the target's losses on other records"
    paper: ClassVar[str] = "Ye et al. 2022 (Attack P)"
    needs: ClassVar[frozenset[str]] = frozenset({POPULATION})

    def __post_init__(self) -> None:
        whole("least", self.least, least=0)

    def score(self, evidence: Evidence) -> Scores:
        """Share of population records with a greater loss."""
        target, others = evidence.target, self._population(evidence)
        return Scores.of_all(
            share_above(target.losses, target.labels, others.losses, others.labels, self.least)
        )


@dataclass(frozen=True)
class ShadowLoss(Attack):
    """The loss against the shadow models' losses on records they were not trained on, pooled.

    Args:
        least: As for `Population`, of losses over all models.
    """

    least: int = 50

    name: ClassVar[str] = "shadow-loss"
    title: ClassVar[str] = "S: shadow models' losses on records new to them"
    paper: ClassVar[str] = "Ye et al. 2022 (Attack S)"
    needs: ClassVar[frozenset[str]] = frozenset({SHADOWS})

    def __post_init__(self) -> None:
        whole("least", self.least, least=0)

    def score(self, evidence: Evidence) -> Scores:
        """Share of (shadow model, unseen record) pairs with a greater loss."""
        confidences, members = self._shadows(evidence)
        unseen = ~members
        if not bool(unseen.any()):
            raise DataError(
                f"the attack {self.name!r} needs losses on unseen records, but every shadow model "
                "was trained on all audited ones: train them on random halves"
            )
        target = evidence.target
        labels = target.labels.expand_as(members)[unseen]
        pool = losses(confidences[unseen])
        return Scores.of_all(share_above(target.losses, target.labels, pool, labels, self.least))


def share_above(
    values: Tensor, classes: Tensor, pool: Tensor, pool_classes: Tensor, least: int
) -> Tensor:
    """(#{above} + ½·#{equal} + ½) / (size + 1) of the pool, of the value's own class if it can be.

    The halves keep the share inside (0, 1): what lies below all of a small pool proves less than
    what lies below all of a large one.
    """
    everything = pool.sort().values
    shares = _above(values, everything)
    if not least:
        return shares
    order = pool_classes.sort(stable=True)
    ranked, bounds = pool[order.indices], torch.unique_consecutive(order.values, return_counts=True)
    for number, one in zip(bounds[0].tolist(), ranked.split(bounds[1].tolist()), strict=True):
        if len(one) >= least:
            mine = classes == number
            shares[mine] = _above(values[mine], one.sort().values)
    return shares


def _above(values: Tensor, ranked: Tensor) -> Tensor:
    below = torch.searchsorted(ranked, values.contiguous(), right=False)
    upto = torch.searchsorted(ranked, values.contiguous(), right=True)
    return (len(ranked) - (below + upto).double() / 2 + 0.5) / (len(ranked) + 1)
