"""From charges to ε. Every number returned here is an upper bound.

Three ways, all for adding or removing one record:

- `pld`: compose privacy-loss distributions (tightest). Below a floor set by the rounding of the FFT
  it proves nothing, and says infinity.
- `rdp`: add Rényi curves, convert at the best of many orders. Valid for charges fixed beforehand.
- `filter`: add Rényi divergences at ONE order that was fixed before the first release. The only one
  valid when the size of a charge depends on earlier releases (Feldman and Zrnic 2021, Theorem 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from reticent.errors import AccountingError, between
from reticent.privacy.charges import Charge, NonPrivate, Orders, SampledGaussian

# (charge, how often): what an accountant adds up
Bill = tuple[tuple[Charge, int], ...]

ORDERS: Orders = (
    *(1 + x / 10 for x in range(1, 90)),
    *(float(x) for x in range(10, 64)),
    *(float(x) for x in (64, 72, 80, 96, 112, 128, 160, 192, 256, 320, 384, 512, 768, 1024)),
)

# Composing T releases raises a Fourier transform to the T-th power, which multiplies its rounding
# error by T; the inverse transform spreads it over all bins, where δ collects it. With unit
# round-off 1.1e-16, log2(length) <= 24 butterflies and the window a few standard deviations wide,
# δ is off by at most about 1e-14 per release (the largest seen against the closed form for
# Gaussians is 2e-17 per release). Unguarded, 10,000 releases at δ = 1e-12 are under-reported.
FFT_ERROR_PER_RELEASE = 1e-14

PLD_MOST_EPSILON, PLD_MOST_RELEASES = 20_000, 1_000_000
MANY_RELEASES = 64


def rdp_to_epsilon(order: float, divergence: float, delta: float) -> float:
    """ε at one order (Canonne, Kamath, Steinke 2020, Proposition 12); NaN counts as infinite."""
    if not math.isfinite(divergence):
        return math.inf
    return max(0.0, divergence + rdp_to_epsilon_terms(order, delta))


def rdp_to_epsilon_terms(order: float, delta: float) -> float:
    """What the conversion adds to a divergence of this order."""
    return math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def rdp_epsilon(bill: Bill, delta: float) -> float:
    """The smallest ε over all orders."""
    if not bill:
        return 0.0
    total = sum((count * charge.rdp(ORDERS) for charge, count in bill), np.zeros(len(ORDERS)))
    return min(
        rdp_to_epsilon(order, float(value), delta)
        for order, value in zip(ORDERS, total, strict=True)
    )


def filter_epsilon(bill: Bill, delta: float, order: float) -> float:
    """ε at the one order that was fixed beforehand."""
    if not bill:
        return 0.0
    total = sum(count * float(charge.rdp((order,))[0]) for charge, count in bill)
    return rdp_to_epsilon(order, total, delta)


def _interval(scale: float, bill: Bill) -> float:
    # One bin in 10,000 of ε keeps the discretisation error below 0.1 % and the work constant
    # however large ε is. With smooth losses it grows with the releases, so few of them need fewer
    # bins. 1-2-5 steps keep neighbouring questions on the same grid.
    smooth = all(isinstance(charge, SampledGaussian) for charge, _ in bill)
    releases = sum(count for _, count in bill) if smooth else MANY_RELEASES
    bins = 10_000 * min(max(releases / MANY_RELEASES, 1 / 64) ** 0.5, 1.0)
    target = max(scale / bins, 2e-5)
    decade = 10.0 ** math.floor(math.log10(target))
    return decade * max(step for step in (1, 2, 5) if step * decade <= target * (1 + 1e-9))


def pld_epsilon(bill: Bill, delta: float) -> float:
    """ε by composing privacy-loss distributions; infinite where rounding leaves no proof."""
    if not bill:
        return 0.0
    between("delta", delta, 0, 1)
    releases = sum(count for charge, count in bill)
    provable = delta - FFT_ERROR_PER_RELEASE * releases
    scale = rdp_epsilon(bill, delta)
    # Beyond these, the grid would need gigabytes; Rényi curves answer at once.
    if provable <= 0 or scale > PLD_MOST_EPSILON or releases > PLD_MOST_RELEASES:
        return math.inf
    epsilon = _pld_epsilon(bill, provable, _interval(scale, bill))
    return max(0.0, epsilon) if not math.isnan(epsilon) else math.inf


@lru_cache(maxsize=1024)
def _pld_epsilon(bill: Bill, delta: float, interval: float) -> float:
    return float(_composed(bill, interval).get_epsilon_for_delta(delta))


def composed_pld(bill: Bill, delta: float) -> pld.PrivacyLossDistribution:
    """The privacy-loss distribution of all charges of a bill, on a grid that suits this δ."""
    scale = min(rdp_epsilon(bill, delta), PLD_MOST_EPSILON)
    return _composed(bill, _interval(scale, bill))


@lru_cache(maxsize=32)
def _composed(bill: Bill, interval: float) -> pld.PrivacyLossDistribution:
    composed = None
    for charge, count in bill:
        part = charge.pld(interval, count)
        if part is None:
            raise AccountingError(
                f"accountant = 'pld': a {charge.kind!r} charge has no privacy-loss distribution; "
                "use accountant 'rdp'"
            )
        composed = part if composed is None else composed.compose(part)
    assert composed is not None
    return composed


def has_pld(bill: Iterable[tuple[Charge, int]]) -> bool:
    """Whether every charge comes with a privacy-loss distribution."""
    return all(
        not isinstance(charge, NonPrivate) and type(charge).pld is not Charge.pld
        for charge, _ in bill
    )
