"""The classifier that learning attacks train on records of known membership."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.errors import DataError, one_of, whole

CLASSIFIERS = ("mlp", "forest")
FEWEST = 10  # examples of each side, or there is nothing to learn
MANY = 20_000  # examples, from which on a tenth is held back to stop by
LOWEST = 1e-30  # probabilities below it are all one to the classifier


class Classifier:
    """Learns to tell members from non-members by their features.

    Args:
        kind: "mlp": 64 hidden units, Adam, standardised features, weights held small (features
            are many and examples often few); with many examples it stops when a tenth of them, held
            back, is no longer judged better. "forest": 100 trees.
        seed: Of all that is random in it.
        most: At most so many examples are learned from, drawn at random.
    """

    def __init__(self, kind: str, seed: int, most: int) -> None:
        self._kind = one_of("classifier", kind, CLASSIFIERS)
        self._seed = whole("seed", seed, least=0) % 2**32
        self._most = whole("most", most, least=2 * FEWEST)

    def fitted(self, features: Tensor, members: Tensor) -> Classifier:
        """Learn from `features` [n, d] and `members` [n] bool."""
        sides = int(members.sum()), int((~members).sum())
        if min(sides) < FEWEST:
            raise DataError(
                f"the attack learns from {sides[0]} members and {sides[1]} non-members: needs at "
                f"least {FEWEST} of each"
            )
        if len(members) > self._most:
            order = np.random.default_rng(self._seed).permutation(len(members))
            chosen = torch.from_numpy(order[: self._most])
            features, members = features[chosen], members[chosen]
        from sklearn.exceptions import ConvergenceWarning

        self._model = self._made(len(members))
        with warnings.catch_warnings():  # stopping at max_iter is no fault
            warnings.simplefilter("ignore", ConvergenceWarning)
            self._model.fit(_array(features), members.numpy())
        return self

    def scores(self, features: Tensor) -> Tensor:
        """Probabilities [n] of being a member, float64."""
        return torch.from_numpy(self._model.predict_proba(_array(features))[:, 1]).double()

    def _made(self, examples: int) -> Any:
        # takes seconds to import, which only these attacks are worth
        from sklearn.ensemble import RandomForestClassifier
        from sklearn.neural_network import MLPClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

        if self._kind == "forest":
            return RandomForestClassifier(
                n_estimators=100, min_samples_leaf=5, random_state=self._seed
            )
        network = MLPClassifier(
            hidden_layer_sizes=(64,),
            solver="adam",
            alpha=2.0,
            early_stopping=examples > MANY,
            max_iter=200,
            random_state=self._seed,
        )
        return make_pipeline(StandardScaler(), network)


def log_probabilities(posteriors: Tensor) -> Tensor:
    """Posteriors on a scale where 0.99 and 0.9999 differ as they do for an attacker."""
    return posteriors.clamp_min(LOWEST).log()


def _array(features: Tensor) -> NDArray[np.float64]:
    return features.double().numpy()
