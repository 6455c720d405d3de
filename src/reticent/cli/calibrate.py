"""`reticent calibrate`: noise from steps, or steps from noise."""

from __future__ import annotations

from typing import Annotated

import typer

from reticent.cli.account import (
    Batch,
    Beta,
    ChoiceEpsilon,
    Delta,
    End,
    ObjectiveBatch,
    Period,
    Rate,
    Records,
    Schedule,
    Stage,
    Trials,
    ValidBatch,
    ValidSigma,
    ledger_of,
    refuse_zero,
)
from reticent.cli.output import AsJson, epsilon_text, print_json, screen, warn
from reticent.errors import OptionError, whole
from reticent.methods import DPAGD, DPSGD, DPSUR, NoiseDecay
from reticent.privacy import Budget, Ledger, check_failures, delta_note
from reticent.training.planning import at_least_one, most_steps

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


@app.command("noise-decay")
def noise_decay(
    n: Records,
    batch: Batch,
    epsilon: Epsilon,
    delta: Delta = 1e-5,
    steps: Steps = None,
    sigma: Annotated[
        float | None, typer.Option("--sigma", "--noise", help="Noise multiplier at first.")
    ] = None,
    schedule: Schedule = "exponential",
    rate: Rate = None,
    period: Period = 10,
    end: End = 0.1,
    stage: Stage = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate noise decay: give --steps to get the first noise, or --sigma to get the steps."""
    shape = {"schedule": schedule, "rate": rate, "period": period, "end": end, "stage": stage}
    noise = None if sigma is None else refuse_zero(sigma)
    method = NoiseDecay(batch=batch, noise=noise, **shape)  # type: ignore[arg-type]
    _calibrate(method, n, Budget(epsilon, delta), steps, as_json)


@app.command("dpagd")
def dpagd(
    n: Records,
    batch: Batch,
    epsilon: Epsilon,
    delta: Delta = 1e-5,
    steps: Annotated[int | None, typer.Option(help="Number of rounds to plan for.")] = None,
    sigma: Sigma = None,
    objective_batch: ObjectiveBatch = None,
    choice_epsilon: ChoiceEpsilon = None,
    share: Annotated[
        float, typer.Option(help="Share of the budget for rounds without failures.")
    ] = 0.6,
    as_json: AsJson = False,
) -> None:
    """Calibrate DP-AGD: give --steps to get the first noise, or --sigma to get the rounds.

    What a round costs depends on earlier ones. A filter, at an order fixed beforehand, ends the run
    before the budget is passed; the run states the budget's ε.
    """
    method = DPAGD(
        batch=batch,
        noise=None if sigma is None else refuse_zero(sigma),
        objective_batch=objective_batch,
        choice_epsilon=choice_epsilon,
        share=share,
    )
    _either(steps, sigma)
    budget = Budget(epsilon, delta)
    ledger = Ledger(budget)
    planned = whole("steps", 1 if steps is None else steps)
    method = method.calibrated(budget, whole("n", n), planned, ledger)
    if (note := delta_note(delta, n)) is not None:
        warn(note)
    charges = [charge for charge, _ in method.price(n)]
    order = ledger.filter_order
    assert order is not None
    cost = sum(float(charge.rdp((order,))[0]) for charge in charges)
    rounds = int(ledger.divergence_left() / cost * (1 - 1e-12))
    if as_json:
        return print_json(
            {
                "epsilon": budget.epsilon,
                "delta": budget.delta,
                "accountant": "filter",
                "filter_order": order,
                "noise": method.noise,
                "choice_epsilon": method.choice(n).epsilon,
                "steps": rounds if steps is None else steps,
                "rounds_without_failure": rounds,
            }
        )
    return screen.print(
        f"noise multiplier [bold]{method.noise:g}[/], choices of ε = {method.choice(n).epsilon:.4g}"
        f": a filter at order {order:g} affords [bold]{rounds:,}[/] rounds that follow no failure, "
        f"and keeps ε = {epsilon_text(budget.epsilon)} at δ = {budget.delta:g} whatever fails"
    )


def _either(steps: int | None, sigma: float | None) -> None:
    if steps is None and sigma is None:
        raise OptionError("steps", None, "must be given, to get the noise, or else --sigma")
    if steps is not None and sigma is not None:
        raise OptionError("steps", steps, "follows from --sigma, or gives it; leave one out")


def _calibrate(method: DPSGD, n: int, budget: Budget, steps: int | None, as_json: bool) -> None:
    """Fill in what is missing, noise or steps, and say what it costs."""
    _either(steps, method.noise)
    whole("n", n)
    if steps is not None:
        whole("steps", steps)
        method = method.calibrated(budget, n, steps, Ledger(budget))
    else:
        check_failures([charge for charge, _ in method.price(n)], budget)
        assert method.noise is not None
        steps = at_least_one(most_steps(method, n, Ledger(budget)), budget, method.noise)
    ledger = ledger_of(method, n, steps, budget.delta)
    statement = ledger.statement(budget.delta)
    for note in ledger.notes:
        warn(note)
    if as_json:
        return print_json({**statement.to_json(), "noise": method.noise, "steps": steps})
    return screen.print(
        f"noise multiplier [bold]{method.noise:g}[/], [bold]{steps:,}[/] steps: "
        f"ε = {epsilon_text(statement.epsilon)} at δ = {budget.delta:g} ({statement.accountant})"
    )
