"""Whether what was charged pays for what was done: multipliers, rates and choices.

A charge is a price for noise of its own multiplier on records drawn at its own rate. Noise that is
in the list of prices exactly is paid for. What is left over may be several values released
together: Gaussian noise of multipliers m₁, m₂, ... is one Gaussian release of multiplier
(Σ mᵢ⁻²)^(−½), so Σ mᵢ⁻² must not exceed the same sum over the prices left over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from reticent.privacy import Charge, NonPrivate, SampledGaussian, SampledPure, SelectiveGaussian

ROUNDING = 1e-9


@dataclass
class Prices:
    """What a list of charges pays for.

    Attributes:
        gaussian: Multipliers, each as often as it was paid.
        each_trial: Multipliers that every trial of a release may use once, for the price of one:
            that of a sum, and that of a test, which is a single number.
        choices: ε of noisy choices, each as often as it was paid.
        rates: At which records may be drawn.
        free: Whether no guarantee is claimed, so that nothing can be said.
        unknown: Kinds of charges that nothing is known about here.
    """

    gaussian: Counter[float] = field(default_factory=Counter)
    each_trial: set[tuple[float, float]] = field(default_factory=set)
    choices: Counter[float] = field(default_factory=Counter)
    rates: set[float] = field(default_factory=set)
    free: bool = False
    unknown: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, charges: Iterable[tuple[Charge, int]]) -> Prices:
        """Read the charges of a ledger."""
        found = cls()
        for charge, count in charges:
            if isinstance(charge, SampledGaussian):
                found.gaussian[charge.multiplier] += count
                found.rates.add(charge.rate)
            elif isinstance(charge, SelectiveGaussian):
                found.each_trial.add((charge.multiplier, charge.valid_noise))
                found.rates |= {charge.rate, charge.valid_rate}
            elif isinstance(charge, SampledPure):
                found.choices[charge.epsilon] += count
                found.rates.add(charge.rate)
            elif isinstance(charge, NonPrivate):
                found.free = True
            else:
                found.unknown.add(charge.kind)
        return found

    def unpaid_noise(self, used: Counter[float]) -> tuple[str, bool]:
        """(what is wrong with this noise, or nothing; whether prices are left over)."""
        prices, left = Counter(self.gaussian), Counter(used)
        for multiplier in list(left):
            if any(_same(multiplier, own) for pair in self.each_trial for own in pair):
                del left[multiplier]  # how often, `unpaid_trial` looks at
                continue
            for price in list(prices):
                both = min(left[multiplier], prices[price]) if _same(multiplier, price) else 0
                left[multiplier] -= both
                prices[price] -= both
        left, prices = +left, +prices
        spent, paid = (
            sum(count / m**2 if m else float("inf") for m, count in some.items())
            for some in (left, prices)
        )
        if spent > paid * (1 + ROUNDING):
            shown = ", ".join(f"{m:.6g} ({count} times)" for m, count in sorted(left.items()))
            own = {m for pair in self.each_trial for m in pair}
            wanted = ", ".join(f"{m:.6g}" for m in sorted({*self.gaussian, *own}))
            return (
                f"noise of multiplier {shown} is not paid for; charged: {wanted or 'none'}",
                False,
            )
        return "", bool(prices) and not spent

    def unpaid_trial(self, sums: list[float], tests: list[float]) -> str:
        """What is wrong with the noise of one trial of a selected release, or nothing.

        Args:
            sums: Multipliers of the vectors that got noise.
            tests: Multipliers of the single numbers.
        """
        for own, test in self.each_trial:
            right = all(_same(m, own) for m in sums) and all(_same(m, test) for m in tests)
            if right and max(len(sums), len(tests)) <= 1:
                return ""
        used = ", ".join(f"{m:.6g}" for m in (*sums, *tests))
        return f"a trial used noise of multipliers {used}; charged: {sorted(self.each_trial)}"

    def unpaid_choices(self, used: Counter[float]) -> str:
        """What is wrong with these choices, or nothing."""
        extra = sum(count for epsilon, count in used.items() if epsilon) - self.choices.total()
        most = max(self.choices, default=0.0)
        if any(epsilon > most * (1 + ROUNDING) for epsilon in used) or extra > 0:
            shown = ", ".join(f"{epsilon:.6g}" for epsilon in sorted(used))
            return f"choices of ε {shown} are not paid for; charged: {self.choices.total()}"
        return ""

    def unpaid_rate(self, rate: float) -> str:
        """What is wrong with drawing at this rate, or nothing.

        A charge says at which rate it was computed; a lower one costs less.
        """
        if any(_same(rate, own) for own in self.rates) or rate < min(self.rates, default=0):
            return ""
        charged = ", ".join(f"{own:.6g}" for own in sorted(self.rates)) or "none"
        return f"records were drawn at rate {rate:.6g}; charged: {charged}"


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= ROUNDING * max(a, b)
