"""Rényi divergence of one selected release, an upper bound at any real order above 1.

With f the likelihood ratio up to normalisation, κ = E_Q[f] and α the order, the divergence is
ln E_Q[(f/κ)^α] / (α − 1). For any centre c the tangent of t^α at c and the constraint on κ give

    E_Q[f^α] ≤ c^α·(1 + S + α(κ/c − 1)),   S = sup over tilts of E_Q[ψ(f/c)],
    ψ(t) = t^α − 1 − α(t − 1) ≥ 0.

Divided by κ^α this is largest at κ = c·(1 − S/(α − 1)) or at an end of κ's range; the centre is
then chosen to make that largest value smallest. S is a supremum over corners (`Tilts`), solved by
Dinkelbach's iteration in the log domain: at order 1024 its terms span thousands of decades.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr

from reticent.privacy.selective_tilts import DIRECTIONS, Tilts, log_likelihood_ratio, tilts

# The slices' chords overshoot t^α by about (this)²/12 in relation; more atoms than `_MOST_ATOMS`
# are not spent on orders that no conversion to ε picks.
_GROWTH_PER_SLICE = 0.12
_MOST_ATOMS = 2500
_MOST_LOST = 1e-11
# Likelihood ratios beyond e^this are no floating-point numbers: such orders say infinity.
_MOST_LOG_RATIO = 600.0


def selective_rdp(
    rate: float, multiplier: float, valid_rate: float, low: float, high: float, order: float
) -> float:
    """The larger of both directions' divergences, bounded from above."""
    return max(
        _one_way(rate, multiplier, valid_rate, low, high, order, direction)
        for direction in DIRECTIONS
    )


def _edges(rate: float, multiplier: float, order: float, direction: str) -> np.ndarray:
    """Slices on which neither the noise's density nor the ratio to the order changes much."""
    reach = 9 * multiplier
    end = (order if direction == "with" or rate == 1 else 1) + reach
    # at rates near 1 the law without the record weighs most far on the left
    start = -reach - (order if direction == "without" and 0.5 < rate < 1 else 0)
    fine = np.linspace(start, end, 40_001)
    growth = order * log_likelihood_ratio(fine, rate, multiplier)
    # where the density has fallen to nothing, coarse slices do no harm
    travelled = (growth - growth[0]) / _GROWTH_PER_SLICE + (fine - fine[0]) / (multiplier / 10)
    count = min(math.ceil(travelled[-1]), _MOST_ATOMS)
    return np.interp(np.linspace(0, travelled[-1], count + 1), travelled, fine)


def _one_way(
    rate: float,
    multiplier: float,
    valid_rate: float,
    low: float,
    high: float,
    order: float,
    direction: str,
) -> float:
    edges = _edges(rate, multiplier, order, direction)
    if log_likelihood_ratio(edges[-1:], rate, multiplier)[0] > _MOST_LOG_RATIO:
        return math.inf
    pairs = tilts(rate, multiplier, valid_rate, low, high, direction, edges)
    if pairs.lost > _MOST_LOST * max(pairs.gains):
        return math.inf  # it has infinite loss for all we know
    least, most = pairs.means()
    # the far tail's mass moves κ by less than this
    least, most = least * (1 - min(pairs.lost, 0.5)), most + pairs.lost
    with np.errstate(divide="ignore"):
        log_ratios = np.log(pairs.ratios)
    tail = _log_tail(rate, multiplier, order, direction, float(edges[-1]), least, pairs)

    def bound(centre: float) -> float:
        log_s = _log_supremum(pairs, log_ratios, order, centre, tail)
        return _largest_over_means(log_s, order, least / centre, most / centre)

    if not math.isfinite(tail):
        return math.inf
    found = minimize_scalar(bound, bounds=(least, most), method="bounded", options={"maxiter": 16})
    moment = bound(float(found.x))
    return math.inf if math.isnan(moment) else max(moment, 0.0) / (order - 1) * (1 + 1e-12) + 1e-15


