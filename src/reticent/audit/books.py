"""The books of a finished run: does its ε follow from its ledger, and its ledger from its conduct?

Everything is read from `run.json` alone, with no trust in the numbers that follow from others. Of
the model beside it the books say whether it is the one that `run.json` is about.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from reticent.audit.conduct import Check
from reticent.audit.coverage import Prices
from reticent.errors import AccountingError, CheckpointError
from reticent.privacy import Charge, Ledger
from reticent.training import read_run
from reticent.training.result import MODEL_FILE, MODEL_HASH, model_trouble

# accountants of another version, or another SciPy, may differ in the last digits
RELATIVE = 1e-6
PLANNED = ", planned but not made"
MODEL_CHECK = "the model is the one this run released"


@dataclass(frozen=True)
class BooksReport:
    """What the books of a run say."""

    epsilon: float | None
    delta: float
    accountant: str | None
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether everything adds up."""
        return all(check.passed for check in self.checks)

    @property
    def has_model(self) -> bool:
        """Whether nothing speaks against the model beside `run.json` being that of the run."""
        return all(check.passed for check in self.checks if check.name == MODEL_CHECK)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "passed": self.passed,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "accountant": self.accountant,
            "checks": [check.to_json() for check in self.checks],
        }


def check_books(run: str | Path | dict[str, Any]) -> BooksReport:
    """Recompute ε of a run and compare charges, rates, bounds and noise with what it recorded.

    Args:
        run: A run folder, whose model is looked at too, or the contents of a `run.json`.
    """
    report = run if isinstance(run, dict) else read_run(run)
    try:
        found = _checked(report)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"run.json is damaged, or of another version ({type(error).__name__}: {error})"
        ) from None
    except AccountingError as error:
        raise CheckpointError(f"run.json: {error}") from None
    if isinstance(run, dict):
        return found
    return replace(found, checks=(*found.checks, model_check(report, model_trouble(run, report))))


def model_check(report: dict[str, Any], trouble: str | None) -> Check:
    """Whether the model beside a `run.json` is the one that it is about.

    Args:
        report: The contents of `run.json`.
        trouble: What `model_trouble` found.
    """
    if trouble is not None:
        return Check(MODEL_CHECK, False, f"{MODEL_FILE} {trouble}")
    if MODEL_HASH not in report:
        return Check(
            MODEL_CHECK, True, "cannot be told: a run of an earlier version kept no SHA-256"
        )
    return Check(MODEL_CHECK, True, f"{MODEL_FILE} has the SHA-256 in run.json")


def _checked(report: dict[str, Any]) -> BooksReport:
    ledger = Ledger.from_json(report["ledger"])
    statement, method = report["statement"], report["method"]
    delta, steps = float(statement["delta"]), int(report["steps"])
    conduct, budget = report.get("conduct") or {}, report["budget"]
    checks = [*_statement(ledger, statement, budget, delta), *_length(ledger, method, steps)]
    try:
        found = ledger.statement(delta)
        epsilon, accountant = found.epsilon, found.accountant
    except AccountingError as error:
        checks.append(Check("ε can be recomputed", False, str(error)))
        epsilon, accountant = math.inf, None
    prices = Prices.of(_bought(ledger, conduct))
    if not conduct:
        checks.append(Check("conduct", True, "not recorded: nothing to compare the charges with"))
    elif not prices.free:
        checks += [*_noise(prices, conduct, steps), *_draws(prices, conduct)]
        checks += _bounds(method, conduct)
    return BooksReport(
        epsilon if math.isfinite(epsilon) else None, delta, accountant, tuple(checks)
    )


def _bought(ledger: Ledger, conduct: dict[str, Any]) -> list[tuple[Charge, int]]:
    """What the run paid for what it did: neither what was paid before, nor what it never made."""
    total: Counter[tuple[Charge, str]] = Counter()
    for entry in ledger.entries:
        if not entry.purpose.endswith(PLANNED):
            total[entry.charge, entry.purpose] += entry.count
    for line in conduct.get("paid_before", ()):
        total[Charge.from_json(line["charge"]), line["purpose"]] -= line["count"]
    return [(charge, count) for (charge, _), count in total.items() if count > 0]


