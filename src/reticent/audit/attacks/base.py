"""What all attacks share: one call from evidence to scores, and a clear word on what is missing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reticent.audit.metrics import Leakage, measure
from reticent.audit.signals import Evidence, Signals, WhiteBox
from reticent.errors import DataError

SHADOWS, POPULATION, WHITEBOX = "shadows", "population", "whitebox"
SHADOW_POPULATION = "shadow-population"

_HOW = {
    SHADOWS: "shadow_logits and shadow_members: train shadow models and ask them about the "
    "audited records",
    POPULATION: "population: ask the target about records that are neither in its training set "
    "nor audited",
    SHADOW_POPULATION: "shadow_population: ask the shadow models about the population records too",
    WHITEBOX: "whitebox: signals.look_inside(model, inputs, labels) on the audited records",
}


@dataclass(frozen=True, eq=False)
class Scores:
    """An attack's opinion on the records it judges, and only on those.

    `values` has one entry per judged record, not per audited one: pairing it with the truth of all
    records fails by its length unless all are judged. `measure` pairs them rightly.
    """

    values: Tensor
    """[j] float64; the higher, the more likely a member."""
    judged: Tensor
    """[n] bool: the j audited records that were judged."""

    def __post_init__(self) -> None:
        if self.values.ndim != 1 or len(self.values) != int(self.judged.sum()):
            raise DataError(
                f"values has shape {tuple(self.values.shape)} for {int(self.judged.sum())} records"
            )

    @classmethod
    def of_all(cls, values: Tensor) -> Scores:
        """Every audited record is judged."""
        return cls(values.double(), torch.ones(len(values), dtype=torch.bool))

    def measure(self, members: Tensor, *, confidence: float = 0.95) -> Leakage:
        """What the scores reveal; `members` [n] bool is the truth of all audited records."""
        if members.shape != self.judged.shape:
            raise DataError(
                f"members has shape {tuple(members.shape)}: must be {tuple(self.judged.shape)}, "
                "the truth of every audited record"
            )
        return measure(self.values, members[self.judged], confidence=confidence)


class Attack(ABC):
    """Guesses who was trained on. Subclasses are frozen dataclasses of their options."""

    name: ClassVar[str]
    title: ClassVar[str]
    paper: ClassVar[str]
    needs: ClassVar[frozenset[str]]

    @abstractmethod
    def score(self, evidence: Evidence) -> Scores:
        """Scores of the judged records, higher for likely members."""

    def measure(self, evidence: Evidence, *, confidence: float = 0.95) -> Leakage:
        """Score the evidence and compare with the truth."""
        return self.score(evidence).measure(evidence.members, confidence=confidence)

    def _missing(self, what: str) -> DataError:
        return DataError(f"the attack {self.name!r} lacks evidence: give {_HOW[what]}")

    def _shadows(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        """Confidences [K, n] and memberships [K, n] of the shadow models."""
        if evidence.shadow_confidence is None or evidence.shadow_members is None:
            raise self._missing(SHADOWS)
        return evidence.shadow_confidence, evidence.shadow_members

    def _population(self, evidence: Evidence) -> Signals:
        if evidence.population is None or not len(evidence.population):
            raise self._missing(POPULATION)
        return evidence.population

    def _shadow_population(self, evidence: Evidence) -> Tensor:
        """Confidences [K, m] of the shadow models."""
        if evidence.shadow_population_confidence is None:
            raise self._missing(SHADOW_POPULATION)
        return evidence.shadow_population_confidence

    def _whitebox(self, evidence: Evidence) -> WhiteBox:
        if evidence.whitebox is None:
            raise self._missing(WHITEBOX)
        return evidence.whitebox

    def _enough(self, side: str, which: Tensor, least: int) -> None:
        """Refuse records that fewer than `least` shadow models saw (or did not see)."""
        counts = which.sum(0)
        short = int((counts < least).sum())
        if short:
            raise DataError(
                f"the attack {self.name!r} needs at least {least} shadow models that {side} each "
                f"audited record; {short} of {len(counts)} records have fewer (the fewest: "
                f"{int(counts.min())}). Train more shadow models, each on a random half of a pool "
                "that holds the audited records"
            )


IN, OUT = "were trained on", "were not trained on"


def moments(values: Tensor, which: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared deviations [n] over the models (dimension 0) in `which`."""
    count = which.sum(0)
    mean = torch.where(which, values, 0.0).sum(0) / count
    squares = torch.where(which, (values - mean) ** 2, 0.0).sum(0)
    return count, mean, squares
