"""LiRA: the likelihood ratio of a record's confidence (Carlini et al. 2022), the papers' C-Attack.

φ is `confidence`: log p_y − log Σ_{c≠y} p_c, nearly normal over models trained on random halves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reticent.audit.attacks.base import IN, OUT, SHADOWS, Attack, Scores, moments
from reticent.audit.attacks.reference import deviation
from reticent.audit.signals import Evidence
from reticent.errors import DataError, one_of

VARIANCES = ("auto", "global", "per-record")
MANY = 64  # with fewer models, one variance for all works better (Carlini et al. 2022)


@dataclass(frozen=True)
class LikelihoodRatio(Attack):
    """Is the target's confidence more like that of models with, or without, the record?

    Args:
        online: True: log N(φ; μ_in, σ_in²) − log N(φ; μ_out, σ_out²) (Algorithm 1), which needs
            shadow models that were trained on the record and others that were not. False: only
            the latter, and P[Z ≤ φ] for Z ~ N(μ_out, σ_out²) (equation 4); the score is
            (φ − μ_out)/σ_out, of the same order without saturating.
        variance: "per-record"; "global": one σ_in and one σ_out for all records, pooled around each
            record's own mean; "auto": global with fewer than 64 shadow models.
    """

    online: bool = True
    variance: str = "auto"

    name: ClassVar[str] = "likelihood-ratio"
    title: ClassVar[str] = "C: likelihood ratio (LiRA)"
    paper: ClassVar[str] = "Carlini et al. 2022"
    needs: ClassVar[frozenset[str]] = frozenset({SHADOWS})

    def __post_init__(self) -> None:
        one_of("variance", self.variance, VARIANCES)

    def score(self, evidence: Evidence) -> Scores:
        """Log-likelihood ratios, or offline the standardised distance from the OUT models."""
        values, members = self._shadows(evidence)
        together = self.variance == "global" or (self.variance == "auto" and len(values) < MANY)
        mine = evidence.target.confidence
        mean_out, sigma_out = self._fitted(OUT, values, ~members, together)
        if not self.online:
            return Scores.of_all((mine - mean_out) / sigma_out)
        mean_in, sigma_in = self._fitted(IN, values, members, together)
        return Scores.of_all(
            _log_normal(mine, mean_in, sigma_in) - _log_normal(mine, mean_out, sigma_out)
        )

    def _fitted(
        self, side: str, values: Tensor, which: Tensor, together: bool
    ) -> tuple[Tensor, Tensor]:
        self._enough(side, which, 1 if together else 2)
        count, mean, squares = moments(values, which)
        if not together:
            return mean, deviation(squares / (count - 1))
        spare = int((count - 1).sum())
        if not spare:
            raise DataError(
                f"the attack {self.name!r} cannot tell how confidences vary: no record has two "
                f"shadow models that {side} it. Train more shadow models"
            )
        return mean, deviation(squares.sum() / spare)


def _log_normal(value: Tensor, mean: Tensor, sigma: Tensor) -> Tensor:
    return -(((value - mean) / sigma) ** 2) / 2 - torch.log(sigma) - math.log(2 * math.pi) / 2
