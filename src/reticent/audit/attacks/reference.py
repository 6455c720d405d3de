"""Each record against what models not trained on it say of that very record (Ye et al. 2022, R)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reticent.audit.attacks.base import OUT, SHADOWS, Attack, Scores, moments
from reticent.audit.signals import Evidence
from reticent.errors import one_of

FITS = ("logit-normal", "empirical")
FLOOR = 1e-6  # of standard deviations: models that agree to the last digit say nothing of spread


@dataclass(frozen=True)
class Reference(Attack):
    """The loss against the reference models' losses on the same record.

    A record is a member at level α if its loss lies below the α-quantile of the losses that
    models have that were not trained on it. As a score: how far out it lies in that law.

    Args:
        fit: The law. "logit-normal": log p/(1 − p) of the label's probability p is normal, with
            each record's own mean and standard deviation; the score is (value − mean)/deviation,
            which orders as its distribution function does but does not saturate. "empirical": the
            share of reference models with a greater loss, ties half, moved by ½ of a model into
            the open interval (0, 1); it has no more levels than models, so it suits many of them.
    """

    fit: str = "logit-normal"

    name: ClassVar[str] = "reference"
    title: ClassVar[str] = "R: reference models' losses on the same record"
    paper: ClassVar[str] = "Ye et al. 2022 (Attack R)"
    needs: ClassVar[frozenset[str]] = frozenset({SHADOWS})

    def __post_init__(self) -> None:
        one_of("fit", self.fit, FITS)

    def score(self, evidence: Evidence) -> Scores:
        """How far the target's confidence lies above those of models new to the record."""
        values, members = self._shadows(evidence)
        out, mine = ~members, evidence.target.confidence
        if self.fit == "empirical":
            self._enough(OUT, out, 1)
            # a smaller confidence is a greater loss
            above = (out & (values < mine)).sum(0) + (out & (values == mine)).sum(0) / 2
            return Scores.of_all((above + 0.5) / (out.sum(0) + 1))
        self._enough(OUT, out, 2)
        count, mean, squares = moments(values, out)
        return Scores.of_all((mine - mean) / deviation(squares / (count - 1)))


def deviation(variance: Tensor) -> Tensor:
    """Standard deviations that can be divided by."""
    return torch.sqrt(variance).clamp_min(FLOOR)
