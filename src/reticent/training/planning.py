"""How many releases, and with how much noise: settled before the first one."""

from __future__ import annotations

from reticent.errors import BudgetError, OptionError, positive, whole
from reticent.methods.base import Method, bill_of
from reticent.privacy import Budget, Ledger, check_failures

# No training makes so many releases.
MANY = 2**20


def plan(
    method: Method,
    budget: Budget | None,
    n: int,
    steps: int | None,
    epochs: float | None,
    ledger: Ledger,
) -> tuple[Method, int]:
    """Settle the number of releases and the noise, from public numbers alone."""
    if steps is not None and epochs is not None:
        raise OptionError("epochs", epochs, "steps is given too; give one of them")
    if epochs is not None:
        batch = getattr(method, "batch", None)
        if batch is None:
            raise OptionError("epochs", epochs, f"{method.name} has no batch; give steps")
        steps = max(round(positive("epochs", epochs) * n / batch), 1)
    if steps is not None:
        whole("steps", steps, least=0)
    noise = getattr(method, "noise", None)
    promises = method.guarantee == "differential-privacy"
    if budget is None:
        if promises and noise != 0:
            raise OptionError(
                "budget", None, "must be given; only a method with noise = 0 runs without one"
            )
        if steps is None:
            raise OptionError("steps", None, "must be given for a run without a budget")
        return method, steps
    if not promises:
        raise OptionError(
            "budget",
            f"epsilon {budget.epsilon:g}",
            f"{method.name} promises no differential privacy that it could bound; leave it out",
        )
    if noise == 0:
        raise OptionError(
            "noise", 0, "gives no guarantee, so it cannot keep a budget; leave the budget out"
        )
    if noise is None or method.adaptive:
        if steps is None:
            raise OptionError("steps", None, "give steps or epochs, or the method's noise")
        return method.calibrated(budget, n, steps, ledger), steps
    check_failures([charge for charge, _ in method.price(n)], budget)
    if steps is None:
        return method, at_least_one(most_steps(method, n, ledger), budget, noise)
    if steps and not ledger.affords_all(bill_of(method.stages(n, steps))):
        raise BudgetError(
            f"steps = {steps}: epsilon = {budget.epsilon:g} at delta = {budget.delta:g} affords "
            f"{most_steps(method, n, ledger)} at noise = {noise:g}; ask for fewer, or leave noise "
            "out to have it set"
        )
    return method, steps


def most_steps(method: Method, n: int, ledger: Ledger) -> int:
    """How many releases the ledger's budget affords."""
    if type(method).stages is Method.stages:
        return ledger.capacity(tuple(charge for charge, _ in method.price(n)))
    low, high = 0, 1
    while high < MANY and ledger.affords_all(bill_of(method.stages(n, high))):
        low, high = high, 2 * high
    while high - low > 1:  # low fits, high does not
        middle = (low + high) // 2
        fits = ledger.affords_all(bill_of(method.stages(n, middle)))
        low, high = (middle, high) if fits else (low, middle)
    return low


def at_least_one(afforded: int, budget: Budget, noise: float) -> int:
    """The number of releases that a budget affords, or why it affords none."""
    if afforded:
        return afforded
    raise BudgetError(
        f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g} affords no release at noise "
        f"= {noise:g}; use more noise, a smaller batch or a larger epsilon"
    )
