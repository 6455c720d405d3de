"""Choosing among candidates by a noisy score: pure differential privacy, and what it costs.

**The choice.** Candidate j has the score s_j = Σ_i c_ij, c_ij in [0, C]. Draw E_j exponential of
scale C/ε and take the j with the smallest s_j − E_j. Claim: ε-differential privacy for adding or
removing one record, however many candidates there are.

Proof. Let the record add d_j, 0 ≤ d_j ≤ C, to every score. Fix all noise but E_j. On D candidate j
is taken if E_j ≥ a with a = s_j − min over k ≠ j of (s_k − E_k); on D′ if E_j ≥ a′. The minimum
grows by something in [0, C] from D to D′, s_j by d_j, so |a′ − a| ≤ C. For exponential noise of
scale C/ε, P[E ≥ a + C] ≥ e^−ε·P[E ≥ a] for every a, negative ones included. So P[E_j ≥ a] and
P[E_j ≥ a′] are within e^±ε; average over the other noise. ∎

It is the monotone case of report-noisy-max (Dwork and Roth 2014, section 3.3); with exponential
noise it is permute-and-flip (McKenna and Sheldon 2020; Ding et al. 2021), whose errors are never
larger than the exponential mechanism's.

**The price.** Every ε-differentially private mechanism is dominated by randomised response,
P = (p, 1 − p) and Q = (1 − p, p) with p = e^ε/(1 + e^ε) (Kairouz, Oh, Viswanath 2015). If records
take part by independent coins of probability q, the pair ((1 − q)Q + qP, Q) dominates in one
direction and its reverse in the other (Zhu, Dong, Wang 2022). Hence, with
ℓ± = 1 − q + q·e^±ε,

    (α − 1)·D_α = ln((1 − p)·ℓ₊^α + p·ℓ₋^α)              with the record against without it,
    (α − 1)·D_α = ln((1 − p)·ℓ₊^(1−α) + p·ℓ₋^(1−α))      without it against with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from dp_accounting.pld import privacy_loss_distribution as pld

from reticent.coins import Coins
from reticent.errors import between, positive
from reticent.privacy.charges import Charge, Orders
from reticent.privacy.noise import Sensitive

# Beyond this a choice is as good as made in the open, and powers of e^ε overflow.
MOST_EPSILON = 100.0
# Exponents are off by a few units in the last place of order·ε.
_ROUNDING = 1e-15


@dataclass(frozen=True)
class SampledPure(Charge):
    """Each record takes part with probability `rate` in an `epsilon`-differentially private choice.

    Formal guarantee: as the module says. Adding or removing one record.

    Example:
        >>> float(SampledPure(rate=0.5, epsilon=0.2).rdp((1e6,))[0])  # ln(1 + rate·(e^ε − 1))
        0.1049...
    """

    rate: float
    epsilon: float
    kind: ClassVar[str] = "sampled-pure"

    def __post_init__(self) -> None:
        between("rate", self.rate, 0, 1, open_low=True)
        between("epsilon", self.epsilon, 0, MOST_EPSILON, open_low=True)

    def rdp(self, orders: Orders) -> np.ndarray:
        """As the base class says."""
        alpha = np.asarray(orders, dtype=float)
        more, less = self._losses
        with_it = self._log_moment(alpha * more, alpha * less)
        without = self._log_moment((1 - alpha) * more, (1 - alpha) * less)
        slack = _ROUNDING * (1 + alpha * self.epsilon)
        curve = (np.maximum(np.maximum(with_it, without), 0) + slack) / (alpha - 1)
        return np.minimum(curve, more * (1 + _ROUNDING))  # no outcome's loss is larger

    @property
    def _losses(self) -> tuple[float, float]:
        """The logarithms of ℓ₊ and ℓ₋."""
        if self.rate == 1:
            return self.epsilon, -self.epsilon
        more = math.log1p(self.rate * math.expm1(self.epsilon))
        if self.rate < 0.5:
            return more, math.log1p(self.rate * math.expm1(-self.epsilon))
        return more, math.log((1 - self.rate) + self.rate * math.exp(-self.epsilon))

    def _log_moment(self, more: np.ndarray, less: np.ndarray) -> np.ndarray:
        """ln((1 − p)·exp(more) + p·exp(less)), also where that is close to 0."""
        p = 1 / (1 + math.exp(-self.epsilon))
        large = np.logaddexp(more - np.logaddexp(0, self.epsilon), less + math.log(p))
        small = np.maximum(np.abs(more), np.abs(less)) < 1
        near = np.where(small, more, 0), np.where(small, less, 0)
        moved = (1 - p) * np.expm1(near[0]) + p * np.expm1(near[1])
        return np.where(small, np.log1p(moved), large)

    def pld(self, interval: float, count: int) -> pld.PrivacyLossDistribution:
        """As the base class says."""
        more, less = self._losses
        without = {
            0: -float(np.logaddexp(0, self.epsilon)),
            1: -math.log1p(math.exp(-self.epsilon)),
        }
        with_it = {0: without[0] + more, 1: without[1] + less}
        one = pld.from_two_probability_mass_functions(
            without, with_it, value_discretization_interval=interval, symmetric=False
        )
        return one.self_compose(count)

    def covers(self, other: Charge) -> bool:
        """A lower rate or a smaller ε can be simulated from this pair."""
        return (
            isinstance(other, SampledPure)
            and other.rate <= self.rate
            and other.epsilon <= self.epsilon
        )


def noisy_min(scores: Sensitive, epsilon: float, coins: Coins, stream: str, *counters: int) -> int:
    """The index of the smallest noisy score, `epsilon`-differentially private.

    Every score must grow by 0 to `scores.sensitivity` when a record is added. The coins are
    addressed by (stream, counters): no two choices may share an address.
    """
    scale = positive("sensitivity", scores.sensitivity) / positive("epsilon", epsilon)
    values = scores.flat.detach().to("cpu", torch.float64)
    coarse, fine = coins.uniform((2, len(values)), stream, *counters)
    # 106 bits, so that the far tail has its mass too; never 0
    uniform = coarse + (fine + 2.0**-53) * 2.0**-53
    return int((values + scale * uniform.log()).argmin())
