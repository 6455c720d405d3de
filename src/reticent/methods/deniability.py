"""What PD-SGD's test promises: how likely an update far from all other batches is to pass it.

"Deep learning with plausible deniability", Lemmas 1 and 2 and Corollary 1. All of it depends on
σ, γ and the squared distance d of two batch gradients through a = √d/(2σ) and b = γσ/√d alone:
q(d) = Pr(a − b ≤ Y ≤ a + b) for a standard normal Y. Everywhere ab = γ/2, so nothing here needs the
difference of two nearly equal probabilities.

q falls strictly in d. With u = √d/σ, so that a = u/2 and b = γ/u, and φ(a + b) = e^−γ φ(a − b),

    dq/du = φ(a − b)·[e^−γ·(1/2 − γ/u²) − (1/2 + γ/u²)] < 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.special import erfcx, ndtr

from reticent.errors import OptionError, finite, not_negative, positive, whole

PROBABILITIES = (0.05, 1e-5)  # of Figure 1
PROMISE = (
    "One update that lies this far from the gradients of all other batches passes the test with at "
    "most this probability; nothing is promised about the model as a whole or about many updates "
    "together, nothing if anyone sees more than the final model, and there is no epsilon."
)

_HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)
_NODES, _WEIGHTS = (part.tolist() for part in np.polynomial.legendre.leggauss(24))
_TABLE = (0.9, 0.5, 0.05, 1e-2, 1e-3, 1e-5, 1e-10)


def log_plausibility(distance: float, sigma: float, gamma: float) -> float:
    """The logarithm of q(d), exact where q itself is too small for a number.

    Args:
        distance: d, the squared distance between the gradients of two batches.
        sigma: Standard deviation of the noise.
        gamma: The largest difference of log-densities that is plausible.
    """
    return _log_q(*_scaled(distance, sigma, gamma), gamma)


def _log_q(a: float, b: float, gamma: float) -> float:
    if b == math.inf:
        return 0.0
    low, high = a - b, a + b
    if b <= 1 and gamma <= 2:
        # ∫ φ over [a − b, a + b] is φ(a)·∫ exp(−at − t²/2) over [−b, b], where |at| ≤ 1
        mass = math.fsum(
            weight * math.exp(-gamma / 2 * node - (b * node) ** 2 / 2)
            for node, weight in zip(_NODES, _WEIGHTS, strict=True)
        )
        return -a * a / 2 - _HALF_LOG_2PI + _log(b) + math.log(mass)
    if low <= 0:  # b > 1 here: the probability is at least 1/3
        return 0.0 + math.log1p(-float(ndtr(low) + ndtr(-high)))
    # γ > 2 here. Pr(Y > x) = exp(−x²/2)·erfcx(x/√2)/2, and (a + b)² − (a − b)² = 2γ
    root = math.sqrt(0.5)
    inside = float(erfcx(low * root)) - math.exp(-gamma) * float(erfcx(high * root))
    return -low * low / 2 + _log(inside / 2)


def plausibility(distance: float, sigma: float, gamma: float) -> float:
    """q(d): how likely a noisy gradient is plausible for a batch at squared distance d.

    Lemma 1 (eq. 3). The arguments are those of `log_plausibility`.

    Example:
        >>> plausibility(0.0, 0.1, 2.0)
        1.0
        >>> round(plausibility(0.36, 0.3, 2.0), 4)  # d = 2σ²γ: the middle of the fall
        0.4772
    """
    return math.exp(log_plausibility(distance, sigma, gamma))


def plausibility_bound(distance: float, sigma: float, gamma: float) -> float:
    """An upper bound on q(d) for d > 2σ²γ by the normal law's tails; 1 below, where it is silent.

    Lemma 2 (eq. 4) as the last line of its proof has it, in a and b:
    exp(−(a² + b²)/2)/√(2π)·[e^ab/(a − b) − (a + b)·e^−ab/((a + b)² + 1)]. In d this makes the
    constant C = σ·√(2d/π)·[…]; printed is √(2dσ)/√π·[…], which is no bound where σ > 1.
    """
    a, b = _scaled(distance, sigma, gamma)
    if not a > b:
        return 1.0
    low, high = a - b, a + b
    # [1/(a − b) − e^−γ·(a + b)/((a + b)² + 1)], its parts all positive
    tail = 1 / (high + 1 / high)
    inside = 2 * (b / low) / high + tail / high / high - math.expm1(-gamma) * tail
    return _capped(-low * low / 2 - _HALF_LOG_2PI + _log(inside))


def simple_bound(distance: float, sigma: float, gamma: float, share: float | None = None) -> float:
    """A simpler and weaker upper bound on q(d) for d ≥ 2σ²γ/f, 0 < f < 1.

    Corollary 1 (eq. 7): exp(−(a² + b²)/2)/(a√(2π))·[e^ab/(1 − f) − e^−ab/(2 + f)]. Its proof uses
    a > 1, that is d > 4σ², which the corollary does not mention. It holds without: for a ≤ 1,
    q ≤ 2b·φ(a − b) ≤ 2fa·φ(a − b), and the bound is at least φ(a − b)/a·(1/(1 − f) − 1/(2 + f)),
    which is more, since 2f(1 − f)(2 + f) < 1 + 2f for all f in (0, 1).

    Args:
        distance: d, the squared distance between the gradients of two batches.
        sigma: Standard deviation of the noise.
        gamma: The largest difference of log-densities that is plausible.
        share: f; by default 2σ²γ/d, which gives the best bound, and 1 where d is too small for any.
    """
    a, b = _scaled(distance, sigma, gamma)
    if share is None:
        if not a > b:
            return 1.0
        share = b / a
    elif not 0 < finite("share", share) < 1:
        raise OptionError("share", share, "must lie between 0 and 1")
    elif b > share * a:
        least = 2 * sigma * sigma * gamma / share
        raise OptionError("distance", distance, f"must be at least 2σ²γ/share = {least:g}")
    inside = 1 / (1 - share) - math.exp(-gamma) / (2 + share)
    return _capped(-(a - b) * (a - b) / 2 - _HALF_LOG_2PI - _log(a) + math.log(inside))


def pass_probability(
    distance: float, sigma: float, gamma: float, batches: int, threshold: int
) -> float:
    """The most likely an update at squared distance d or more from all other batches passes.

    The seed itself is one plausible batch, so T − 1 of the m − 1 others must be: by Markov's
    inequality (m − 1)·q(d)/(T − 1). With T = 1 every update passes.

    Args:
        distance: d, the least squared distance from the gradient of another batch.
        sigma: Standard deviation of the noise.
        gamma: The largest difference of log-densities that is plausible.
        batches: m.
        threshold: T.
    """
    if _counts(batches, threshold) == 1:
        return 1.0
    log_q = log_plausibility(distance, sigma, gamma)
    return _capped(log_q + math.log((batches - 1) / (threshold - 1)))


def smallest_distance(probability: float, sigma: float, gamma: float) -> float:
    """d*: the squared distance from which on q(d) is at most `probability` (Figure 1).

    Rounded up, so that q(d*) is not above it.

    Example:
        >>> 0.0499 < plausibility(smallest_distance(0.05, 0.3, 2.0), 0.3, 2.0) <= 0.05
        True
    """
    if not 0 < finite("probability", probability) < 1:
        raise OptionError("probability", probability, "must lie between 0 and 1")
    positive("sigma", sigma)
    positive("gamma", gamma)
    return _smallest(math.log(probability), sigma, gamma)


def _smallest(wanted: float, sigma: float, gamma: float) -> float:
    """The same for a given log q; by bisection of u = √d/σ, since q falls."""
    # at the upper end q ≤ Pr(Y > √(2·ln(1/p))) ≤ p
    reach = math.sqrt(-2 * wanted)
    high = reach + math.hypot(reach, math.sqrt(2) * math.sqrt(gamma))
    low = high / 2
    while _log_q(low / 2, gamma / low, gamma) <= wanted:
        low, high = low / 2, low
    while high - low > 1e-15 * high:
        middle = low + (high - low) / 2
        if not low < middle < high:
            break
        if _log_q(middle / 2, gamma / middle, gamma) <= wanted:
            high = middle
        else:
            low = middle
    # not 0, where q is 1, however small it would have to be
    distance, more = max((sigma * high) * (sigma * high), math.ulp(0.0)), 2**-52
    while distance < math.inf and log_plausibility(distance, sigma, gamma) > wanted:
        distance, more = max(distance * (1 + more), math.nextafter(distance, math.inf)), 2 * more
    return distance


@dataclass(frozen=True)
class Row:
    """What holds at one squared distance."""

    distance: float
    plausibility: float
    bound: float
    simple_bound: float
    pass_probability: float


@dataclass(frozen=True)
class Limit:
    """Squared distances from which on something is at most this likely; None: no such distance.

    Attributes:
        probability: How likely at most.
        one_batch: From here on being plausible for one other batch (d* of Figure 1).
        update: From here on passing the test, if all other batches are that far.
    """

    probability: float
    one_batch: float | None
    update: float | None


@dataclass(frozen=True)
class Certificate:
    """What PD-SGD's test promises for one update; made from public numbers alone.

    Attributes:
        sigma: Standard deviation of the noise on the seed's gradient.
        gamma: The largest difference of log-densities that is plausible.
        batches: m.
        threshold: T.
        dimension: k, the number of parameters, if it is known.
        limits: The distances d* for the probabilities of Figure 1.
        rows: q, its bounds and the probability of passing by distance.
    """

    sigma: float
    gamma: float
    batches: int
    threshold: int
    dimension: int | None
    limits: tuple[Limit, ...]
    rows: tuple[Row, ...]

    def normalised(self, distance: float | None) -> float | None:
        """√(d/k), as Figure 1 has it; None without a dimension or a distance."""
        if distance is None or self.dimension is None:
            return None
        return math.sqrt(distance / self.dimension)

    def to_json(self) -> dict[str, Any]:
        """The certificate as JSON-ready data."""
        limits = [
            {**asdict(limit), "normalised": self.normalised(limit.one_batch)}
            for limit in self.limits
        ]
        return {
            **asdict(self),
            "limits": limits,
            "rows": [asdict(row) for row in self.rows],
            "promise": PROMISE,
        }


def certificate(
    sigma: float,
    gamma: float,
    batches: int,
    threshold: int,
    dimension: int | None = None,
    distances: Sequence[float] = (),
) -> Certificate:
    """What the test with these numbers promises for one update.

    Args:
        sigma: Standard deviation of the noise on the seed's gradient.
        gamma: The largest difference of log-densities that is plausible.
        batches: m, how many batches the records are split into.
        threshold: T, how many batches must be plausible, the seed included.
        dimension: The number of parameters, for Figure 1's scale.
        distances: Squared distances to tabulate; by default some where q falls from 0.9 to 1e-10.

    Example:
        >>> found = certificate(sigma=0.3, gamma=2.0, batches=20, threshold=3, dimension=7680)
        >>> [round(found.normalised(limit.one_batch), 4) for limit in found.limits]
        [0.0142, 0.0305]
    """
    positive("sigma", sigma)
    positive("gamma", gamma)
    _counts(batches, threshold)
    if dimension is not None:
        whole("dimension", dimension)
    limits = []
    for probability in PROBABILITIES:
        update = None
        if threshold > 1:  # (m − 1)·q/(T − 1) ≤ p
            wanted = math.log(probability) + math.log((threshold - 1) / (batches - 1))
            update = _finite(_smallest(wanted, sigma, gamma))
        one_batch = _finite(smallest_distance(probability, sigma, gamma))
        limits.append(Limit(probability, one_batch, update))
    if not distances:
        distances = [smallest_distance(p, sigma, gamma) for p in _TABLE]
    rows = tuple(
        Row(
            distance=d,
            plausibility=plausibility(d, sigma, gamma),
            bound=plausibility_bound(d, sigma, gamma),
            simple_bound=simple_bound(d, sigma, gamma),
            pass_probability=pass_probability(d, sigma, gamma, batches, threshold),
        )
        for d in distances
        if math.isfinite(not_negative("distance", d) if d != math.inf else d)
    )
    return Certificate(
        float(sigma), float(gamma), batches, threshold, dimension, tuple(limits), rows
    )


def _scaled(distance: float, sigma: float, gamma: float) -> tuple[float, float]:
    """(a, b); b is infinite where d is 0 or next to it."""
    d, noise = not_negative("distance", distance), positive("sigma", sigma)
    width = positive("gamma", gamma)
    ratio = math.sqrt(d) / noise
    return ratio / 2, (width / ratio if ratio else math.inf)


def _counts(batches: int, threshold: int) -> int:
    whole("batches", batches)
    whole("threshold", threshold)
    if threshold > batches:
        raise OptionError("threshold", threshold, f"exceeds the number of batches {batches}")
    return threshold


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _capped(logarithm: float) -> float:
    return math.exp(min(logarithm, 0.0))


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
