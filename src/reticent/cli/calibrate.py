"""`reticent calibrate`: noise from steps, or steps from noise."""

from __future__ import annotations

from typing import Annotated

import typer

from reticent.cli.account import ledger_of, refuse_zero
from reticent.cli.output import AsJson, epsilon_text, print_json, screen
from reticent.errors import OptionError, whole
from reticent.methods import DPSGD
from reticent.privacy import Budget, Ledger

app = typer.Typer(help="Find the noise that affords a number of steps, or the steps of a noise.")


@app.callback()
def _group() -> None:
    """Find the noise that affords a number of steps, or the steps of a noise."""


@app.command("dpsgd")
def dpsgd(
    n: Annotated[int, typer.Option(help="Nominal number of records.")],
    batch: Annotated[int, typer.Option(help="Expected records per release.")],
    epsilon: Annotated[float, typer.Option(help="ε to keep within.")],
    delta: Annotated[float, typer.Option(help="δ.")] = 1e-5,
    steps: Annotated[int | None, typer.Option(help="Number of releases to afford.")] = None,
    sigma: Annotated[
        float | None, typer.Option("--sigma", "--noise", help="Noise multiplier to use.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate DP-SGD: give --steps to get the noise, or --sigma to get the steps."""
    budget = Budget(epsilon, delta)
    if (steps is None) == (sigma is None):
        raise OptionError(
            "steps, sigma", (steps, sigma), "give either --steps or --sigma, and not both"
        )
    method = DPSGD(batch=batch, noise=None if sigma is None else refuse_zero(sigma))
    whole("n", n)
    if steps is not None:
        whole("steps", steps)
        method = method.calibrated(budget, n, steps, Ledger(budget))
    else:
        steps = Ledger(budget).capacity([charge for charge, _ in method.price(n)])
    statement = ledger_of(method, n, steps).statement(delta)
    if as_json:
        return print_json({**statement.to_json(), "noise": method.noise, "steps": steps})
    return screen.print(
        f"noise multiplier [bold]{method.noise:g}[/], [bold]{steps:,}[/] steps: "
        f"ε = {epsilon_text(statement.epsilon)} at δ = {delta:g} ({statement.accountant})"
    )
