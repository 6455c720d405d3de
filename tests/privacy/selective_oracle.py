"""Selected releases by brute force: what an adversary can reach, computed without the library."""

import math

import numpy as np
from scipy.optimize import linprog
from scipy.special import ndtr

# the corners of (a, b): each low or high
CORNERS = ((0, 0), (0, 1), (1, 1), (1, 0))


def passing(beta, valid_noise):
    return ndtr((beta - 1) / (2 * valid_noise)), ndtr((beta + 1) / (2 * valid_noise))


def largest_mean(weights, gains, ratios, h, r, kappa):
    """sup E_Q[h(r·f/κ)] over mixtures of corners with E_Q[f] = κ, by linear programming.

    `gains` and `ratios` have one row for each corner. Charnes and Cooper: the masses of all corners
    are the variables, scaled so that Q has mass 1.
    """
    count = len(weights)
    gain = np.broadcast_to(np.asarray(gains)[:, None], ratios.shape).ravel()
    flat = ratios.ravel()
    equal = np.zeros((count + 2, 4 * count + 1))
    for j in range(count):
        equal[j, j : 4 * count : count] = 1
        equal[j, -1] = -weights[j]
    equal[count, :-1] = gain
    equal[count + 1, :-1] = gain * flat
    right = np.zeros(count + 2)
    right[count], right[count + 1] = 1, kappa
    cost = np.append(-gain * h(r * flat / kappa), 0.0)
    options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(cost, A_eq=equal, b_eq=right, method="highs", options=options)
    return -found.fun if found.success else -math.inf


def random_tilt(rng, low, high, x):
    """(a, b) as step functions of x with values between low and high."""
    steps = rng.integers(1, 5)
    at = np.sort(rng.choice(x, steps))
    level = np.searchsorted(at, x, side="right") % 2
    a = low + (high - low) * np.where(rng.random() < 0.5, level, 1 - level)
    b = low + (high - low) * (x > rng.choice(x))
    if rng.random() < 0.2:
        b = low + high - b
    if rng.random() < 0.2:
        a = rng.uniform(low, high, len(x))
    return a, b


def tilted_bins(rng, setting, bins, tilts, direction):
    """Likelihood ratios and reference masses of bins of the release, for random tilts.

    Binning a release is post-processing, so what these reach is reachable.
    """
    rate, multiplier, valid_rate, valid_noise, beta = setting
    low, high = passing(beta, valid_noise)
    inner = np.linspace(-6 * multiplier, 1 + 6 * multiplier, bins - 1)
    edges = np.concatenate([[-np.inf], inner, [np.inf]])
    base = np.diff(ndtr(edges / multiplier))
    with_record = (1 - rate) * base + rate * np.diff(ndtr((edges - 1) / multiplier))
    middle = np.append(inner, inner[-1] + 1.0)
    ratios, masses = [], []
    for _ in range(tilts):
        a, b = random_tilt(rng, low, high, middle)
        p = with_record * ((1 - valid_rate) * a + valid_rate * b)
        q = base * a
        p, q = p / p.sum(), q / q.sum()
        if direction == "without":
            p, q = q, p
        ratios.append(np.divide(p, q, out=np.zeros_like(p), where=q > 0))
        masses.append(q)
    return np.array(ratios), np.array(masses)


def reachable(ratios, masses, r, count):
    """E_Q[(r·L − 1)₊] of an adversary that picks one of the tilts knowing the earlier releases.

    Every node keeps the value and the slope of its strategy: using that strategy at another weight
    gives at least the tangent, so the result is reached, not estimated.
    """
    value, slope = np.maximum(r - 1, 0.0), (r > 1).astype(float)
    for _ in range(count):
        best, best_slope = np.full(len(r), -1.0), np.zeros(len(r))
        for f, q in zip(ratios, masses, strict=True):
            at = r[:, None] * f
            i = np.clip(np.searchsorted(r, at) - 1, 0, len(r) - 2)
            first = value[i] + slope[i] * (at - r[i])
            second = value[i + 1] + slope[i + 1] * (at - r[i + 1])
            tangent = np.maximum(first, second)
            steep = np.where(first >= second, slope[i], slope[i + 1]) * (tangent > 0)
            reached = np.maximum(tangent, 0.0) @ q
            better = reached > best
            best[better] = reached[better]
            best_slope[better] = (steep @ (q * f))[better]
        value, slope = best, best_slope
    return value


def renyi_of_tilt(rng, setting, order, points=60_001):
    """Both Rényi divergences of one random tilt, by summation on a fine grid of x."""
    rate, multiplier, valid_rate, valid_noise, beta = setting
    low, high = passing(beta, valid_noise)
    x = np.linspace(-12 * multiplier - order, order + 1 + 12 * multiplier, points)
    log_base = -(x**2) / (2 * multiplier**2)
    exponent = (2 * x - 1) / (2 * multiplier**2) + math.log(rate)
    log_ratio = exponent if rate == 1 else np.logaddexp(math.log1p(-rate), exponent)
    choices = x[(x > -4 * multiplier) & (x < order + 4 * multiplier)]
    a, _ = random_tilt(rng, low, high, choices)
    a = np.interp(x, choices, a)
    b = low + (high - low) * (x > rng.choice(choices))
    log_q = log_base + np.log(a)
    log_p = log_base + log_ratio + np.log((1 - valid_rate) * a + valid_rate * b)

    def total(values):
        top = values.max()
        return top + math.log(np.exp(values - top).sum())

    log_p, log_q = log_p - total(log_p), log_q - total(log_q)
    return max(
        total(order * log_p + (1 - order) * log_q) / (order - 1),
        total(order * log_q + (1 - order) * log_p) / (order - 1),
    )
