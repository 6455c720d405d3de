"""Moments of the sampled Gaussian's likelihood ratio, at all orders at once.

ln E[ratio^order], which is (order − 1) times the Rényi divergence: Mironov, Talwar, Zhang (2019),
Section 3.3. `dp-accounting` has the same sums, term by term in Python; a search for the noise asks
for some dozens of curves of 200 orders each, and is several times faster with these.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, log_ndtr

# The series stops once its terms fall and are below e^-30 of the sum; most need some dozens.
_ENDS = (48, 192, 1000)
_NEGLIGIBLE = 30.0
# A table of all terms of all orders stays small up to this order; beyond, one order after another.
_MOST_TOGETHER = 4096


def whole_moments(rate: float, multiplier: float, orders: np.ndarray) -> np.ndarray:
    """At whole orders a finite sum: Σ C(order, k)·(1 − q)^(order−k)·q^k·e^{(k²−k)/(2σ²)}."""
    if len(orders) > 1 and orders.max() > _MOST_TOGETHER:
        return np.concatenate(
            [whole_moments(rate, multiplier, orders[[i]]) for i in range(len(orders))]
        )
    k = np.arange(int(orders.max(initial=1)) + 1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        growth = k * math.log(rate) + (k * k - k) / (2 * np.float64(multiplier) ** 2)
        terms = _binomials(tuple(orders)) + (orders[:, None] - k) * math.log1p(-rate) + growth
        terms = np.where(k <= orders[:, None], terms, -np.inf)
        top = terms.max(axis=1)
        return _finite(top + np.log(np.exp(terms - top[:, None]).sum(axis=1)))


def real_moments(rate: float, multiplier: float, orders: np.ndarray) -> np.ndarray:
    """The same at orders between whole ones, from above; infinite where the series goes on.

    Two series, left and right of where both mixture components weigh the same; terms of either sign
    count with their absolute values.
    """
    moments = np.full(len(orders), np.inf)
    going, start = np.arange(len(orders)), 0
    sums = np.full((2, len(orders), 1), -np.inf)
    last = sums.copy()
    for end in _ENDS:
        terms = _series(rate, multiplier, orders[going], np.arange(start, end))
        with np.errstate(over="ignore", invalid="ignore"):
            parts = np.logaddexp.accumulate(np.concatenate([sums, terms], 2), axis=2)[:, :, 1:]
            total = np.logaddexp(*parts)
            falling = np.diff(np.concatenate([last, terms], 2), axis=2) < 0
            done = falling.all(axis=0) & (terms.max(axis=0) < total - _NEGLIGIBLE)
        first = done.argmax(axis=1)
        over = done.any(axis=1)
        moments[going[over]] = total[over, first[over]]
        going, start = going[~over], end
        if not len(going):
            break
        sums, last = parts[:, ~over, -1:], terms[:, ~over, -1:]
    return _finite(moments)


def _series(rate: float, multiplier: float, orders: np.ndarray, i: np.ndarray) -> np.ndarray:
    """Logarithms of both series' terms number i, for every order: an array (2, orders, terms)."""
    sigma = np.float64(multiplier)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        j = orders[:, None] - i
        binomials = gammaln(orders[:, None] + 1) - gammaln(i + 1) - gammaln(j + 1)
        middle = sigma**2 * math.log(1 / rate - 1) + 0.5
        log_q, log_p = math.log(rate), math.log1p(-rate)
        left = i * log_q + j * log_p + (i * i - i) / (2 * sigma**2)
        left = left + log_ndtr((middle - i) / sigma)
        right = j * log_q + i * log_p + (j * j - j) / (2 * sigma**2)
        right = right + log_ndtr((j - middle) / sigma)
        return np.asarray(binomials + np.stack([left, right]))


@lru_cache(maxsize=64)
def _binomials(orders: tuple[float, ...]) -> np.ndarray:
    """The binomials' logarithms, a row per order; where k is larger the value means nothing."""
    above = np.array(orders)[:, None]
    k = np.arange(int(above.max(initial=1)) + 1)
    found = gammaln(above + 1) - gammaln(k + 1) - gammaln(np.maximum(above - k, 0) + 1)
    found.setflags(write=False)
    return np.asarray(found)


def _finite(moments: np.ndarray) -> np.ndarray:
    # NaN orders are useless but harmless as +inf; left alone, a converter may read them as ε = 0
    return np.nan_to_num(moments, nan=np.inf, posinf=np.inf)
