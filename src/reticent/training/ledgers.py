"""The ledger that a run writes in: its own, or one that others were paid from before."""

from __future__ import annotations

from typing import Any

from reticent.errors import CheckpointError, OptionError
from reticent.features.standardising import PLAN_OR_OWN, check_planned, paid_for_others
from reticent.privacy import Budget, Ledger
from reticent.training.conduct import Conduct

__all__ = ["check_begun", "check_continued", "check_planned", "open_ledger"]

SEVERAL_NOTE = (
    "other releases were paid from this ledger before this training: whoever opened it has said "
    "that all were fixed (method, noise, number of releases) before any result was seen; its ε is "
    "no bound otherwise"
)


def open_ledger(ledger: Ledger | None, budget: Budget | None) -> Ledger:
    """A new ledger, or the one that was given, if it is of this budget."""
    if ledger is None:
        return Ledger(budget)
    if ledger.budget != budget:
        raise OptionError("ledger", ledger.budget, f"was opened for another budget than {budget}")
    if paid_for_others(ledger):
        ledger.note(SEVERAL_NOTE)
    return ledger


def check_begun(ledger: Ledger, then: list[dict[str, Any]], conduct: Conduct) -> None:
    """What others paid after a training was prepared, and before its first release.

    Whoever has several prepared may choose among them by what the first gives: a plan has all.

    Args:
        ledger: That of the training.
        then: Its entries when the training was prepared, or resumed.
        conduct: What the training says of itself; it takes up what was paid meanwhile.
    """
    now = ledger.to_json()["entries"]
    if now == then:
        return
    others = ", ".join(dict.fromkeys(str(line["purpose"]) for line in now if line not in then))
    if not ledger.planned:
        raise OptionError(
            "ledger",
            others,
            f"was paid from it after this training was prepared. Open it {PLAN_OR_OWN}",
        )
    if conduct.before != then:  # it has releases of its own, which others cannot be told from
        raise OptionError(
            "ledger", others, "was paid from it after this training was resumed: resume it again"
        )
    conduct.before = now
    ledger.note(SEVERAL_NOTE)


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
