"""White-Box/Partial: a classifier learns from a part of the members what the rest looks like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from reticent.audit.attacks.base import WHITEBOX, Attack, Scores
from reticent.audit.attacks.classifier import CLASSIFIERS, Classifier, log_probabilities
from reticent.audit.signals import Evidence, Signals, WhiteBox
from reticent.errors import OptionError, finite, one_of, whole


@dataclass(frozen=True)
class PartialWhiteBox(Attack):
    """The target's gradients, embeddings, losses and posteriors, judged by a learned classifier.

    The adversary holds the model and knows the membership of a random part of the audited records.
    That part is drawn without regard to membership, `members` is read there and nowhere else, and
    only the other records are judged.

    Features: the logarithms of the gradient's norm, of the last layer's and of the loss; a sketch
    of the last layer's gradient (below) and its bias's; the embedding; log-posteriors; the label.

    The last layer's gradient is an outer product e ⊗ h of error and embedding. It is shown as the
    `sketch` products (Aᵀe)ⱼ·(Bᵀh)ⱼ with random signs A and B, whose inner products are those of the
    gradients in expectation. Embeddings longer than `sketch` are projected likewise.

    Args:
        known: Share of the audited records whose membership the adversary knows.
        classifier: "mlp" or "forest".
        sketch: Length of the sketches.
        seed: Of the known part, the sketches and the classifier.
        most: Examples learned from, drawn at random where there are more.
    """

    known: float = 0.5
    classifier: str = "mlp"
    sketch: int = 32
    seed: int = 0
    most: int = 50_000

    name: ClassVar[str] = "white-box"
    title: ClassVar[str] = "White-Box/Partial: a classifier of gradients and embeddings"
    paper: ClassVar[str] = "Nasr et al. 2019; as in Fu et al. 2024, section 6.4"
    needs: ClassVar[frozenset[str]] = frozenset({WHITEBOX})

    def __post_init__(self) -> None:
        if not 0 < finite("known", self.known) < 1:
            raise OptionError("known", self.known, "must lie between 0 and 1, such as 0.5")
        one_of("classifier", self.classifier, CLASSIFIERS)
        whole("sketch", self.sketch)
        whole("seed", self.seed, least=0)
        whole("most", self.most, least=100)

    def known_part(self, n: int) -> Tensor:
        """[n] bool: the records whose membership the adversary knows."""
        order = np.random.default_rng([self.seed, 1]).permutation(n)
        known = torch.zeros(n, dtype=torch.bool)
        known[torch.from_numpy(order[: round(self.known * n)])] = True
        return known

    def score(self, evidence: Evidence) -> Scores:
        """The classifier's probabilities of membership, for records outside the known part."""
        features = self._features(evidence.target, self._whitebox(evidence))
        known = self.known_part(len(features))
        judge = Classifier(self.classifier, self.seed, self.most)
        judge.fitted(features[known], evidence.members[known])
        return Scores(judge.scores(features[~known]), ~known)

    def _features(self, said: Signals, inside: WhiteBox) -> Tensor:
        errors, embeddings = inside.errors.double(), inside.embeddings.double()
        wide = embeddings @ self._signs(embeddings.shape[1], 2)
        gradients = (errors @ self._signs(errors.shape[1], 3)) * wide
        numbers = torch.stack([inside.norms.double(), inside.last_norms.double(), said.losses], 1)
        return torch.cat(
            [
                log_probabilities(numbers),
                gradients,
                errors,
                embeddings if embeddings.shape[1] <= self.sketch else wide,
                log_probabilities(said.posteriors),
                F.one_hot(said.labels, said.classes).double(),
            ],
            1,
        )

    def _signs(self, rows: int, stream: int) -> Tensor:
        drawn = np.random.default_rng([self.seed, stream]).integers(0, 2, (rows, self.sketch))
        return torch.from_numpy(2.0 * drawn - 1.0) / self.sketch**0.5
