"""What a guarantee lets an attacker reach: trade-off functions, and families of them.

A mechanism is f-DP (Dong, Roth, Su 2022) if for every event E and neighbouring data sets D, D′ in
either order P[M(D) in E] <= 1 − f(P[M(D′) in E]). Here f is convex, decreasing and its own inverse
(symmetric), so the same says: an event of probability r under D has probability f(1 − r) at least
under D′. That number, `needed(r)`, is all that the bounds of `reticent.audit.bounds` ask for.

Every `needed` is rounded down by more than its arithmetic can be off, which makes a guarantee look
weaker than it is, and a lower bound on ε smaller.

A `Family` orders such functions by one number; the larger it is, the weaker the guarantee.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import log_ndtr, ndtr, ndtri

from reticent.errors import AccountingError, OptionError, between, not_negative, positive, whole
from reticent.privacy import Bill, Charge, Ledger, SampledGaussian, SelectiveGaussian
from reticent.privacy.accountants import FFT_ERROR_PER_RELEASE, has_pld, rdp_to_epsilon
from reticent.privacy.statements import state

# Relative errors of the normal distribution and its inverse stay below this (x² times 1e-16).
_NORMAL_ERROR = 1e-12
# A line's value is off by a few units in the last place of its terms.
_LINE_ERROR = 1e-14
# Lines of the curve of a ledger: any choice is valid, more are tighter.
_LINES = 400
# Bins of the privacy-loss distribution up to the largest ε of the curve.
_BINS = 1000
_ORDERS = (2.0, 5.0, 12.0, 32.0)
# The curve is drawn down to this δ; below it nothing is claimed.
_LEAST_DELTA = 1e-10


class TradeOff(ABC):
    """A symmetric trade-off function f, by way of `needed`."""

    @abstractmethod
    def needed(self, r: float) -> float:
        """At most f(1 − r): the least probability, next door, of an event of probability r."""


@dataclass(frozen=True)
class Lines(TradeOff):
    """f(1 − r) is the largest of 0 and of lines slope·r + offset.

    (ε, δ)-DP is two of them (Wasserman and Zhou 2010): e^−ε·(r − δ) and 1 − δ − e^ε·(1 − r).

    Args:
        epsilons: ε of each guarantee that holds.
        deltas: δ of each.

    Example:
        >>> round(Lines((1.0,), (0.0,)).needed(0.5), 4)
        0.1839
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @cached_property
    def _lines(self) -> tuple[np.ndarray, np.ndarray]:
        epsilon, delta = np.asarray(self.epsilons), np.asarray(self.deltas)
        # beyond, e^ε·(1 − r) says nothing for any r that arithmetic can tell from 1
        steep = np.exp(np.minimum(epsilon, 300.0))
        slopes = np.concatenate([1 / steep, steep])
        offsets = np.concatenate([-delta / steep, 1 - delta - steep])
        lost = np.concatenate([delta / steep, 1 + 2 * steep])
        return slopes * (1 - _LINE_ERROR), offsets - _LINE_ERROR * lost

    def needed(self, r: float) -> float:
        """As the base class says."""
        slopes, offsets = self._lines
        return max(float((slopes * min(r, 1.0) + offsets).max()), 0.0)


@dataclass(frozen=True)
class GaussianTradeOff(TradeOff):
    """μ-GDP: telling N(0, 1) from N(μ, 1), f(1 − r) = Φ(Φ⁻¹(r) − μ) (Dong, Roth, Su 2022, 2.6)."""

    mu: float

    def needed(self, r: float) -> float:
        """As the base class says."""
        if r >= 1:
            return 1 - _NORMAL_ERROR
        return float(ndtr(ndtri(r) - self.mu)) * (1 - _NORMAL_ERROR) if r > 0 else 0.0


class Family(ABC):
    """Trade-off functions ordered by one number: a larger one is a weaker guarantee."""

    name: ClassVar[str] = ""
    #: what must hold for a bound by this family to be one
    assumes: ClassVar[str] = ""
    #: where a search for the number may end
    most: ClassVar[float] = 100.0
    #: how closely a search is worth its time
    tolerance: ClassVar[float] = 1e-4

    @abstractmethod
    def at(self, number: float) -> TradeOff:
        """The member of this number, or a weaker one."""

    @abstractmethod
    def epsilon(self, number: float, delta: float) -> float:
        """ε of that member at δ."""


@dataclass(frozen=True)
class PureApproximate(Family):
    """(ε, δ)-DP with this δ, by ε. What follows holds for any mechanism."""

    delta: float
    name: ClassVar[str] = "approximate"
    assumes: ClassVar[str] = "nothing"

    def __post_init__(self) -> None:
        between("delta", self.delta, 0, 1)

    def at(self, number: float) -> Lines:
        """As the base class says."""
        return Lines((not_negative("epsilon", number),), (self.delta,))

    def epsilon(self, number: float, delta: float) -> float:
        """The number itself, at the δ of the family only."""
        if delta != self.delta:
            raise OptionError("delta", delta, f"the family is at delta = {self.delta:g}")
        return number


