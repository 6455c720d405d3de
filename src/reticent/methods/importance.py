"""What DPIS charges, and the noise that what is left affords (Wei et al. 2022, section 4).

Write s = K̃/(ÑC), the released sum of gradient norms as a share of its largest value. In one
iteration a record takes part with probability b‖ḡ‖/K̃ ≤ b/(Ñs) and then moves the sum by K̃/(Ñb),
whatever its gradient's norm. Against noise σ_G·C/b that is a Poisson-sampled Gaussian of rate
b/(Ñs) and multiplier σ_G/s (Lemma 3.1, Equation 13). At s = 1 it is DP-SGD's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import brentq

from reticent.errors import BudgetError
from reticent.privacy import SampledGaussian
from reticent.privacy.calibration import LEAST_MULTIPLIER, MOST_MULTIPLIER

# Down to this multiplier the end of drawn noise costs nothing that counts (`Charge.cut`); charges
# that follow releases have no δ to spare for more.
NOT_CUT = 0.4

# Probabilities are products of rounded numbers: charged a little more than they come to.
ROUNDING = 1 + 1e-9


@dataclass(frozen=True)
class Iterations:
    """Some iterations of one epoch, or of several alike: how many, their b/Ñ, and their s."""

    count: int
    rate: float
    share: float

    def charge(self, noise: float) -> SampledGaussian:
        """What one of them costs."""
        return SampledGaussian(min(self.rate / self.share * ROUNDING, 1.0), noise / self.share)


def sum_charge(rate: float, noise: float) -> SampledGaussian:
    """Of the sum of norms over records drawn at `rate`, scaled up by 1/rate (Equation 11).

    Its sensitivity is C/rate, not C: against noise σ_K·C the multiplier is σ_K·rate.
    """
    return SampledGaussian(rate, noise * rate)


def noise_within(room: float, order: float, plan: Sequence[Iterations]) -> float:
    """The least noise σ_G at which these iterations cost at most `room` of Rényi divergence."""

    def cost(noise: float) -> float:
        each = (i.count * float(i.charge(noise).rdp((order,))[0]) for i in plan)
        return sum(each)

    def excess(log_noise: float) -> float:
        found = cost(math.exp(log_noise))
        return math.log(found / room) if 0 < found < math.inf else 700.0

    if room <= 0 or cost(MOST_MULTIPLIER) > room:
        raise BudgetError(
            "what is left of the budget affords no further iteration; allow a larger epsilon, "
            "fewer steps, or more noise on the sums (sum_noise)"
        )
    least = max(NOT_CUT / i.charge(1.0).multiplier for i in plan)
    if cost(least) <= room:
        return least
    found = brentq(excess, math.log(LEAST_MULTIPLIER), math.log(MOST_MULTIPLIER), xtol=1e-6)
    noise = math.exp(found)
    while cost(noise) > room:
        noise *= 1 + 1e-6
    return noise
