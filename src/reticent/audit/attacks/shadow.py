"""Black-Box/Shadow: a classifier learns from shadow models what members look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from reticent.audit.attacks.base import SHADOWS, Attack, Scores
from reticent.audit.attacks.classifier import CLASSIFIERS, Classifier
from reticent.audit.signals import Evidence
from reticent.errors import one_of, whole


@dataclass(frozen=True)
class Shadow(Attack):
    """Sorted posteriors and whether the prediction is right, judged by a learned classifier.

    For each shadow model and record, whether the one was trained on the other is known; all models'
    examples are pooled. The records are the audited ones, or the population where shadow models
    were trained on a part of that (as in the papers' 2:1:2:1 split). The classifier is then applied
    to the target's outputs.

    Args:
        classifier: "mlp" or "forest".
        top: How many of the greatest posteriors are looked at. They go in as logits, log p/(1 − p),
            as plain ones of over-fitted models all round to 0 or 1.
        seed: Of the classifier.
        most: Examples learned from, drawn at random where there are more.
    """

    classifier: str = "mlp"
    top: int = 10
    seed: int = 0
    most: int = 50_000

    name: ClassVar[str] = "shadow"
    title: ClassVar[str] = "Black-Box/Shadow: a classifier of posteriors"
    paper: ClassVar[str] = "Salem et al. 2019; as in Fu et al. 2024, section 6.4"
    needs: ClassVar[frozenset[str]] = frozenset({SHADOWS})

    def __post_init__(self) -> None:
        one_of("classifier", self.classifier, CLASSIFIERS)
        whole("top", self.top)
        whole("seed", self.seed, least=0)
        whole("most", self.most, least=100)

    def score(self, evidence: Evidence) -> Scores:
        """The classifier's probabilities of membership."""
        logits, members, labels = self._examples(evidence)
        learned = torch.cat([self._features(one, labels) for one in logits])
        judge = Classifier(self.classifier, self.seed, self.most)
        judge.fitted(learned, members.flatten())
        labels = evidence.target.labels
        return Scores.of_all(judge.scores(self._features(evidence.target.logits, labels)))

    def _examples(self, evidence: Evidence) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [K, r, classes], memberships [K, r] and labels [r] of the records learned from."""
        self._shadows(evidence)
        known, population = evidence.shadow_population_members, evidence.population
        if evidence.shadow_population is not None and known is not None and population is not None:
            return evidence.shadow_population, known, population.labels
        assert evidence.shadow_logits is not None
        assert evidence.shadow_members is not None
        return evidence.shadow_logits, evidence.shadow_members, evidence.target.labels

    def _features(self, logits: Tensor, labels: Tensor) -> Tensor:
        correct = logits.argmax(1) == labels
        ranked = logits.double().sort(1, descending=True).values
        shown = min(self.top, ranked.shape[1])
        # log p/(1 − p) of each of the greatest, from the logits: no digits are lost at p = 1
        total = ranked.logsumexp(1, keepdim=True)
        first = ranked[:, :1] - ranked[:, 1:].logsumexp(1, keepdim=True)
        logs = ranked[:, 1:shown] - total
        others = logs - torch.log1p(-logs.exp())  # none but the first exceeds one half
        return torch.cat([first, others, correct.double()[:, None]], 1).float()
