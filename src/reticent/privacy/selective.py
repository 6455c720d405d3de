"""The charge of one selected release (DPSUR), whichever accountant adds it up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld

from reticent.errors import OptionError, between, finite, positive, whole
from reticent.privacy.charges import Charge, Orders, beyond_reach
from reticent.privacy.selective_pld import selective_pld
from reticent.privacy.selective_rdp import selective_rdp
from reticent.privacy.selective_tilts import passing

# Below this, candidates pass so rarely that no run would end.
LEAST_PASSING = 1e-9
# Where the accountants' arithmetic holds; nobody trains beyond.
LEAST_RATE, MULTIPLIERS = 1e-12, (1e-3, 1e6)
# With less noise the test's outcome would hang on the last bits of a difference of losses.
VALID_NOISE = (1e-3, 1e15)

# (order − 1) times the divergence is convex in the order, so chords between these bound the rest.
_KNOTS = (
    *(1.1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5),
    *(10, 11, 12, 13, 14, 15, 16, 17, 18, 20, 22, 24, 26, 28, 32, 36, 40, 48, 56, 64),
    *(80, 96, 128, 192, 256, 384, 512, 1024),
)


@dataclass(frozen=True)
class SelectiveGaussian(Charge):
    """A noisy sum that is drawn anew until it passes a noisy test on fresh records.

    Formal guarantee: docs/selection.md. The sum is a Poisson-sampled Gaussian of `rate` and
    `multiplier`; the test draws records at `valid_rate`, clips a number computed from them and the
    candidate to ±C, adds noise of 2·C·`valid_noise` and passes below `beta`·C. Nothing but the sum
    that passed is released: not the ones that failed, and not how many there were.

    Attributes:
        rate: Probability that a record takes part in a sum.
        multiplier: Noise of the sum, in units of its sensitivity.
        valid_rate: Probability that a record takes part in a test.
        valid_noise: σ_v.
        beta: The threshold, in units of the bound.
        trials: After so many failures in a row the run breaks off; the probability of that is
            added to δ.
    """

    rate: float
    multiplier: float
    valid_rate: float
    valid_noise: float
    beta: float
    trials: int
    kind: ClassVar[str] = "selective-gaussian"

    def __post_init__(self) -> None:
        between("rate", self.rate, LEAST_RATE, 1)
        positive("multiplier", self.multiplier)
        between("multiplier", self.multiplier, *MULTIPLIERS)
        between("valid_rate", self.valid_rate, LEAST_RATE, 1)
        between("valid_noise", self.valid_noise, *VALID_NOISE)
        finite("beta", self.beta)
        if self.passing[0] < LEAST_PASSING:
            raise OptionError(
                "beta",
                self.beta,
                f"with valid_noise = {self.valid_noise:g} a candidate may pass with probability "
                f"{self.passing[0]:.1e} only; raise one of them",
            )
        whole("trials", self.trials)

    @property
    def passing(self) -> tuple[float, float]:
        """The least and largest probability that a candidate passes."""
        return passing(self.beta, self.valid_noise)

    @property
    def failure(self) -> float:
        """The probability that all trials of a release fail, at most."""
        low = self.passing[0]
        return math.exp(self.trials * math.log1p(-low)) if low < 1 else 0.0

    @property
    def cut(self) -> float:
        """As the base class says; of every candidate until one passes."""
        return min(self.rate * beyond_reach(self.multiplier) / self.passing[0], 1.0)

    def rdp(self, orders: Orders) -> np.ndarray:
        """As the base class says."""
        return _curve(*self._numbers, tuple(orders))

    def pld(self, interval: float, count: int) -> pld.PrivacyLossDistribution:
        """As the base class says."""
        one = selective_pld(*self._numbers, interval)
        return one if count == 1 else one.self_compose(count)

    @property
    def _numbers(self) -> tuple[float, float, float, float, float]:
        numbers = (self.rate, self.multiplier, self.valid_rate, *self.passing)
        return tuple(float(number) for number in numbers)  # type: ignore[return-value]


def trials_for(beta: float, valid_noise: float) -> int:
    """So many trials that a release fails with probability below 1e-30."""
    low, _ = passing(finite("beta", beta), positive("valid_noise", valid_noise))
    return max(1, math.ceil(-69.1 / math.log1p(-low))) if 0 < low < 1 else 1


@lru_cache(maxsize=4096)
def _moment(
    rate: float, multiplier: float, valid_rate: float, low: float, high: float, order: float
) -> float:
    """(order − 1) times the divergence."""
    bound = selective_rdp(rate, multiplier, valid_rate, low, high, order)
    return (order - 1) * bound


@lru_cache(maxsize=256)
def _curve(
    rate: float, multiplier: float, valid_rate: float, low: float, high: float, orders: Orders
) -> np.ndarray:
    numbers = (rate, multiplier, valid_rate, low, high)
    if len(orders) <= 4:  # a filter asks for one
        curve = np.array([_moment(*numbers, order) / (order - 1) for order in orders])
    else:
        knots = np.array((1.0, *_KNOTS))
        moments = np.array([0.0, *(_moment(*numbers, float(order)) for order in _KNOTS)])
        asked = np.asarray(orders, dtype=float)
        # np.interp of an infinite end is NaN, which counts as infinite
        chords = np.interp(asked, knots, moments, right=math.inf)
        curve = np.nan_to_num(chords, nan=math.inf, posinf=math.inf) / (asked - 1)
    curve.setflags(write=False)
    return curve
