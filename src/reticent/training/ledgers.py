"""The ledger that a run writes in: its own, or one that others were paid from before."""

from __future__ import annotations

from typing import Any

from reticent.errors import CheckpointError, OptionError
from reticent.features.standardising import MEANS, VARIANCES
from reticent.privacy import Budget, Ledger


def open_ledger(ledger: Ledger | None, budget: Budget | None) -> Ledger:
    """A new ledger, or the one that was given, if it is of this budget."""
    if ledger is None:
        return Ledger(budget)
    if ledger.budget != budget:
        raise OptionError("ledger", ledger.budget, f"was opened for another budget than {budget}")
    return ledger


def paid_for_others(ledger: Ledger) -> bool:
    """Whether releases were paid that are no statistics of inputs, which are planned with a run."""
    return any(entry.purpose not in (MEANS, VARIANCES) for entry in ledger.entries)


def check_continued(
    given: Ledger | None, paid: list[dict[str, Any]], saved: dict[str, Any]
) -> None:
    """What was paid before the run must be what its checkpoint says of that."""
    conduct = saved.get("conduct")
    then = conduct.get("paid_before") if isinstance(conduct, dict) else None
    if given is None or not isinstance(then, list):
        return
    for line in (*paid, *then):
        if line not in paid or line not in then:
            has, lacks = ("ledger", "checkpoint") if line in paid else ("checkpoint", "ledger")
            raise CheckpointError(
                f"the {has} has {line['count']} of {line['purpose']!r} as paid before the run, the "
                f"{lacks} has not: give the ledger as it was when the run began"
            )
