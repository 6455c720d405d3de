"""RMIA: each record against population records, by relative likelihood (Zarifzadeh et al. 2024)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reticent.audit.attacks.base import (
    IN,
    OUT,
    POPULATION,
    SHADOW_POPULATION,
    SHADOWS,
    Attack,
    Scores,
)
from reticent.audit.signals import Evidence, losses
from reticent.errors import OptionError, between, finite


@dataclass(frozen=True)
class RMIA(Attack):
    """The share of population records z that x beats: P_z[LR(x, z) ≥ γ].

    LR(x, z) = (p(x|θ)/p(x)) / (p(z|θ)/p(z)) with p(·|θ) the label's probability under the target
    and p(·) under reference models:

        p(x) = ½(p_in + p_out)               online: means over models with and without x
        p(x) = ½((1 + a)·p_out + (1 − a))    offline: p_in taken as a·p_out + 1 − a

    The second is also used online for population records that no reference model was trained on.

    Args:
        online: Whether reference models trained on the record are used.
        gamma: γ ≥ 1, how clearly x must beat z. The authors use 2.
        a: In [0, 1]; 1 takes p_in for p_out, 0 takes it for 1. Depends on how strongly models
            over-fit.
    """

    online: bool = True
    gamma: float = 2.0
    a: float = 0.3

    name: ClassVar[str] = "rmia"
    title: ClassVar[str] = "RMIA: relative likelihood against other records"
    paper: ClassVar[str] = "Zarifzadeh, Liu & Shokri 2024"
    needs: ClassVar[frozenset[str]] = frozenset({SHADOWS, POPULATION, SHADOW_POPULATION})

    def __post_init__(self) -> None:
        if finite("gamma", self.gamma) < 1:
            raise OptionError("gamma", self.gamma, "must be 1 or greater, such as 2")
        between("a", self.a, 0, 1)

    def score(self, evidence: Evidence) -> Scores:
        """Share of population records whose relative likelihood x exceeds γ-fold."""
        values, members = self._shadows(evidence)
        population = self._population(evidence)
        others = self._shadow_population(evidence)
        seen = evidence.shadow_population_members
        if seen is None:
            seen = torch.zeros(others.shape, dtype=torch.bool)
        self._enough(OUT, ~members, 1)
        if self.online:
            self._enough(IN, members, 1)
        x = -evidence.target.losses - self._log_mean(values, members)
        z = -population.losses - self._log_mean(others, seen)
        z = z[(~seen).any(0)]  # the approximation knows only models without the record
        if not len(z):
            raise self._missing(POPULATION)
        # LR ≥ γ is log-ratio z ≤ log-ratio x − log γ: ranks among sorted z, not n·m comparisons
        beaten = torch.searchsorted(z.sort().values, x - math.log(self.gamma), right=True)
        return Scores.of_all(beaten.double() / len(z))

    def _log_mean(self, confidences: Tensor, members: Tensor) -> Tensor:
        """The logarithm of p(·) [n]; never p(·) itself, which may vanish."""
        logs = -losses(confidences)  # log p_y
        out = _log_average(logs, ~members)
        sure = torch.full_like(out, math.log1p(-self.a)) if self.a < 1 else None
        offline = out + math.log1p(self.a)
        if sure is not None:
            offline = torch.logaddexp(offline, sure)
        if self.online:
            both = torch.logaddexp(out, _log_average(logs, members))
            offline = torch.where(members.any(0), both, offline)
        return offline - math.log(2)


def _log_average(logs: Tensor, which: Tensor) -> Tensor:
    """The logarithm of the mean over the models in `which`; −inf where there are none."""
    return torch.where(which, logs, -torch.inf).logsumexp(0) - which.sum(0).clamp_min(1).log()