def _largest_over_means(log_s: float, order: float, least: float, most: float) -> float:
    """Logarithm of the largest x^−α·(1 + S + α(x − 1)) for x = κ/c in its range."""

    def at(x: float) -> float:
        # ln(1 + S + α(x − 1)) without overflow; -inf where no κ is possible
        rest = order * (x - 1)
        inner = rest + math.exp(log_s) if log_s < 600 else math.inf
        if inner == math.inf:
            return log_s + math.log1p(math.exp(-log_s) * (1 + rest)) - order * math.log(x)
        return math.log1p(inner) - order * math.log(x) if inner > -1 else -math.inf

    inside = 1 - math.exp(min(log_s, 700.0)) / (order - 1)
    points = [least, most] + ([inside] if least < inside < most else [])
    return max(at(x) for x in points)


def _log_psi(log_t: np.ndarray, order: float) -> np.ndarray:
    """Logarithm of ψ(t), accurate for t near 1 and for t^α beyond all floating-point numbers."""
    power = order * log_t
    t_less_1 = np.expm1(log_t)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        direct = np.log(np.maximum(np.expm1(np.minimum(power, 700)) - order * t_less_1, 0.0))
        # far out 1 + α(t − 1) is negligible or makes ψ smaller
        direct = np.where(power > 690, power, direct)
        # near 1: α(α−1)/2·(t−1)²·(1 + (α−2)(t−1)/3 + …); the next term bounds what is cut off
        small = np.abs(t_less_1) * max(order, 2.0) < 1e-3
        x = t_less_1
        series = 1 + (order - 2) * x / 3 + 2 * (order * x) ** 2 / 12 + 4 * x**2
        near = np.log(order * (order - 1) / 2) + 2 * np.log(np.abs(x)) + np.log(np.abs(series))
    return np.where(small, near, direct)


def _log_supremum(
    pairs: Tilts,
    log_ratios: np.ndarray,
    order: float,
    centre: float,
    log_tail: float,
) -> float:
    """Logarithm of S for one centre: Dinkelbach's iteration, closed from above."""
    gains = np.array(pairs.gains)[:, None]
    log_terms = _log_psi(log_ratios - math.log(centre), order) + pairs.log_weights
    terms = pairs.corners(log_terms) + np.log(gains)
    top = float(terms.max())
    if not math.isfinite(top):
        return -math.inf if top < 0 else math.inf
    scaled = np.exp(terms - top)
    masses = pairs.weights * gains
    columns = np.arange(scaled.shape[1])
    ratio = float(scaled[0].sum() / masses[0].sum())
    for _ in range(60):
        values = scaled - ratio * masses
        pick = values.argmax(axis=0)
        excess = float(values[pick, columns].sum())
        closed = ratio + max(excess, 0.0) / pairs.least_mass
        ratio += excess / float(masses[pick, columns].sum())
        if excess <= 1e-9 * ratio * pairs.least_mass:
            break
    total = math.log(closed) + top
    return float(np.logaddexp(total, log_tail - math.log(pairs.least_mass))) + pairs.rounding


def _log_tail(
    rate: float,
    multiplier: float,
    order: float,
    direction: str,
    end: float,
    least: float,
    pairs: Tilts,
) -> float:
    """Ln of what the slices leave out beyond their last edge, for every centre above `least`.

    ψ(t) ≤ α·max(t, 1)^α. Where f grows with x, ℓ(x) ≤ ℓ(end)·exp((x − end)/σ²), a Gaussian
    integral; where it falls, f is at most what it is at the end, on a mass that is negligible.
    """
    largest = max(math.log(float(pairs.ratios[:, -1].max()) / least), 0.0)
    height = order * largest + math.log(order * max(pairs.gains))
    if direction == "without" and rate < 1:
        beyond = np.logaddexp(log_ndtr(-end / multiplier), log_ndtr((1 - end) / multiplier))
        return float(beyond) + height
    z = (end - order) / multiplier
    spread = order**2 / (2 * multiplier**2) - order * end / multiplier**2
    return height + spread + float(log_ndtr(-z))
