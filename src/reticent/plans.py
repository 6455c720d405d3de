"""What a budget buys, from public numbers alone: how much noise, on how much signal.

All noise is in units of the clipping bound C, which no gradient exceeds: a release of expected
batch b has noise of standard deviation σ·C on each coordinate of a sum, hence σ/b on the mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.optimize import brentq
from scipy.special import log_ndtr

from reticent.errors import OptionError, positive, whole
from reticent.methods import DPSGD
from reticent.privacy import Budget, Ledger

STEPS = (100, 1000)
SHARES = (1, 8, 64)  # batches: all records, an eighth, ...
LEAST_BATCH = 16
# Rows this close to the best one are equivalent.
SAME = 1.05
# Seconds that a training may take before a cheaper, equivalent row is suggested.
PATIENCE = 600.0
# Up to which length of the noise, in clips, how much accuracy is lost. A rule of thumb, chosen
# after a few trials of private linear models of four small public data sets; it proves nothing.
LEVELS = (
    (0.03, "little", "little accuracy is lost to noise"),
    (0.1, "some", "some accuracy is lost to noise"),
    (0.3, "much", "much accuracy is lost to noise; a smaller model loses less"),
    (math.inf, "hopeless", "hopeless: the noise is about as long as any signal can be"),
)


@dataclass(frozen=True)
class Row:
    """One way to spend a budget: a batch, a number of releases, the noise that affords them."""

    batch: int
    steps: int
    noise: float

    @property
    def per_release(self) -> float:
        """Noise per coordinate of one release's mean gradient, in clips: σ/b."""
        return self.noise / self.batch

    @property
    def effective(self) -> float:
        """Noise per coordinate of the mean of all releases, in clips: σ/(b·√T).

        Rows that have it in common tell a model equally much about the records.
        """
        return self.noise / (self.batch * math.sqrt(self.steps))

    def length(self, parameters: int) -> float:
        """Length of that noise over all coordinates, √d·σ/(b·√T); a clipped gradient has ≤ 1."""
        return math.sqrt(parameters) * self.effective

    def work(self) -> int:
        """Gradients computed."""
        return self.batch * self.steps


def rows_for(
    budget: Budget, n: int, batches: Sequence[int] = (), steps: Sequence[int] = ()
) -> list[Row]:
    """DP-SGD at each batch and number of steps, calibrated as a training would be.

    Example:
        >>> row, = rows_for(Budget(1, 1e-5), 1000, batches=[1000], steps=[100])
        >>> round(row.effective / floor(Budget(1, 1e-5), 1000), 2)
        1.0
    """
    whole("n", n)
    chosen = sorted({whole("batch", b) for b in batches or default_batches(n)}, reverse=True)
    lengths = sorted({whole("steps", t) for t in steps or STEPS})
    for batch in chosen:
        if batch > n:
            raise OptionError("batch", batch, f"exceeds n = {n}")
    rows = []
    for batch in chosen:
        for count in lengths:
            noise = DPSGD(batch=batch).calibrated(budget, n, count, Ledger(budget)).noise
            assert noise is not None
            rows.append(Row(batch, count, noise))
    return rows


def default_batches(n: int) -> list[int]:
    """All records, an eighth and a sixty-fourth of them, none too small."""
    return list(dict.fromkeys(max(n // share, min(LEAST_BATCH, n)) for share in SHARES))


def floor(budget: Budget, n: int) -> float:
    """The least effective noise that n records and this budget allow, in clips: 1/(n·μ).

    T releases of all records with noise σ·C are as private as one with σ/√T, which is μ-Gaussian
    DP with μ = √T/σ; μ from δ(ε) of Balle and Wang 2018, Theorem 8.
    """
    whole("n", n)
    target = math.log(budget.delta)

    def excess(mu: float) -> float:
        high = log_ndtr(-budget.epsilon / mu + mu / 2)
        low = budget.epsilon + log_ndtr(-budget.epsilon / mu - mu / 2)
        return high + math.log(max(-math.expm1(min(low - high, 0.0)), 1e-300)) - target

    most = 2 * budget.epsilon + 60.0
    mu = brentq(excess, min(budget.epsilon, 1.0) * 1e-4, most, xtol=1e-12)
    return 1 / (n * mu)


def verdict(length: float) -> tuple[str, str]:
    """(level, sentence) for noise of this length, in clips."""
    return next((name, text) for most, name, text in LEVELS if length <= most)


def most_parameters(effective: float, level: str) -> int:
    """How many parameters keep the noise within a level."""
    bound = next(most for most, name, _ in LEVELS if name == level)
    return int((bound / effective) ** 2)


def feasible(effective: float) -> bool:
    """Whether any model at all can learn through this noise, be it of one parameter."""
    return most_parameters(effective, "much") > 0


def in_words(effective: float) -> str:
    """Which models lose how much to this noise.

    Example:
        >>> in_words(0.05)
        'Models of up to 4 parameters lose some, up to 35 much; beyond that it is hopeless.'
    """
    if not feasible(effective):
        return "No model is feasible: the noise drowns even a single parameter."
    counts = [(most_parameters(effective, name), name) for _, name, _ in LEVELS[:-1]]
    (least, name), *more = [(most, name) for most, name in counts if most]
    also = "".join(f", up to {most:,} {name}" for most, name in more)
    return f"Models of up to {least:,} parameters lose {name}{also}; beyond that it is hopeless."


def suggested(rows: Sequence[Row], seconds_per_record: float | None = None) -> Row:
    """The largest batch and fewest steps among the equivalent best; less work if that takes long.

    A larger batch at the same noise adds no privacy cost, and it averages out which records were
    drawn; fewer steps take less time.
    """
    least = min(row.effective for row in rows)
    equal = [row for row in rows if row.effective <= SAME * least]
    equal.sort(key=lambda row: (-row.batch, row.steps))
    if seconds_per_record is None or seconds_per_record * equal[0].work() <= PATIENCE:
        return equal[0]
    return min(equal, key=Row.work)


@dataclass(frozen=True)
class Meaning:
    """What (ε, δ) says about one record, for people.

    Attributes:
        odds: factor by which anyone's odds that a record was there can grow or shrink: e^ε.
        from_even: what even odds can become, as a probability: e^ε/(1 + e^ε).
        caught: most members found by a test that wrongly names one outsider in a hundred.
        delta_per_record: δ·n: how often, over all records, the promise may fail.
    """

    odds: float
    from_even: float
    caught: float
    delta_per_record: float


def meaning(budget: Budget, n: int) -> Meaning:
    """The budget in words' numbers.

    Example:
        >>> round(meaning(Budget(1, 1e-5), 1000).from_even, 2)
        0.73
    """
    epsilon = positive("epsilon", budget.epsilon)
    odds = math.exp(min(epsilon, 700.0))
    # either error bounds the other: Kairouz, Oh, Viswanath 2015, equation 3
    caught = min(odds * 0.01 + budget.delta, 1 - (1 - 0.01 - budget.delta) / odds)
    return Meaning(odds, odds / (1 + odds), max(caught, 0.0), budget.delta * n)
