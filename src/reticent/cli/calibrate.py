"""`reticent calibrate`: noise from steps, or steps from noise."""

from __future__ import annotations

from typing import Annotated

import typer

from reticent.cli.account import (
    Batch,
    Beta,
    Delta,
    Records,
    Trials,
    ValidBatch,
    ValidSigma,
    ledger_of,
    refuse_zero,
)
from reticent.cli.output import AsJson, epsilon_text, print_json, screen
from reticent.errors import OptionError, whole
from reticent.methods import DPSGD, DPSUR
from reticent.privacy import Budget, Ledger, check_failures

app = typer.Typer(help="Find the noise that affords a number of steps, or the steps of a noise.")

Epsilon = Annotated[float, typer.Option(help="ε to keep within.")]
Steps = Annotated[int | None, typer.Option(help="Number of releases to afford.")]
Sigma = Annotated[float | None, typer.Option("--sigma", "--noise", help="Noise multiplier to use.")]


@app.callback()
def _group() -> None:
    """Find the noise that affords a number of steps, or the steps of a noise."""


@app.command("dpsgd")
@app.command("sign-sgd", help="As dpsgd: signs are taken of what was released.")
@app.command("sign-adam", help="As dpsgd: signs are taken of what was released.")
def dpsgd(
    n: Records,
    batch: Batch,
    epsilon: Epsilon,
    delta: Delta = 1e-5,
    steps: Steps = None,
    sigma: Sigma = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate DP-SGD: give --steps to get the noise, or --sigma to get the steps."""
    method = DPSGD(batch=batch, noise=None if sigma is None else refuse_zero(sigma))
    _calibrate(method, n, Budget(epsilon, delta), steps, as_json)


@app.command("dpsur")
def dpsur(
    n: Records,
    batch: Batch,
    epsilon: Epsilon,
    delta: Delta = 1e-5,
    steps: Annotated[int | None, typer.Option(help="Number of accepted updates.")] = None,
    sigma: Sigma = None,
    valid_batch: ValidBatch = 256,
    valid_sigma: ValidSigma = 1.3,
    beta: Beta = -1.0,
    trials: Trials = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate DPSUR: give --steps (accepted updates) to get the noise, or --sigma for them."""
    method = DPSUR(
        batch=batch,
        noise=None if sigma is None else refuse_zero(sigma),
        valid_batch=valid_batch,
        valid_noise=valid_sigma,
        beta=beta,
        trials=trials,
    )
    _calibrate(method, n, Budget(epsilon, delta), steps, as_json)


def _calibrate(method: DPSGD, n: int, budget: Budget, steps: int | None, as_json: bool) -> None:
    """Fill in what is missing, noise or steps, and say what it costs."""
    if (steps is None) == (method.noise is None):
        raise OptionError(
            "steps, sigma", (steps, method.noise), "give either --steps or --sigma, and not both"
        )
    whole("n", n)
    if steps is not None:
        whole("steps", steps)
        method = method.calibrated(budget, n, steps, Ledger(budget))
    else:
        charges = [charge for charge, _ in method.price(n)]
        check_failures(charges, budget)
        steps = Ledger(budget).capacity(charges)
    statement = ledger_of(method, n, steps).statement(budget.delta)
    if as_json:
        return print_json({**statement.to_json(), "noise": method.noise, "steps": steps})
    return screen.print(
        f"noise multiplier [bold]{method.noise:g}[/], [bold]{steps:,}[/] steps: "
        f"ε = {epsilon_text(statement.epsilon)} at δ = {budget.delta:g} ({statement.accountant})"
    )
