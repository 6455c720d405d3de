"""What a release costs, as plain data.

A charge knows its Rényi curve and, where it has one, its privacy-loss distribution, both for adding
or removing one record. Accountants only add charges up. Privacy-loss distributions of Gaussians are
those of `dp-accounting`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.special import ndtr

from reticent.errors import AccountingError, OptionError, between, positive
from reticent.privacy.sampled_moments import real_moments, whole_moments
from reticent.privacy.sampled_pld import sampled_gaussian_pld

Orders = tuple[float, ...]

# A sum of `order` terms close to 1 loses about this much per term; the slack keeps the curve an
# upper bound where its own value is as small as that.
_ROUNDING_SLACK = 1e-15
# The series for real orders stops at terms e^-30 of the whole, which is about 1.
_SERIES_SLACK = 2e-13
# Squares of multipliers beyond these would leave the floating-point numbers, or come close.
LEAST_MULTIPLIER, MOST_MULTIPLIER = 1e-9, 1e15
# Standard deviations that drawn noise reaches (`reticent.coins`); a Gaussian has no end.
REACH = 12.0


@dataclass(frozen=True)
class Charge(ABC):
    """The cost of one release."""

    kind: ClassVar[str] = ""
    kinds: ClassVar[dict[str, type[Charge]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.kind:
            Charge.kinds[cls.kind] = cls

    @abstractmethod
    def rdp(self, orders: Orders) -> np.ndarray:
        """Upper bounds on the Rényi divergence of each order, the larger of both directions."""

    def pld(self, interval: float, count: int) -> pld.PrivacyLossDistribution | None:
        """The privacy-loss distribution of `count` such releases, or None if it has none."""
        return None

    @property
    def failure(self) -> float:
        """The probability that a release breaks its promise; accountants take it from δ."""
        return 0.0

    @property
    def cut(self) -> float:
        """How much more δ a release costs because drawn noise ends somewhere, at most."""
        return 0.0

    def covers(self, other: Charge) -> bool:
        """Whether `other` is a post-processing of this charge's mechanism: never costlier."""
        return self == other

    def to_json(self) -> dict[str, Any]:
        """The charge as JSON-ready data."""
        return {"kind": self.kind, **asdict(self)}

    @staticmethod
    def from_json(data: Any) -> Charge:
        """Read a charge back; unknown kinds and fields are refused, never ignored."""
        if not isinstance(data, dict):
            raise AccountingError(f"charge {data!r}: must be an object with a 'kind'")
        values = dict(data)
        kind = values.pop("kind", None)
        if kind not in Charge.kinds:
            raise AccountingError(
                f"charge kind {kind!r} is unknown; known: {', '.join(sorted(Charge.kinds))}"
            )
        cls = Charge.kinds[kind]
        expected = {field.name for field in fields(cls)}
        if set(values) != expected:
            raise AccountingError(
                f"charge {kind!r} has fields {sorted(values)}, must have {sorted(expected)}"
            )
        return cls(**values)


def _multiplier(option: str, value: float) -> float:
    if value == 0:
        raise OptionError(
            option, value, "no noise means no guarantee; ask for a non-private run instead"
        )
    return between(option, positive(option, value), LEAST_MULTIPLIER, MOST_MULTIPLIER)


def beyond_reach(multiplier: float) -> float:
    """The probability that a record moves one number to where noise without it never comes.

    At worst all of its sensitivity is in one coordinate, which it moves by 1/multiplier standard
    deviations. Short of that, drawn noise has a Gaussian's density.

    Example:
        >>> beyond_reach(1.0) < 1e-27, 1e-8 < beyond_reach(0.15) < 1e-7
        (True, True)
    """
    return float(ndtr(1 / multiplier - REACH))


@dataclass(frozen=True)
class SampledGaussian(Charge):
    """Each record takes part with probability `rate`; the sum gets noise `multiplier`·sensitivity.

    Formal guarantee: the Poisson-sampled Gaussian mechanism (Mironov, Talwar, Zhang 2019).
    """

    rate: float
    multiplier: float
    kind: ClassVar[str] = "sampled-gaussian"

    def __post_init__(self) -> None:
        between("rate", self.rate, 0, 1, open_low=True)
        _multiplier("multiplier", self.multiplier)

    @property
    def cut(self) -> float:
        """As the base class says."""
        return self.rate * beyond_reach(self.multiplier)

    def rdp(self, orders: Orders) -> np.ndarray:
        """As the base class says."""
        return _sampled_gaussian_rdp(float(self.rate), float(self.multiplier), tuple(orders))

    def pld(self, interval: float, count: int) -> pld.PrivacyLossDistribution:
        """As the base class says."""
        if self.rate == 1:  # the sum of Gaussians is Gaussian: no convolution needed
            return pld.from_gaussian_mechanism(
                standard_deviation=self.multiplier / count**0.5,
                value_discretization_interval=interval,
            )
        return _one_release(float(self.rate), float(self.multiplier), interval).self_compose(count)

    def covers(self, other: Charge) -> bool:
        """A lower rate or a larger multiplier can be simulated from this mechanism's output."""
        return (
            isinstance(other, SampledGaussian)
            and other.rate <= self.rate
            and other.multiplier >= self.multiplier
        )


@dataclass(frozen=True)
class NonPrivate(Charge):
    """A use of the records without any guarantee; every ε over it is infinite."""

    reason: str
    kind: ClassVar[str] = "non-private"

    def rdp(self, orders: Orders) -> np.ndarray:
        """Infinite at every order."""
        return np.full(len(orders), np.inf)


@lru_cache(maxsize=4096)
def _sampled_gaussian_rdp(rate: float, multiplier: float, orders: Orders) -> np.ndarray:
    asked = np.asarray(orders, dtype=float)
    if rate == 1:
        curve = asked / (2 * multiplier**2)
    else:
        # ln E[ratio^order] is convex in the order and 0 at order 1, so a chord between whole
        # orders bounds it; the series for real orders adds absolute values and can be larger, or
        # not converge.
        below, above = np.floor(asked), np.ceil(asked)
        whole = np.unique(np.concatenate([below, above]))
        above_one = whole[whole > 1]
        moments = _from_above(whole_moments(rate, multiplier, above_one), above_one)
        at_whole = {1.0: 0.0, **dict(zip(above_one, moments, strict=True))}
        share = asked - below
        lower, upper = (np.array([at_whole[k] for k in ends]) for ends in (below, above))
        with np.errstate(invalid="ignore"):
            chord = np.nan_to_num((1 - share) * lower + share * upper, nan=np.inf, posinf=np.inf)
        real = below != above
        series = _from_above(real_moments(rate, multiplier, asked[real]), asked[real])
        chord[real] = np.minimum(chord[real], series + _SERIES_SLACK)
        curve = chord / (asked - 1)
    curve.setflags(write=False)
    return curve


@lru_cache(maxsize=16)
def _one_release(rate: float, multiplier: float, interval: float) -> pld.PrivacyLossDistribution:
    return sampled_gaussian_pld(rate, multiplier, interval)  # a search for steps asks many times


def _from_above(moments: np.ndarray, orders: np.ndarray) -> np.ndarray:
    return np.maximum(moments, 0) + _ROUNDING_SLACK * orders
