"""What several fits of private classifiers cost together."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import nn

from reticent.errors import AccountingError, OptionError
from reticent.training.many import together_epsilon
from reticent.training.result import Result

if TYPE_CHECKING:
    from reticent.classifier import PrivateClassifier


class PrivacyWarning(UserWarning):
    """Something that ε does not say by itself."""


class Fits:
    """What the fits of a classifier and of all its clones cost, in this process."""

    def __init__(self) -> None:
        self.results: list[Result] = []
        self.elsewhere = False  # an unfitted copy went to another process, or to a file

    def add(self, result: Result) -> int:
        """Count a fit; how many there are now."""
        self.results.append(replace(result, model=nn.Identity()))  # only its ledger is needed
        return len(self.results)


def spent_together(*classifiers: PrivateClassifier, delta: float | None = None) -> float:
    """An upper bound on ε at `delta` of all fits of these classifiers and of their clones.

    All are counted as if on the same rows, and as if the settings of each followed from those
    before: a search chooses that way. By default δ is the smallest of theirs.

    Example:
        >>> import numpy as np
        >>> from reticent.classifier import PrivateClassifier
        >>> X, y = np.eye(20)[:, :3], np.arange(20) % 2
        >>> a, b = (PrivateClassifier(classes=[0, 1], steps=2).fit(X, y) for _ in range(2))
        >>> a.epsilon_ + b.epsilon_ < spent_together(a, b) < 1.5 * (a.epsilon_ + b.epsilon_)
        True
    """
    from sklearn.utils.validation import check_is_fitted  # here: it takes a second to import

    if not classifiers:
        raise OptionError("classifiers", (), "must be one or more")
    for classifier in classifiers:
        check_is_fitted(classifier, "result_")
    delta = min(classifier.delta_ for classifier in classifiers) if delta is None else delta
    histories = {id(one._fits()): one._fits() for one in classifiers}.values()
    if any(history.elsewhere for history in histories):
        warnings.warn(
            "an unfitted copy went to another process or file; its fits are not known here, so "
            "there is no bound. Search with n_jobs=1",
            PrivacyWarning,
            stacklevel=2,
        )
        return math.inf
    results = [result for history in histories for result in history.results]
    if len(results) == 1 and results[0].ledger.adaptive:
        if delta != results[0].statement.delta:
            raise AccountingError(f"delta = {delta}: an adaptive fit is stated at its own delta")
        return results[0].epsilon
    return together_epsilon(results, delta)