@dataclass(frozen=True)
class Gaussian(Family):
    """μ-GDP by μ; a bound if the mechanism is as private as some Gaussian one, and no more."""

    name: ClassVar[str] = "gaussian"
    assumes: ClassVar[str] = "the mechanism's trade-off function is that of a Gaussian mechanism"

    def at(self, number: float) -> GaussianTradeOff:
        """As the base class says."""
        return GaussianTradeOff(not_negative("mu", number))

    def epsilon(self, number: float, delta: float) -> float:
        """As the base class says."""
        return gaussian_epsilon(number, delta)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """ε of μ-GDP at δ, from δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), from below.

    Balle and Wang 2018, Theorem 8.

    Example:
        >>> round(gaussian_epsilon(1.0, 1e-5), 3)
        4.377
    """
    not_negative("mu", mu)
    between("delta", delta, 0, 1)
    if mu == 0 or delta == 1:
        return 0.0
    if delta == 0:
        return math.inf

    def spent(epsilon: float) -> float:
        upper = float(ndtr(mu / 2 - epsilon / mu))
        return upper - math.exp(epsilon + float(log_ndtr(-mu / 2 - epsilon / mu)))

    low, high = 0.0, 1.0
    if spent(low) <= delta:
        return 0.0
    while spent(high) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return low


@dataclass(frozen=True)
class ScaledLedger(Family):
    """What a bill charges, with all noise of its sums divided by one number.

    1 is the bill itself: if that member is refuted, so is what the ledger states, without any
    assumption. Any other number says how much noise there was if all else is as charged.

    The function comes from the composed privacy-loss distribution: a δ(ε) that holds in both
    directions, with the rounding of the composition added, at several hundred ε.
    """

    bill: Bill
    name: ClassVar[str] = "ledger"
    assumes: ClassVar[str] = "the mechanism is the one charged, but for one factor on all its noise"
    most: ClassVar[float] = 16.0
    tolerance: ClassVar[float] = 2e-3

    def __post_init__(self) -> None:
        if not self.bill:
            raise OptionError("bill", self.bill, "has no charge: nothing was released")
        for charge, count in self.bill:
            whole("count", count)
            _scaled(charge, 1.0)
        if not has_pld(self.bill):
            raise AccountingError("a charge of the bill has no privacy-loss distribution")

    @classmethod
    def of(cls, ledger: Ledger | Iterable[tuple[Charge, int]]) -> ScaledLedger:
        """The family of a ledger, or of a list of charges with their numbers.

        Raises:
            AccountingError: Some charge depended on earlier releases (a filter states one ε, not a
                curve), or it is of a kind without noise that could be scaled.
        """
        if not isinstance(ledger, Ledger):
            return cls(tuple(ledger))
        if ledger.adaptive:
            raise AccountingError(
                "charges here depend on earlier releases, which only a filter covers: it states "
                "one epsilon and no trade-off function"
            )
        counts: dict[Charge, int] = {}
        for entry in ledger.entries:
            counts[entry.accounted] = counts.get(entry.accounted, 0) + entry.count
        return cls(tuple(counts.items()))

    def scaled(self, number: float) -> Bill:
        """The bill with noise divided by `number`."""
        positive("number", number)
        return tuple((_scaled(charge, number), count) for charge, count in self.bill)

    def at(self, number: float) -> Lines:
        """As the base class says."""
        bill = self.scaled(number)
        composed = _composed(bill)
        most = float(composed.get_epsilon_for_delta(_LEAST_DELTA))
        epsilons = np.linspace(0, most if math.isfinite(most) else 50.0, _LINES)
        found = np.asarray(composed.get_delta_for_epsilon(list(epsilons)), dtype=float)
        releases = sum(count for _, count in bill)
        # a broken promise of T releases: δ grows by (1 + e^ε)·T·p
        failing = sum(count * charge.failure for charge, count in bill)
        deltas = found + FFT_ERROR_PER_RELEASE * releases + (1 + np.exp(epsilons)) * failing
        return Lines(tuple(epsilons.tolist()), tuple(np.minimum(deltas, 1.0).tolist()))

    def epsilon(self, number: float, delta: float) -> float:
        """What a ledger with so much noise would state."""
        return state(self.scaled(number), delta, None).epsilon


def _composed(bill: Bill) -> pld.PrivacyLossDistribution:
    """Coarser than for a statement of ε, ten times as fast, and an upper bound all the same."""
    # a few orders will do: only the width of the bins follows from it
    curve = sum((count * charge.rdp(_ORDERS) for charge, count in bill), np.zeros(len(_ORDERS)))
    found = (
        rdp_to_epsilon(order, float(value), _LEAST_DELTA)
        for order, value in zip(_ORDERS, curve, strict=True)
    )
    interval = max(min(*found, 1000.0) / _BINS, 1e-5)
    composed = None
    for charge, count in bill:
        part = charge.pld(interval, count)
        composed = part if composed is None else composed.compose(part)
    assert composed is not None
    return composed


def _scaled(charge: Charge, number: float) -> Charge:
    if isinstance(charge, SampledGaussian | SelectiveGaussian):
        return replace(charge, multiplier=charge.multiplier / number)
    raise AccountingError(f"a {charge.kind!r} charge has no noise multiplier to be scaled")
