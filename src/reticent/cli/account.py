"""`reticent account`: the ε of a plan, or of a ledger that was kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from reticent.cli.output import AsJson, epsilon_text, print_json, screen
from reticent.errors import OptionError, whole
from reticent.methods import DPSGD
from reticent.privacy import ACCOUNTANTS, Ledger

app = typer.Typer(help="Compute ε for a plan, or recompute it from a ledger file.")

Accountant = Annotated[
    str | None,
    typer.Option(help=f"One of {', '.join(ACCOUNTANTS)}; by default the tightest valid one."),
]


def report(ledger: Ledger, delta: float, accountant: str | None, as_json: bool) -> None:
    """Print ε, with what every other valid accountant says beside it."""
    statement = ledger.statement(delta, accountant)
    valid = ("filter",) if ledger.adaptive else ("pld", "rdp")
    beside: dict[str, float | None] = {}
    for name in valid:
        bound = ledger.epsilon(delta, name)
        beside[name] = bound if math.isfinite(bound) else None
    if as_json:
        entries = [entry.to_json() for entry in ledger.entries]
        return print_json(
            {
                **statement.to_json(),
                "epsilon_by": beside,
                "entries": entries,
                "notes": list(ledger.notes),
            }
        )
    table = Table("charge", "releases", "paid for")
    for entry in ledger.entries:
        table.add_row(str(entry.charge), f"{entry.count:,}", entry.purpose)
    screen.print(table)
    screen.print(
        f"[bold]ε = {epsilon_text(statement.epsilon)}[/] at δ = {delta:g} "
        f"({statement.accountant}, adding or removing one record)"
    )
    for name, epsilon in beside.items():
        if name != statement.accountant:
            screen.print(f"by {name}: ε = {epsilon_text(epsilon)}")
    for note in ledger.notes:
        screen.print(f"note: {note}")
    return None


@app.callback(invoke_without_command=True)
def from_ledger(
    context: typer.Context,
    ledger: Annotated[
        Path | None, typer.Option(help="A ledger file or a run.json to recompute ε from.")
    ] = None,
    delta: Annotated[float | None, typer.Option(help="δ; by default the ledger's own.")] = None,
    accountant: Accountant = None,
    as_json: AsJson = False,
) -> None:
    """Compute ε for a plan, or recompute it from a ledger file."""
    if context.invoked_subcommand is not None:
        if ledger is not None:
            raise OptionError("ledger", str(ledger), "stands alone: a plan has no ledger yet")
        return
    if ledger is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    kept = Ledger.load(ledger)
    if delta is None:
        if kept.budget is None:
            raise OptionError("delta", None, "must be given: the ledger states no budget")
        delta = kept.budget.delta
    report(kept, delta, accountant, as_json)


@app.command("dpsgd")
def dpsgd(
    n: Annotated[int, typer.Option(help="Nominal number of records.")],
    batch: Annotated[int, typer.Option(help="Expected records per release.")],
    sigma: Annotated[float, typer.Option("--sigma", "--noise", help="Noise multiplier.")],
    steps: Annotated[int, typer.Option(help="Number of releases.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    accountant: Accountant = None,
    as_json: AsJson = False,
) -> None:
    """ε of DP-SGD."""
    ledger = ledger_of(DPSGD(batch=batch, noise=refuse_zero(sigma)), n, steps)
    report(ledger, delta, accountant, as_json)


def refuse_zero(sigma: float) -> float:
    """No noise has no ε to speak of."""
    if sigma == 0:
        raise OptionError("sigma", sigma, "no noise means no guarantee, so there is no ε to state")
    return sigma


def ledger_of(method: Any, n: int, steps: int) -> Ledger:
    """The ledger of `steps` releases that were never made."""
    whole("n", n)
    whole("steps", steps, least=0)
    ledger = Ledger()
    for charge, purpose in method.price(n):
        if steps:
            ledger.charge(charge, purpose, count=steps)
    return ledger
