"""Confidence intervals for shares and for the area under a ROC curve.

All are two-sided at level `confidence` = 1 − α. Which of them are exact (hold for every number of
records) and which are approximations is said with each.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, ndtri, xlogy

# DeLong's variance is trusted from this many members and non-members on,
FEWEST = 50
# and if the rarer outcome (pairs in the wrong order, say) is expected this often among them.
OTHERS = 10  # records that must not share the commonest value
RARER = 10.0


@dataclass(frozen=True)
class Estimate:
    """A number and the interval it is known within."""

    value: float
    low: float
    high: float

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high

    def to_json(self) -> dict[str, float]:
        """The three numbers by name."""
        return asdict(self)


def clopper_pearson(successes: int, trials: int, confidence: float) -> Estimate:
    """A share of independent trials; exact (Clopper & Pearson 1934).

    >>> found = clopper_pearson(0, 100, 0.95)
    >>> found.low, round(found.high, 4)  # 1 - 0.025 ** (1 / 100)
    (0.0, 0.0362)
    """
    tail = (1 - confidence) / 2
    low, high = 0.0, 1.0
    if successes > 0:
        low = float(betaincinv(successes, trials - successes + 1, tail))
    if successes < trials:
        high = float(betaincinv(successes + 1, trials - successes, 1 - tail))
    return Estimate(successes / trials, low, high)


def mean_of_two(first: tuple[int, int], second: tuple[int, int], confidence: float) -> Estimate:
    """The mean of two independent shares, each given as (successes, trials).

    The squares of Wilson's deviations are added (Newcombe 1998, method 10, for p₁ + p₂ instead of
    p₁ − p₂). An approximation, good from a few trials on and never empty at 0 or 1.
    """
    parts = [_wilson(successes, trials, confidence) for successes, trials in (first, second)]
    down = math.hypot(*(part.value - part.low for part in parts)) / 2
    up = math.hypot(*(part.high - part.value for part in parts)) / 2
    value = sum(part.value for part in parts) / 2
    return Estimate(value, max(0.0, value - down), min(1.0, value + up))


def _wilson(successes: int, trials: int, confidence: float) -> Estimate:
    share, z = successes / trials, _quantile(confidence)
    middle = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    half *= z / (1 + z * z / trials)
    # rounding must not leave the share outside
    return Estimate(share, max(0.0, min(middle - half, share)), min(1.0, max(middle + half, share)))


def supremum(value: float, n_first: int, n_second: int, confidence: float) -> Estimate:
    """sup(TPR − FPR) over all thresholds, from its value on n_first and n_second records; exact.

    Each empirical distribution function lies within √(ln(4/α) / 2n) of its true one everywhere,
    both together with probability 1 − α (Dvoretzky, Kiefer & Wolfowitz 1956 with the constant of
    Massart 1990). The choice of the best threshold is thereby paid for.
    """
    room = math.log(4 / (1 - confidence)) / 2
    width = math.sqrt(room / n_first) + math.sqrt(room / n_second)
    return Estimate(value, max(0.0, value - width), min(1.0, value + width))


def area(
    of_members: NDArray[np.float64], of_others: NDArray[np.float64], confidence: float
) -> tuple[Estimate, str]:
    """The AUC and its interval, from each record's share of opponents it is told apart from.

    Args:
        of_members: For each member, the share of non-members with a lower score (ties count half).
        of_others: For each non-member, the share of members with a higher score.
        confidence: 1 − α.

    Returns:
        The estimate and the name of its interval. "delong": the variance of DeLong, DeLong &
        Clarke-Pearson (1988), on the logit scale; an approximation for many records. "chernoff":
        every θ with k·KL(AUC ‖ θ) ≤ ln(2/α), k the smaller number of records. This one holds for
        any number of records, since the AUC is a mean over all matchings of k independent pairs
        (Hoeffding 1963, section 5), and is used where the variance cannot be trusted.
    """
    auc = min(max(float(of_members.mean()), 0.0), 1.0)  # a mean may round to just above 1
    fewest = min(len(of_members), len(of_others))
    few = fewest < FEWEST or min(auc, 1 - auc) * fewest < RARER
    if few or _tied(of_members) or _tied(of_others):
        return _chernoff(auc, fewest, confidence), "chernoff"
    variance = float(of_members.var(ddof=1)) / len(of_members)
    variance += float(of_others.var(ddof=1)) / len(of_others)
    if variance <= 0:
        return _chernoff(auc, fewest, confidence), "chernoff"
    middle = math.log(auc / (1 - auc))
    half = _quantile(confidence) * math.sqrt(variance) / (auc * (1 - auc))
    return Estimate(auc, _logistic(middle - half), _logistic(middle + half)), "delong"


def _tied(shares: NDArray[np.float64]) -> bool:
    """Whether nearly all have one value: the variance then rests on the few others."""
    _, counts = np.unique(shares, return_counts=True)
    return bool(len(shares) - counts.max() < OTHERS)


def _chernoff(auc: float, pairs: int, confidence: float) -> Estimate:
    limit = math.log(2 / (1 - confidence)) / pairs

    def outside(theta: float) -> bool:
        divergence = xlogy(auc, auc) + xlogy(1 - auc, 1 - auc)
        return bool(divergence - xlogy(auc, theta) - xlogy(1 - auc, 1 - theta) > limit)

    return Estimate(auc, _edge(outside, 0.0, auc), _edge(outside, 1.0, auc))


def _edge(outside: Callable[[float], bool], far: float, near: float) -> float:
    """Where `outside` turns true between `near` (inside) and `far`, on the safe side."""
    if not outside(far):
        return far
    for _ in range(60):
        middle = (far + near) / 2
        far, near = (middle, near) if outside(middle) else (far, middle)
    return far


def _quantile(confidence: float) -> float:
    return float(ndtri(0.5 + confidence / 2))


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else 1 - 1 / (1 + math.exp(value))
