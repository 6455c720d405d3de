"""Lower bounds on ε from one run with canaries.

m canaries are included by independent fair coins S. From what the run released, the auditor makes
c <= m guesses (a number fixed beforehand; the rest are abstentions), and W of them are right. A
guarantee limits how often W >= v can happen; an observation that it makes too rare refutes it.

**(ε, δ), closed form** (`approximate_p_value`): Steinke, Nasr, Jagielski 2023, Theorem 5.2.

**f-DP** (`refutes`, `p_value`), after Mahloujifar, Melis, Chaudhuri 2024. Let p_k = P[W = k]. For
a canary i and coins S, let E be the set of outputs on which the guess about i is right and
W >= k. Flip coin i: on E the guess is then wrong and W one less. By f-DP,
P_S[E] <= fbar(P_S′[E]) with fbar = 1 − f, whichever way the coin was flipped. Average over i and S:
S′ is as uniform as S, and fbar is concave, so, with c the number of guesses,

    r_k := Σ_{j>=k} (j/m)·p_j  <=  fbar(h_k),    h_k := Σ_{j>=k−1} ((c − j)/m)·p_j.         (1)

Write P_k = Σ_{j>=k} p_j. Summing by parts, m·r_k = k·P_k + Σ_{j>k} P_j and
m·h_k = (c − k + 1)·P_{k−1} − Σ_{j>=k} P_j, so (1) is the same as

    P_{k−1} >= (m·f(1 − r_k) + Σ_{j>=k} P_j) / (c − k + 1),                                (2)

whose right side grows with each of P_k, P_{k+1}, ... Suppose P[W >= v] >= τ. Then P_v >= τ and
P_j >= 0 above; going down from v, (2) and P_{k−1} >= P_k bound each tail from below by the value
that equality would give, since larger tails above only raise it. If the bound on P_0, which is 1,
exceeds 1, then P[W >= v] < τ. ∎ (The tails that attain equality satisfy (1) at every k, those above
v included: among the laws that satisfy (1), nothing smaller than this p-value is true.)

All terms are positive, so rounding is relative; each level is rounded down by more than that, and
by monotonicity the outcome too. Stopping before level 0 leaves constraints out, which also only
makes the bound smaller. So both are safe.

Several numbers of guesses share the error probability equally (Bonferroni). A bound on a family is
the largest number whose member is refuted: if the truth were at or below it, some refuted member
would cover the truth. The events {W >= v} are nested, so trying many members costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import binom

from reticent.audit.trade_offs import Family, TradeOff
from reticent.errors import OptionError, between, not_negative, whole

# What a level is rounded down by; its dozen operations are off by 1e-15 at most.
_LEVEL_ERROR = 1e-14
# After so many levels without growth, those below will hardly add any.
_IDLE = 200
_MOST_EPSILON = 100.0


@dataclass(frozen=True)
class Outcome:
    """So many of the guesses about m canaries were right; `guesses` was fixed beforehand."""

    canaries: int
    guesses: int
    correct: int

    def __post_init__(self) -> None:
        whole("canaries", self.canaries)
        if whole("guesses", self.guesses) > self.canaries:
            raise OptionError("guesses", self.guesses, f"exceeds the {self.canaries} canaries")
        if whole("correct", self.correct, least=0) > self.guesses:
            raise OptionError("correct", self.correct, f"exceeds the {self.guesses} guesses")

    def to_json(self) -> dict[str, int]:
        """The outcome as JSON-ready data."""
        return {"canaries": self.canaries, "guesses": self.guesses, "correct": self.correct}


@dataclass(frozen=True)
class LowerBound:
    """ε at δ is larger than `epsilon`, at the confidence, if `assumes` holds.

    `number` is that of the family's strongest member that stands; None where nothing is refuted.
    """

    family: str
    epsilon: float
    delta: float
    confidence: float
    number: float | None
    assumes: str

    def to_json(self) -> dict[str, Any]:
        """The bound as JSON-ready data."""
        return dict(vars(self))


# -- (ε, δ), closed form ----------------------------------------------------------------------


def approximate_p_value(outcome: Outcome, epsilon: float, delta: float) -> float:
    """The most that (ε, δ)-DP lets P[W >= v] be: Steinke et al. 2023, Theorem 5.2.

    β + 2·m·δ·α with q = 1/(1 + e^−ε), β = P[Bin(c, q) >= v] and
    α = max over 1 <= i <= v of P[v > Bin(c, q) >= v − i] / i. For δ = 0 a binomial tail.

    Example:
        >>> approximate_p_value(Outcome(10, 10, 10), 0.0, 0.0) == 2**-10
        True
    """
    not_negative("epsilon", epsilon)
    between("delta", delta, 0, 1)
    right = 1 / (1 + math.exp(-epsilon))
    guesses, correct = outcome.guesses, outcome.correct
    beta = float(binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(beta, 1.0)
    below = np.exp(binom.logpmf(np.arange(correct - 1, -1, -1), guesses, right))
    alpha = float((np.cumsum(below) / np.arange(1, correct + 1)).max())
    return min(beta + 2 * outcome.canaries * delta * alpha, 1.0)


def approximate_bound(
    outcomes: Sequence[Outcome], delta: float, *, confidence: float = 0.95
) -> LowerBound:
    """A lower bound on ε at δ for any mechanism, from the closed form.

    Example:
        >>> bound = approximate_bound([Outcome(1000, 1000, 800)], 0.0, confidence=0.95)
        >>> 1.2 < bound.epsilon < math.log(0.8 / 0.2)
        True
    """
    level = level_of(outcomes, confidence)

    def refuted(epsilon: float) -> bool:
        return any(approximate_p_value(outcome, epsilon, delta) < level for outcome in outcomes)

    number = _largest(refuted, _MOST_EPSILON, 1e-5)
    return LowerBound("closed-form", number or 0.0, delta, float(confidence), number, "nothing")


# -- f-DP -------------------------------------------------------------------------------------


def refutes(trade_off: TradeOff, outcome: Outcome, level: float) -> bool:
    """Whether P[W >= v] < `level` under f-DP: the bound on P_0 above exceeds 1."""
    m, c = outcome.canaries, outcome.guesses
    tail, above, idle = level, 0.0, 0
    if tail > 1:
        return True
    for k in range(outcome.correct, 0, -1):
        r = (k * tail + above) / m * (1 - _LEVEL_ERROR)
        above += tail
        least = (m * trade_off.needed(r) + above) / (c - k + 1) * (1 - _LEVEL_ERROR)
        if least > 1:
            return True
        idle = idle + 1 if least <= tail * (1 + 1e-12) else 0
        if idle > _IDLE:
            return False
        tail = max(tail, least)
    return False


def p_value(trade_off: TradeOff, outcome: Outcome) -> float:
    """The most that f-DP lets P[W >= v] be, from above; at least 1e-300.

    Example:
        >>> from reticent.audit.trade_offs import Lines
        >>> exact = approximate_p_value(Outcome(100, 100, 80), 1.0, 0.0)
        >>> p_value(Lines((1.0,), (0.0,)), Outcome(100, 100, 80)) >= exact
        True
    """
    low, high = math.log(1e-300), 0.0
    if not refutes(trade_off, outcome, 1.0):
        return 1.0
    if refutes(trade_off, outcome, math.exp(low)):
        return math.exp(low)
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if refutes(trade_off, outcome, math.exp(middle)) else (middle, high)
        )
    return math.exp(high)


def lower_bound(
    family: Family, outcomes: Sequence[Outcome], delta: float, *, confidence: float = 0.95
) -> LowerBound:
    """A lower bound on ε at δ, from the weakest member of a family that is refuted.

    Args:
        family: Which guarantees are considered; `family.assumes` says what the bound rests on.
        outcomes: One for each number of guesses, all numbers fixed beforehand.
        delta: Where ε is stated.
        confidence: The bound is wrong with probability 1 − confidence at most.

    Example:
        >>> from reticent.audit.trade_offs import Gaussian
        >>> bound = lower_bound(Gaussian(), [Outcome(1000, 100, 90)], 1e-5)
        >>> f"mu > {bound.number:.2f}, epsilon > {bound.epsilon:.2f}"
        'mu > 0.60, epsilon > 2.46'
    """
    level = level_of(outcomes, confidence)

    def refuted(number: float) -> bool:
        member = family.at(number)
        return any(refutes(member, outcome, level) for outcome in outcomes)

    number = _largest(refuted, family.most, family.tolerance)
    epsilon = 0.0 if number is None else family.epsilon(number, delta)
    return LowerBound(family.name, epsilon, delta, float(confidence), number, family.assumes)


def level_of(outcomes: Sequence[Any], confidence: float) -> float:
    """The error probability of each number of guesses."""
    if not outcomes:
        raise OptionError("outcomes", outcomes, "must hold at least one")
    if not 0 < between("confidence", confidence, 0, 1) < 1:
        raise OptionError("confidence", confidence, "must lie between 0 and 1, both excluded")
    return (1 - confidence) / len(outcomes)


def _largest(refuted: Callable[[float], bool], most: float, tolerance: float) -> float | None:
    """About the largest number that is refuted, itself refuted; None if hardly any is."""
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2 * high
        if high > most:
            return low
    while high - low > tolerance * max(high, 0.1):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low or None
