"""`reticent account dpis` and `reticent calibrate dpis`: charges that follow a released sum."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from reticent.cli.account import Batch, Delta, Records
from reticent.cli.calibrate import Epsilon
from reticent.cli.output import AsJson, epsilon_text, print_json, screen
from reticent.errors import AccountingError, DataError, OptionError, whole
from reticent.files import read_json
from reticent.methods import DPIS, describe
from reticent.privacy import Budget, Ledger
from reticent.privacy.accountants import ORDERS, filter_epsilon, rdp_epsilon
from reticent.privacy.statements import state

K = Annotated[float, typer.Option("--k", help="Records are drawn k times as often as kept.")]
SumNoise = Annotated[float | None, typer.Option(help="σ_K; by default 0.02 n.")]
SumRate = Annotated[float, typer.Option(help="p_K, the rate at which norms are summed.")]
CountNoise = Annotated[
    float | None, typer.Option(help="σ_N; by default 0.02 n; 0 if the number is public.")
]
Adapt = Annotated[bool, typer.Option("--adapt", help="With an adapted clipping bound.")]


def account(
    trajectory: Annotated[
        Path,
        typer.Option(
            help="A run.json of dpis, or a JSON file with n, size (Ñ), steps and epochs: for each "
            "release (its first iteration), sum (K̃), clip (C) and noise (σ_G)."
        ),
    ],
    batch: Annotated[int | None, typer.Option(help="b, where the file does not say it.")] = None,
    delta: Annotated[float | None, typer.Option(help="δ; by default the run's, or 1e-5.")] = None,
    order: Annotated[
        float | None, typer.Option(help="The filter's Rényi order; by default the run's.")
    ] = None,
    sum_noise: SumNoise = None,
    sum_rate: SumRate = 1.0,
    count_noise: CountNoise = None,
    adapt: Adapt = False,
    as_json: AsJson = False,
) -> None:
    """What a run of DPIS spent, from the sums it released."""
    kept = _read(trajectory)
    ledger = Ledger.from_json(kept["ledger"]) if "ledger" in kept else None
    if ledger is None:
        if batch is None:
            raise OptionError("batch", None, "must be given: the file is not a run.json")
        method = DPIS(
            batch=batch,
            sum_noise=sum_noise,
            sum_rate=sum_rate,
            count_noise=count_noise,
            adapt=adapt,
        )
        released, steps = kept, kept.get("steps")
    else:
        released, steps, method = kept["released"], kept["steps"], _method(kept["method"])
        order = ledger.filter_order if order is None else order
        delta = ledger.budget.delta if delta is None and ledger.budget is not None else delta
    delta = 1e-5 if delta is None else delta
    stages = _stages(trajectory, method, released, steps)
    bill = tuple((charge, count) for price, count in stages for charge, _ in price)
    if order is None:
        order = min(ORDERS, key=lambda o: filter_epsilon(bill, delta, o))
    spent = state(bill, delta, "filter", filter_order=order).epsilon
    proven = _proven(ledger, bill, delta)
    if as_json:
        return print_json(
            {
                "epsilon": proven,
                "delta": delta,
                "guarantee": "none" if proven is None else "differential-privacy",
                "spent_epsilon": spent if math.isfinite(spent) else None,
                "filter_order": order,
                "entries": [
                    {"charge": charge.to_json(), "count": count, "purpose": purpose}
                    for price, count in stages
                    for charge, purpose in price
                ],
            }
        )
    table = Table("charge", "releases", "paid for", f"divergence of order {order:g}")
    for price, count in stages:
        for charge, purpose in price:
            cost = count * float(charge.rdp((order,))[0])
            table.add_row(str(charge), f"{count:,}", purpose, f"{cost:.4g}")
    screen.print(table)
    screen.print(f"spent: ε = {epsilon_text(spent)} at δ = {delta:g} and order {order:g}")
    if proven is None:
        return screen.print(
            "what was spent depends on what was released, and proves nothing by itself: a filter of"
            " that budget, its order fixed before the run, proves it"
        )
    return screen.print(
        f"[bold]ε = {epsilon_text(proven)}[/] at δ = {delta:g}: the budget that the run's filter "
        "kept; its ledger shows the same charges"
    )


def _read(path: Path) -> dict[str, Any]:
    path = path / "run.json" if path.is_dir() else path
    try:
        data = read_json(path)
    except OSError as error:
        raise DataError(f"trajectory {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise DataError(f"trajectory {str(path)!r} is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise DataError(f"trajectory {str(path)!r}: must be a JSON object")
    return data


def _method(options: dict[str, Any]) -> DPIS:
    if options.get("name") != DPIS.name:
        raise OptionError("trajectory", options.get("name"), "is a run of another method")
    known = {option.name for option in describe(DPIS.name).options}
    return DPIS(**{name: value for name, value in options.items() if name in known})


def _stages(path: Path, method: DPIS, released: Any, steps: Any) -> Any:
    try:
        return method.paid(released, whole("steps", steps))
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"trajectory {str(path)!r} lacks what was released: {type(error).__name__} at {error}"
        ) from None


def _proven(ledger: Ledger | None, bill: Any, delta: float) -> float | None:
    """What the run's own filter proves, if its ledger shows these very charges."""
    if ledger is None:
        return None
    counts: dict[Any, int] = {}
    for charge, count in bill:
        counts[charge] = counts.get(charge, 0) + count
    for entry in ledger.entries:
        paid = counts.get(entry.charge, 0) - entry.count
        if entry.adaptive and paid < 0:
            raise AccountingError(
                f"the ledger shows {entry.count} charges of {entry.charge} for {entry.purpose!r}, "
                "which do not follow from what was released"
            )
        counts[entry.charge] = paid
    missing = [charge for charge, count in counts.items() if count > 0]
    if missing:
        raise AccountingError(f"the ledger lacks a charge of {missing[0]}: it was not paid for")
    return ledger.statement(delta).to_json()["epsilon"]


def calibrate(
    n: Records,
    batch: Batch,
    epsilon: Epsilon,
    steps: Annotated[int, typer.Option(help="Number of iterations to afford.")],
    delta: Delta = 1e-5,
    k: K = 5.0,
    sum_noise: SumNoise = None,
    sum_rate: SumRate = 1.0,
    count_noise: CountNoise = None,
    adapt: Adapt = False,
    as_json: AsJson = False,
) -> None:
    """The noise of DPIS if norms stay at the clipping bound; it falls as they do."""
    budget, ledger = Budget(epsilon, delta), Ledger(Budget(epsilon, delta))
    method = DPIS(
        batch=batch,
        k=k,
        sum_noise=sum_noise,
        sum_rate=sum_rate,
        count_noise=count_noise,
        adapt=adapt,
    ).calibrated(budget, whole("n", n), whole("steps", steps), ledger)
    stages = method.stages(n, steps)
    besides = rdp_epsilon(
        tuple((charge, count) for price, count in stages[:-1] for charge, _ in price), delta
    )
    if as_json:
        return print_json(
            {
                "epsilon": budget.epsilon,
                "delta": delta,
                "accountant": "filter",
                "filter_order": ledger.filter_order,
                "noise": method.noise,
                "steps": steps,
                "epsilon_of_sums": besides,
            }
        )
    return screen.print(
        f"noise [bold]{method.noise:g}[/] at first, less as norms fall, for [bold]{steps:,}[/] "
        f"steps: ε = {epsilon_text(budget.epsilon)} at δ = {delta:g} (filter of order "
        f"{ledger.filter_order:g}; the sums of norms alone would cost ε = {epsilon_text(besides)})"
    )
