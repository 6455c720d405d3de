"""ε after each evaluation, from the ledger where it says in which order it was filled."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from reticent.errors import AccountingError
from reticent.privacy import Charge, Ledger
from reticent.privacy.selective import SelectiveGaussian

POINTS = 12  # ε is computed anew for each
_PLANNED = ", planned but not made"
_IN_ORDER = ("noise-decay",)  # methods that use each of their charges in one stretch


def spent_at(run: dict[str, Any], steps: Sequence[int]) -> list[float] | None:
    """An upper bound on ε after each of these numbers of releases; None where none is known.

    The ledger merges equal charges, and of an adaptive method the filter proves nothing but the
    whole budget: then there is nothing to say before the end.
    """
    ledger, total = Ledger.from_json(run["ledger"]), int(run["steps"])
    final = run["statement"]["epsilon"]
    if final is None or ledger.adaptive or total < 1:
        return None
    before = [
        (Charge.from_json(line["charge"]), line["purpose"], int(line["count"]))
        for line in (run.get("conduct") or {}).get("paid_before", ())
    ]
    plan = _plan(ledger, before, total, str(run["method"].get("name")))
    if plan is None:
        return None
    delta = float(run["statement"]["delta"])
    return [_upto(plan, before, step, total, delta, float(final)) for step in steps]


Lines = dict[str, list[tuple[Charge, int]]]


def _plan(
    ledger: Ledger, before: list[tuple[Charge, str, int]], total: int, method: str
) -> Lines | None:
    """By purpose, the charges of the releases in order; None where the order is not known."""
    plan: Lines = defaultdict(list)
    paid = {(charge, purpose): count for charge, purpose, count in before}
    for entry in ledger.entries:
        count = entry.count - paid.get((entry.charge, entry.purpose), 0)
        if count > 0 and not entry.purpose.endswith(_PLANNED):
            plan[entry.purpose].append((entry.accounted, count))
    for lines in plan.values():
        if sum(count for _, count in lines) != total:
            return None
        if len(lines) > 1 and method not in _IN_ORDER:
            return None
    return plan


def _upto(
    plan: Lines,
    before: list[tuple[Charge, str, int]],
    step: int,
    total: int,
    delta: float,
    final: float,
) -> float:
    if step >= total:
        return final
    ledger = Ledger()
    for charge, purpose, count in before:
        ledger.charge(charge, purpose, count=count)
    for purpose, lines in plan.items():
        left = step
        for charge, count in lines:
            if min(count, left) > 0:
                ledger.charge(charge, purpose, count=min(count, left))
            left -= min(count, left)
    selected = any(isinstance(entry.charge, SelectiveGaussian) for entry in ledger.entries)
    try:
        found = ledger.quick_epsilon(delta) if selected else ledger.epsilon(delta)
    except AccountingError:
        return final
    return min(found, final)  # a part of the releases costs no more than all of them
