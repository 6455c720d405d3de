"""What a privacy filter proves about charges that depend on earlier releases.

The sum of such charges is random, and a bound read off afterwards is none. That the Rényi
divergence at one order, fixed beforehand, never adds up to more than the budget stands for is sure,
and proves the budget's ε (Feldman and Zrnic 2021, Theorem 4.3): no more, and no less.
"""

from __future__ import annotations

import math

from reticent.errors import AccountingError, finite
from reticent.privacy.accountants import Bill, rdp_to_epsilon, rdp_to_epsilon_terms
from reticent.privacy.budget import Budget
from reticent.privacy.statements import state


def checked_order(order: float) -> float:
    """A Rényi order, refused if it is none."""
    if finite("filter_order", order) <= 1:
        raise AccountingError(f"filter_order = {order!r}: must be greater than 1")
    return order


def pledged_divergence(budget: Budget, order: float) -> float:
    """The Rényi divergence of this order that the budget stands for."""
    return budget.epsilon - rdp_to_epsilon_terms(order, budget.delta)


def divergence_left(bill: Bill, budget: Budget, order: float) -> float:
    """How much of it these charges leave."""
    paid = sum(count * float(charge.rdp((order,))[0]) for charge, count in bill)
    return pledged_divergence(budget, order) - paid


def pledged_epsilon(bill: Bill, budget: Budget | None, order: float, delta: float) -> float:
    """The ε at `delta` that a filter with this budget proves, whatever was spent of it."""
    if budget is None:
        return math.inf
    spent = state(bill, budget.delta, "filter", adaptive=True, filter_order=order)
    if spent.epsilon > budget.epsilon:
        return math.inf  # read from a file that no filter has kept
    if delta >= budget.delta:
        return budget.epsilon
    if any(charge.failure for charge, _ in bill):
        return math.inf  # their share of δ was settled for the budget's
    return rdp_to_epsilon(order, pledged_divergence(budget, order), delta)