def _statement(ledger: Ledger, statement: dict[str, Any], budget: Any, delta: float) -> list[Check]:
    try:
        found = ledger.statement(delta).epsilon
    except AccountingError:
        return []
    stated = math.inf if statement["epsilon"] is None else float(statement["epsilon"])
    same = stated == found or found <= stated * (1 + RELATIVE)
    checks = [
        Check("the stated ε follows from the ledger", same, f"stated {stated:.6g}, is {found:.6g}")
    ]
    if budget is not None:
        kept = found <= budget["epsilon"] * (1 + RELATIVE) and delta <= budget["delta"]
        detail = f"ε {found:.6g} of {budget['epsilon']:g} at δ {delta:g} of {budget['delta']:g}"
        checks.append(Check("the budget is kept", kept, detail))
    return checks


def _length(ledger: Ledger, method: dict[str, Any], steps: int) -> list[Check]:
    """Every release has its charge."""
    counts: Counter[str] = Counter()
    for entry in ledger.entries:
        counts[entry.purpose.removesuffix(PLANNED)] += entry.count
    most = max(counts.values(), default=0)
    detail = f"{steps} releases of {method.get('name')}, {most} charges"
    return [Check("every release is charged", most >= steps, detail)]


def _noise(prices: Prices, conduct: dict[str, Any], steps: int) -> list[Check]:
    used, known = _merged(conduct["noise"], "multiplier")
    wrong, _ = prices.unpaid_noise(used)
    checks = [Check("the noise drawn is the noise charged", not wrong, wrong or _listed(used))]
    if known:
        fewer = [m for m, count in prices.gaussian.items() if 0 < used[m] < count]
        gaussian = bool(prices.gaussian or prices.each_trial)
        done = not fewer and (used.total() >= steps or not gaussian)
        detail = f"{used.total()} draws of noise in {steps} releases"
        checks.append(Check("what is charged was done", done, detail))
    chosen, _ = _merged(conduct["choices"], "epsilon")
    wrong = prices.unpaid_choices(chosen)
    if chosen or prices.choices:
        checks.append(
            Check("the choices made are the choices charged", not wrong, wrong or _listed(chosen))
        )
    return checks


def _merged(lines: list[dict[str, Any]], name: str) -> tuple[Counter[float], bool]:
    total: Counter[float] = Counter()
    for line in lines:
        total[float(line[name])] += line["count"] or 1
    return total, all(line["count"] is not None for line in lines)


def _listed(used: Counter[float]) -> str:
    some = sorted(used)
    shown = ", ".join(f"{value:.6g}" for value in some[:6])
    return shown + (f", ... ({len(some)} in all)" if len(some) > 6 else "") or "none"


def _draws(prices: Prices, conduct: dict[str, Any]) -> list[Check]:
    rates = {line["rate"] for line in conduct["draws"] if line["rate"] is not None}
    wrong = next((text for rate in sorted(rates) if (text := prices.unpaid_rate(rate))), "")
    sampled = any(rate < 1 for rate in prices.rates)
    if sampled and not conduct["draws"]:
        wrong = "sampled records were charged, none were drawn"
    detail = wrong or ", ".join(f"{rate:.6g}" for rate in sorted(rates)) or "by record"
    return [Check("records were drawn at the charged rate", not wrong, detail)]


def _bounds(method: dict[str, Any], conduct: dict[str, Any]) -> list[Check]:
    """A fixed clipping bound is the sensitivity that the noise was scaled by."""
    clip = method.get("clip")
    if not isinstance(clip, dict) or clip.get("style") not in ("flat", "automatic", "normalised"):
        return []
    used = [line["sensitivity"] for line in conduct["noise"] if line["stream"] == "noise"]
    bound = float(clip["bound"])
    right = all(
        low is not None and math.isclose(low, bound) and math.isclose(high, bound)
        for low, high in used
    )
    detail = f"clip {bound:g}, noise scaled by {_range(used)}"
    return [Check("noise was scaled by the clipping bound", right, detail)]


def _range(used: list[list[float | None]]) -> str:
    ends = [end for pair in used for end in pair if end is not None]
    return f"{min(ends):g} to {max(ends):g}" if ends else "nothing"
