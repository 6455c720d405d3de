"""The worst that selection can do to one release, reduced to finitely many numbers.

One release of DPSUR repeats "draw a noisy gradient G, test it on fresh records" until the test
passes. What is released has the law of G tilted by the probability of passing. With and without one
record z, in one dimension (docs/selection.md has the proof):

    with z      P ∝ base · ℓ · a′        base    N(0, σ²), the noise along z's gradient
    without z   Q ∝ base · a             ℓ(x)    1 − q + q·exp((2x − 1)/(2σ²))
                                         a′      (1 − q_v)·a + q_v·b

where a, b are any functions with values in [low, high], the least and largest probability that a
candidate passes. Here the base becomes a finite pair that dominates the sampled Gaussian, and
(a, b) one of four corners at each of its atoms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_ndtr, ndtr, ndtri

# Both directions of add/remove: the law with the record against the one without, and the reverse.
DIRECTIONS = ("with", "without")

LOST_MASS = 1e-15  # what each release may lose to the far tail, before the tilt

# Masses add up to 1 within this, and ratios beyond e to this power are not computed with.
_ROUNDED_MASS, _MOST_EXPONENT = 1e-13, 300.0

PLAIN, UP, DOWN = 0, 1, 2  # rows of `Tilts.ratios`


@dataclass(frozen=True)
class Tilts:
    """All tilted pairs of one release, in one direction.

    At atom j the adversary picks one of four corners: mass weights[j]·gain under the reference law
    and likelihood ratio f (both up to normalisation), where (gain, f) is (gains[0], ratios[PLAIN]),
    (gains[1], ratios[UP]), (gains[2], ratios[PLAIN]) or (gains[3], ratios[DOWN]).

    Attributes:
        log_weights: ln of the mass of each atom under the untilted reference law.
        gains: (a low, b low), (low, high), (high, high), (high, low), in that order.
        ratios: One row for each distinct likelihood ratio.
        lost: Mass on infinite loss that the atoms leave out, at most; to be added to δ.
    """

    log_weights: np.ndarray
    gains: tuple[float, float, float, float]
    ratios: np.ndarray
    lost: float

    @cached_property
    def weights(self) -> np.ndarray:
        """Mass of each atom under the untilted reference law."""
        return np.exp(self.log_weights)

    @cached_property
    def least_mass(self) -> float:
        """The smallest normalisation any tilt can have."""
        return float(self.weights.sum()) * min(self.gains)

    @cached_property
    def most_mass(self) -> float:
        """The largest normalisation any tilt can have."""
        return float(self.weights.sum()) * max(self.gains)

    @cached_property
    def rounding(self) -> float:
        """A share of a supremum that covers the rounding of sums over all atoms."""
        return 1e-12 + 1e-14 * max(self.gains) / min(self.gains)

    def corners(self, values: np.ndarray) -> np.ndarray:
        """`values`, one row for each distinct ratio, as one row for each corner."""
        return values[[PLAIN, UP, PLAIN, DOWN]]

    def largest(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        """The largest mean of `values` (rows as in `ratios`) over tilts, and where it is attained.

        Dinkelbach's iteration. It comes from below: the number returned is closed with the smallest
        possible denominator, so that it is an upper bound.
        """
        gains = np.array(self.gains)[:, None]
        rows = self.corners(values)
        ratio = float(values[PLAIN] @ self.weights / self.weights.sum())
        for _ in range(100):
            gain = gains * (rows - ratio)
            pick = gain.argmax(axis=0)
            mass = self.weights * gains[pick, 0]
            excess = float(self.weights @ gain.max(axis=0))
            closed = ratio + max(excess, 0.0) / self.least_mass
            ratio += excess / float(mass.sum())
            if excess <= 1e-13 * self.least_mass * max(abs(ratio), 1e-300):
                break
        return closed, pick

    def means(self) -> tuple[float, float]:
        """Outer bounds on the mean of f over all tilts."""
        most, _ = self.largest(self.ratios)
        least, _ = self.largest(-self.ratios)
        return -least * (1 - self.rounding), most * (1 + self.rounding)

    def spread(self) -> tuple[float, float, np.ndarray]:
        """The centre around which the largest mean square of f is smallest, that square, its tilt.

        By minimax this is the tilt of largest variance and its mean: where one release costs most,
        to second order.
        """

        def square(centre: float) -> float:
            return self.largest((self.ratios - centre) ** 2)[0]

        found = minimize_scalar(square, bounds=self.means(), method="bounded")
        centre = float(found.x)
        square_there, pick = self.largest((self.ratios - centre) ** 2)
        return centre, square_there, pick

    def scale(self) -> tuple[float, np.ndarray, float]:
        """The centre and tilt of `spread`, and about one standard deviation of its loss."""
        centre, square, pick = self.spread()
        mass = self.weights * np.array(self.gains)[pick]
        ratio = self.corners(self.ratios)[pick, np.arange(len(pick))]
        share = mass * ratio / (mass @ ratio)
        with np.errstate(divide="ignore"):
            loss = np.where(share > 0, np.log(ratio / centre), 0.0)
        # where ratios are large a few rare atoms rule the first, but not the second
        by_loss = math.sqrt(float(share @ (loss - share @ loss) ** 2))
        return centre, pick, min(math.sqrt(square) / centre, by_loss)


def passing(beta: float, valid_noise: float) -> tuple[float, float]:
    """The least and largest probability that a candidate passes, whatever its loss change is.

    The change is clipped to ±C_v, the noise is 2·C_v·σ_v, the threshold β·C_v (Algorithm 2).
    """
    low, high = ndtr(np.array([beta - 1, beta + 1]) / (2 * valid_noise))
    return float(low), float(high)


def tilts(
    rate: float,
    multiplier: float,
    valid_rate: float,
    low: float,
    high: float,
    direction: str,
    edges: np.ndarray,
) -> Tilts:
    """The tilted pairs of one release, on slices of the noise between `edges`."""
    ratios, log_weights, lost = dominating_pair(rate, multiplier, edges)
    span = high / low
    up = 1 - valid_rate + valid_rate * span
    down = 1 - valid_rate + valid_rate / span
    if direction == "with":
        rows = np.stack([ratios, ratios * up, ratios * down])
        return Tilts(log_weights, (1.0, 1.0, span, span), rows, lost * span)
    if rate == 1:
        # without sampling the two laws are mirror images: nothing to invert, and no ratio of 0
        rows = np.stack([ratios, ratios / up, ratios / down])
    else:
        rows = 1 / np.stack([ratios, ratios * up, ratios * down])
        log_weights = log_weights + np.log(ratios)
    return Tilts(log_weights, (1.0, up, span, span * down), rows, lost * span)


def likelihood_ratio(x: np.ndarray, rate: float, multiplier: float) -> np.ndarray:
    """ℓ of the Poisson-sampled Gaussian of unit sensitivity at x."""
    return 1 - rate + rate * np.exp(np.minimum((2 * x - 1) / (2 * multiplier**2), 700.0))


def log_likelihood_ratio(x: np.ndarray, rate: float, multiplier: float) -> np.ndarray:
    """Ln ℓ, however large."""
    exponent = (2 * x - 1) / (2 * multiplier**2) + math.log(rate)
    return np.logaddexp(math.log1p(-rate), exponent) if rate < 1 else exponent


def far_end(rate: float, multiplier: float) -> float:
    """Where the tail of the law with the record is lighter than `LOST_MASS`."""
    base = -ndtri(LOST_MASS / 2)
    shifted = -ndtri(min(LOST_MASS / (2 * rate), 0.4))
    return float(max(multiplier * base, 1 + multiplier * shifted))


def slices(rate: float, multiplier: float, count: int) -> np.ndarray:
    """Edges of `count` slices that together raise the variances of ℓ and ln ℓ little."""
    x = np.linspace(-8 * multiplier, far_end(rate, multiplier), 20_001)
    ratio = likelihood_ratio(x, rate, multiplier)
    slope = ratio - (1 - rate)  # dℓ/dx up to a constant
    # a slice of width d adds about density·slope²·d³/6, so widths go with the cube root; where
    # ratios are large, ℓ² would send all slices to the far tail and (ln ℓ)² none
    with np.errstate(over="ignore", invalid="ignore"):
        density = np.exp(-(x**2) / (2 * multiplier**2)) * (1 + ratio) * slope**2 / ratio
    # plus a little everywhere, so that edges never coincide; what overflows proves nothing anyway
    roots = np.cbrt(np.nan_to_num(density, nan=0.0, posinf=0.0))
    share = np.cumsum(roots + 1e-9 * max(float(roots.max()), 1e-300))
    return np.interp(np.linspace(share[0], share[-1], count + 1), share, x)


def dominating_pair(
    rate: float, multiplier: float, edges: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Atoms (ratio, ln of the mass without the record) that dominate the sampled Gaussian.

    Each slice's mass goes to the ratios at its two ends so that both laws keep their masses there:
    a mean-preserving spread, of which the Gaussian is a channel. Left of all edges the ends are
    1 − q and the first edge; right of them the rest of the mass with the record has infinite loss:
    that mass is the third value.
    """
    ratios = np.concatenate([[1 - rate], likelihood_ratio(edges, rate, multiplier)])
    if np.max((2 * edges - 1) / (2 * multiplier**2)) > _MOST_EXPONENT:
        return ratios, np.full(len(ratios), -math.log(len(ratios))), 1.0
    inner = np.concatenate([[-np.inf], edges])
    log_without = _log_masses(inner / multiplier)
    # ℓ less 1 − q, at both ends of a slice and on average over it, in logarithms: ends may lie
    # so many decades apart that one of the two shares is invisible beside 1
    with np.errstate(divide="ignore"):
        low = math.log(rate) + (2 * inner[:-1] - 1) / (2 * multiplier**2)
        high = math.log(rate) + (2 * inner[1:] - 1) / (2 * multiplier**2)
        mean = math.log(rate) + _log_masses((inner - 1) / multiplier) - log_without
        mean = np.clip(mean, low, high)
        width = np.log(-np.expm1(np.minimum(low - high, -1e-300)))
        left = np.minimum(np.log(-np.expm1(mean - high)) - width, 0.0)
        right = np.minimum(mean - high + np.log(-np.expm1(low - mean)) - width, 0.0)
    end = edges[-1]
    log_beyond = float(log_ndtr(-end / multiplier))
    log_weights = np.full(len(ratios), -np.inf)
    log_weights[:-1] = log_without + left
    log_weights[1:] = np.logaddexp(log_weights[1:], log_without + right)
    log_weights[-1] = np.logaddexp(log_weights[-1], log_beyond)
    beyond_with = (1 - rate) * math.exp(log_beyond) + rate * float(ndtr((1 - end) / multiplier))
    lost = max(beyond_with - ratios[-1] * math.exp(log_beyond), 0.0)
    with np.errstate(divide="ignore"):
        kept = np.exp(log_weights).sum(), np.exp(log_weights + np.log(ratios)).sum() + lost
    # whatever rounding has taken from either law counts as lost, and what is no number as all
    missing = max(abs(1 - float(mass)) for mass in kept)
    if not missing <= _ROUNDED_MASS:
        lost = lost + missing if missing < 1 else 1.0
    return ratios, log_weights, lost


def _log_masses(z: np.ndarray) -> np.ndarray:
    """Logarithm of the standard normal mass between neighbours, from the nearer tail."""
    left, right = z[:-1], z[1:]
    outer = np.where(left > 0, log_ndtr(-left), log_ndtr(right))
    inner = np.where(left > 0, log_ndtr(-right), log_ndtr(left))
    return outer + np.log(-np.expm1(inner - outer))
