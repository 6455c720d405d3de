"""An explicit pair of data sets on which selection leaks: ε from below.

The loss that a candidate has on the records can be made to fall or rise with x, the noisy sum's
component along one record z. Then the probability a that a candidate passes without z, and b for
tests that draw z, are any functions of x between `low` and `high`. Nearly the worst are

    a   high for x < x₁ and for x > x₃, low between
    b   high for x > x₂, low below

What is returned here is a lower bound on the ε of that instance: every accountant that claims less
is wrong, and the distance to an accountant that claims more is what it may give away at most.
"""

from __future__ import annotations

import math

import numpy as np
from dp_accounting.pld import pld_pmf
from scipy.optimize import minimize
from scipy.special import logsumexp, ndtr

from reticent.privacy.accountants import FFT_ERROR_PER_RELEASE
from reticent.privacy.selective import SelectiveGaussian
from reticent.privacy.selective_tilts import far_end

Thresholds = tuple[float, float, float]  # x1 < x2 < x3

_COARSE_BINS = 600
# Losses are rounded down by less than this share of the composed loss's standard deviation.
_RESOLUTION = 3e-3
_MOST_POINTS = 2**24
# Rounding in the masses of the bins, per release.
_MASS_ERROR = 1e-13


def instance_epsilon(
    charge: SelectiveGaussian, count: int, delta: float, thresholds: Thresholds | None = None
) -> float:
    """At least the ε of `count` releases; the thresholds are optimised where none are given."""
    with_record, without = laws(charge, thresholds or thresholds_for(charge, count, delta))
    return max(
        _epsilon(with_record, without, count, delta), _epsilon(without, with_record, count, delta)
    )


def thresholds_for(charge: SelectiveGaussian, count: int, delta: float) -> Thresholds:
    """Those that are worst at the order which decides at this δ, were the loss Gaussian."""
    with_record, without = laws(charge, worst_thresholds(charge), _COARSE_BINS)
    kept = without > 0
    losses = np.log(with_record[kept] / without[kept])
    square = count * float(with_record[kept] @ losses**2)
    order = 1 + math.sqrt(-2 * math.log(delta) / max(square, 1e-30))
    return worst_thresholds(charge, min(max(order, 1.5), 100.0))


def laws(
    charge: SelectiveGaussian, thresholds: Thresholds, bins: int = 6000
) -> tuple[np.ndarray, np.ndarray]:
    """Masses of bins of x for what is released with z and without it."""
    sigma = charge.multiplier
    inner = np.linspace(-8 * sigma, far_end(charge.rate, sigma), bins)
    edges = np.unique(np.concatenate([inner, np.asarray(thresholds)]))
    middle = np.concatenate([edges[:1] - 1, (edges[1:] + edges[:-1]) / 2, edges[-1:] + 1])
    passed, passed_with = _passing(charge, thresholds, middle)
    base = _between(edges / sigma)
    shifted = _between((edges - 1) / sigma)
    with_record = ((1 - charge.rate) * base + charge.rate * shifted) * passed_with
    without = base * passed
    return with_record / with_record.sum(), without / without.sum()


def worst_thresholds(charge: SelectiveGaussian, order: float = 2.0) -> Thresholds:
    """The thresholds that make the Rényi divergence of this order largest."""
    sigma = charge.multiplier

    def ordered(point: np.ndarray) -> Thresholds:
        # (x2, ln(x2 - x1), ln(x3 - x2)), in units of the noise
        middle, below, above = np.clip(point, -20, 3)
        first, third = middle - math.exp(below), middle + math.exp(above)
        return float(first * sigma), float(middle * sigma), float(third * sigma)

    def loss(point: np.ndarray) -> float:
        with_record, without = laws(charge, ordered(point), _COARSE_BINS)
        kept = without > 0
        terms = order * np.log(with_record[kept] / without[kept]) + np.log(without[kept])
        return -float(logsumexp(terms))

    starts = [np.array([x, y, y]) for x in (-1.0, 0.0, 0.5, 1.0, 2.0) for y in (-1.5, 0.0, 1.0)]
    options = {"xatol": 1e-3, "fatol": 1e-14, "maxiter": 400}
    found = minimize(loss, min(starts, key=loss), method="Nelder-Mead", options=options)
    return ordered(found.x)


def _passing(
    charge: SelectiveGaussian, thresholds: Thresholds, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The probability of passing at x, without z and with it."""
    low, high = charge.passing
    first, second, third = thresholds
    passed = np.where((x < first) | (x > third), high, low)
    drawn = np.where(x > second, high, low)
    return passed, (1 - charge.valid_rate) * passed + charge.valid_rate * drawn


def _between(z: np.ndarray) -> np.ndarray:
    """Standard normal masses left of all z, between neighbours and right of all."""
    left = np.concatenate([[-np.inf], z])
    right = np.concatenate([z, [np.inf]])
    return np.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))


def _epsilon(upper: np.ndarray, lower: np.ndarray, count: int, delta: float) -> float:
    # bins where one law has nothing, or next to nothing, have no loss to rely on: leave them out
    kept = (upper > 1e-30) & (lower > 1e-30)
    upper, lower = upper[kept], lower[kept]
    losses = np.log(upper) - np.log(lower)
    mean = float(upper @ losses)
    deviation = math.sqrt(max(float(upper @ (losses - mean) ** 2), 1e-30))
    interval = _RESOLUTION * deviation / math.sqrt(count)
    extent = float(losses.max() - losses.min())
    interval = max(interval, extent * max(1.0, math.sqrt(count) / 8) / _MOST_POINTS)
    rounded = np.floor(losses / interval).astype(int)
    masses = np.bincount(rounded - rounded.min(), weights=upper)
    pmf = pld_pmf.DensePLDPmf(interval, int(rounded.min()), masses, 0.0, False)
    truncation = 1e-15
    composed = pmf if count == 1 else pmf.self_compose(count, truncation)
    error = count * (FFT_ERROR_PER_RELEASE + _MASS_ERROR) + 2 * truncation
    epsilon = float(composed.get_epsilon_for_delta(delta + error))
    return max(epsilon, 0.0) if math.isfinite(epsilon) else 0.0
