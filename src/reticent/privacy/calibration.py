"""Noise from steps, steps from noise; always rounded to the safe side."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import brentq

from reticent.errors import BudgetError, OptionError
from reticent.privacy.accountants import ORDERS, Bill, rdp_to_epsilon
from reticent.privacy.budget import Budget
from reticent.privacy.charges import REACH, Charge, SampledGaussian
from reticent.privacy.filters import divergence_left
from reticent.privacy.ledger import Ledger
from reticent.privacy.selective import SelectiveGaussian

# Plans of more charges than this are searched with few questions: each takes seconds.
FEW_CHARGES = 3
# Searching outside this range means that another option is the problem.
LEAST_MULTIPLIER, MOST_MULTIPLIER = 0.05, 1e5
USUAL_POWER = -5  # of ten, for δ


def steps_for(
    budget: Budget, charge: Charge, *, ledger: Ledger | None = None, accountant: str | None = None
) -> int:
    """The most releases at `charge` that stay within the budget, after what `ledger` has paid."""
    return _opened(budget, ledger).capacity(charge, accountant)


def noise_for(
    budget: Budget,
    charge_at: Callable[[float], Charge],
    steps: int,
    *,
    ledger: Ledger | None = None,
    accountant: str | None = None,
) -> float:
    """The smallest noise multiplier, to four digits rounded up, that affords `steps` releases.

    Args:
        budget: What may be spent in all.
        charge_at: The charge of one release at a given noise multiplier.
        steps: How many releases to afford.
        ledger: Charges already paid, or sure to be paid, from the same budget.
        accountant: As `Ledger.epsilon` takes it.
    """
    sample = charge_at(1.0)
    if steps and accountant is None and isinstance(sample, SelectiveGaussian):
        opened = _opened(budget, ledger)
        if not opened.adaptive:
            # selection costs some more noise than none would
            check_failures([sample], budget)
            rate = sample.rate
            plain = noise_for(budget, lambda m: SampledGaussian(rate, m), steps, ledger=ledger)
            found = _few_questions(
                lambda m: opened.epsilon_with(((charge_at(m), steps),)),
                1.25 * plain,
                budget.epsilon,
            )
            if math.isfinite(found):
                return found
    return noise_for_plan(
        budget, lambda m: ((charge_at(m), steps),), ledger=ledger, accountant=accountant
    )


def noise_for_plan(
    budget: Budget,
    bill_at: Callable[[float], Bill],
    *,
    ledger: Ledger | None = None,
    accountant: str | None = None,
) -> float:
    """The same for a plan of several charges, all of which fall as the multiplier grows."""
    steps = sum(count for _, count in bill_at(1.0))
    if steps == 0:
        return LEAST_MULTIPLIER
    opened = _opened(budget, ledger)
    check_failures([charge for charge, _ in bill_at(1.0)], budget)
    if accountant is None and len(bill_at(1.0)) > FEW_CHARGES and not opened.adaptive:
        found = _few_questions(
            lambda m: opened.epsilon_with(bill_at(m)),
            _as_if_constant(budget, bill_at, ledger),
            budget.epsilon,
        )
        if math.isfinite(found):
            return found

    def epsilon(multiplier: float, by: str | None) -> float:
        return opened.epsilon_with(bill_at(multiplier), by)

    def search(low: float, high: float, by: str | None, digits: float) -> float:
        # ε falls smoothly in the logarithm of the multiplier: Brent's method takes a handful of
        # evaluations where bisection takes fifteen
        def excess(log_multiplier: float) -> float:
            value = epsilon(math.exp(log_multiplier), by)
            return math.log(max(value, 1e-12) / budget.epsilon) if math.isfinite(value) else 50.0

        return math.exp(brentq(excess, math.log(low), math.log(high), xtol=digits))

    # Rényi curves answer in milliseconds and suffice to tell that no search will help.
    quick = "rdp" if accountant is None and not opened.adaptive else accountant
    if epsilon(MOST_MULTIPLIER, quick) > budget.epsilon:
        raise _too_little(budget, bill_at(MOST_MULTIPLIER), ledger)
    if epsilon(LEAST_MULTIPLIER, quick) <= budget.epsilon:
        return LEAST_MULTIPLIER
    low, high = LEAST_MULTIPLIER, MOST_MULTIPLIER
    if quick == "rdp":
        # The Rényi answer is a safe upper end.
        high = 1.001 * search(low, high, "rdp", 1e-4)
        step = 0.8
        while epsilon(high * step, accountant) <= budget.epsilon and high * step > low:
            step *= 0.8
        low = max(low, high * step)
        if epsilon(low, accountant) <= budget.epsilon:
            return low  # records take part so rarely, or δ is so large, that any noise will do
    multiplier = _round_up(search(low, high, accountant, 1e-5))
    while epsilon(multiplier, accountant) > budget.epsilon:
        multiplier = _round_up(multiplier * 1.0001)
    return multiplier


def _too_little(budget: Budget, bill: Bill, ledger: Ledger | None) -> BudgetError:
    """The error where the most noise does not afford a bill, with what would."""
    steps = sum(count for _, count in bill)
    enough = _enough_delta(budget, bill, ledger)
    hint = "allow a larger epsilon or fewer steps"
    if enough is not None and sum(count * charge.cut for charge, count in bill) >= budget.delta:
        hint = (
            f"a delta of {enough:g} would do: it pays for what drawn noise, which ends at {REACH:g}"
            " standard deviations, cannot hide"
        )
    elif enough is not None:
        hint += f", or a delta of {enough:g}"
    return BudgetError(
        f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g}: no noise multiplier up to "
        f"{MOST_MULTIPLIER:g} affords {steps} steps; {hint}"
    )


def _enough_delta(budget: Budget, bill: Bill, ledger: Ledger | None) -> float | None:
    """The least power of ten up to a usual δ at which ε affords a bill; None where none does."""
    planned = _opened(None, ledger)
    if planned.adaptive:
        return None
    for charge, count in bill:
        planned.charge(charge, "planned", count=count)
    powers = range(math.floor(math.log10(budget.delta)) + 1, USUAL_POWER + 1)
    found = bisect_left(
        powers, True, key=lambda power: planned.epsilon(10.0**power, "rdp") <= budget.epsilon
    )
    return 10.0 ** powers[found] if found < len(powers) else None


def _as_if_constant(
    budget: Budget, bill_at: Callable[[float], Bill], ledger: Ledger | None
) -> float:
    """About the noise a plan needs, from what as many releases of one multiplier would.

    By the central limit theorem of composition (Bu et al. 2020) sampled Gaussians
    cost what Σ count·rate²·(exp(σ⁻²) − 1) says, nearly.
    """

    def cost(bill: Bill) -> float:
        return sum(
            count * charge.rate**2 * math.expm1(min(charge.multiplier**-2, 500.0))
            for charge, count in bill
            if isinstance(charge, SampledGaussian)
        )

    plan = bill_at(1.0)
    rate = max((c.rate for c, _ in plan if isinstance(c, SampledGaussian)), default=1.0)
    steps = sum(count for _, count in plan)
    constant = noise_for(budget, lambda m: SampledGaussian(rate, m), steps, ledger=ledger)
    target = cost(((SampledGaussian(rate, constant), steps),))

    def excess(log_multiplier: float) -> float:
        return math.log(max(cost(bill_at(math.exp(log_multiplier))), 1e-300) / target)

    ends = math.log(LEAST_MULTIPLIER), math.log(MOST_MULTIPLIER)
    if excess(ends[0]) <= 0 or excess(ends[1]) >= 0:
        return constant
    return math.exp(brentq(excess, *ends, xtol=1e-6))


def _few_questions(epsilon: Callable[[float], float], start: float, target: float) -> float:
    """The noise for ε = `target` where each answer takes seconds, from a first guess.

    ln ε is nearly linear in ln σ: the secant through the last two answers, aimed a little below the
    target, lands within 0.1 % after three or four.
    """

    def miss_at(multiplier: float) -> float:
        value = epsilon(multiplier)
        return math.log(max(value, 1e-12) / target) if math.isfinite(value) else 5.0

    at, slope, safe = start, -1.2, math.inf
    miss = miss_at(at)
    for _ in range(10):
        if miss <= 0:
            safe = min(safe, at)
            if miss >= -1e-3:
                break
        aim = min(max((-3e-4 - miss) / slope, -0.7), 0.7)
        at, before = at * math.exp(aim), miss
        miss = miss_at(at)
        if miss != before:
            slope = min(max((miss - before) / aim, -4.0), -0.3)
    while not math.isfinite(safe) and at < MOST_MULTIPLIER:
        at *= 1.3
        safe = at if miss_at(at) <= 0 else safe
    if not math.isfinite(safe):
        return math.inf
    rounded = _round_up(safe)
    while miss_at(rounded) > 0:  # a bound need not fall as smoothly as what it bounds
        rounded = _round_up(rounded * 1.001)
    return rounded


def check_failures(charges: Sequence[Charge], budget: Budget) -> None:
    """Refuse what breaks its promise so often that not one release fits."""
    failure = max((charge.failure for charge in charges), default=0.0)
    if 2 * failure > budget.delta:
        raise OptionError(
            "trials",
            next(getattr(c, "trials", None) for c in charges if c.failure == failure),
            f"all of them fail with probability up to {failure:.1e} a release, which delta = "
            f"{budget.delta:g} does not leave room for; raise trials, leave it out, or allow a "
            "larger delta",
        )


def filter_order_for(budget: Budget, plan: Bill) -> float:
    """The Rényi order at which the planned charges cost least.

    Choose it before the run and give it to the ledger; it depends on public numbers alone.
    """
    curve = sum((count * charge.rdp(ORDERS) for charge, count in plan), np.zeros(len(ORDERS)))
    costs = [
        rdp_to_epsilon(order, float(value), budget.delta)
        for order, value in zip(ORDERS, curve, strict=True)
    ]
    best = min(range(len(costs)), key=costs.__getitem__)
    if not math.isfinite(costs[best]):
        raise OptionError("plan", plan, "has no finite Rényi divergence at any order")
    return ORDERS[best]


def order_for_most(budget: Budget, charges: Sequence[Charge], ledger: Ledger) -> float:
    """The Rényi order at which a filter affords most releases at these charges.

    Like `filter_order_for`, from public numbers alone; for a plan that may exceed the budget.
    """
    paid = tuple((entry.accounted, entry.count) for entry in ledger.entries)
    price = sum((charge.rdp(ORDERS) for charge in charges), np.zeros(len(ORDERS)))

    def afforded(place: int) -> float:
        return divergence_left(paid, budget, ORDERS[place]) / float(price[place])

    best = max(range(len(ORDERS)), key=afforded)
    if afforded(best) < 1:
        raise BudgetError(
            f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g}: a filter affords no release"
            f" at {' and '.join(str(charge) for charge in charges)}; use more noise, a smaller "
            "batch or a larger epsilon"
        )
    return ORDERS[best]


def _round_up(value: float, digits: int = 4) -> float:
    scale = 10 ** (digits - 1 - math.floor(math.log10(value)))
    return math.ceil(value * scale * (1 - 1e-12)) / scale


def _opened(budget: Budget | None, ledger: Ledger | None) -> Ledger:
    opened = Ledger(budget, filter_order=None if ledger is None else ledger.filter_order)
    for entry in () if ledger is None else ledger.entries:
        opened.charge(
            entry.charge,
            entry.purpose,
            count=entry.count,
            adaptive=entry.adaptive,
            within=entry.within,
        )
    return opened
