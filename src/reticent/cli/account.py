"""`reticent account`: the ε of a plan, or of a ledger that was kept."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from reticent.cli.output import AsJson, epsilon_text, print_json, screen
from reticent.errors import OptionError, one_of, whole
from reticent.methods import DPAGD, DPSGD, DPSUR, SHAPES, NoiseDecay
from reticent.privacy import ACCOUNTANTS, Budget, Ledger, SelectiveGaussian, delta_note
from reticent.privacy.selective_paper import paper_epsilon

app = typer.Typer(help="Compute ε for a plan, or recompute it from a ledger file.")

Accountant = Annotated[
    str | None,
    typer.Option(help=f"One of {', '.join(ACCOUNTANTS)}; by default the tightest valid one."),
]
Records = Annotated[int, typer.Option(help="Nominal number of records.")]
Batch = Annotated[int, typer.Option(help="Expected records per release.")]
Sigma = Annotated[float, typer.Option("--sigma", "--noise", help="Noise multiplier.")]
Steps = Annotated[int, typer.Option(help="Number of releases.")]
Delta = Annotated[float, typer.Option(help="δ.")]
ValidBatch = Annotated[int, typer.Option(help="Expected records in a test.")]
ValidSigma = Annotated[
    float, typer.Option("--valid-sigma", "--valid-noise", help="Noise multiplier of the test.")
]
Beta = Annotated[float, typer.Option(help="Threshold of the test, in units of its bound.")]
Trials = Annotated[
    int | None, typer.Option(help="Rejections in a row after which a run breaks off.")
]

Schedule = Annotated[str, typer.Option(help=f"One of {', '.join(SHAPES)}.")]
Rate = Annotated[float | None, typer.Option(help="k of the schedule.")]
Period = Annotated[int, typer.Option(help="Stages of one step, or of the whole fall.")]
End = Annotated[float, typer.Option(help="The share of the noise it never falls below.")]
Stage = Annotated[int | None, typer.Option(help="Releases per stage; an epoch's by default.")]
ObjectiveBatch = Annotated[
    int | None, typer.Option(help="Expected records per choice; as --batch by default.")
]
ChoiceEpsilon = Annotated[
    float | None, typer.Option(help="ε of one choice of a step size; 1/sigma by default.")
]

PAPER = "paper"
FILTERED = (
    "at the price of a round that follows no failure; a run is kept within its budget by a filter, "
    "and states the budget's ε"
)


def report(ledger: Ledger, delta: float, accountant: str | None, as_json: bool) -> None:
    """Print ε, with what every other valid accountant says beside it."""
    statement = ledger.statement(delta, accountant)
    beside: dict[str, float | None] = {}
    for name in ledger.accountants:
        bound = ledger.epsilon(delta, name)
        beside[name] = bound if math.isfinite(bound) else None
    if as_json:
        return print_json({**statement.to_json(), "epsilon_by": beside, **_lines(ledger)})
    _table(ledger)
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


def _lines(ledger: Ledger) -> dict[str, Any]:
    return {
        "entries": [entry.to_json() for entry in ledger.entries],
        "notes": list(ledger.notes),
    }


def _table(ledger: Ledger) -> None:
    table = Table("charge", "releases", "paid for")
    for entry in ledger.entries:
        table.add_row(str(entry.charge), f"{entry.count:,}", entry.purpose)
    screen.print(table)


def report_claim(ledger: Ledger, delta: float, as_json: bool) -> None:
    """Print what the paper claims, that it is no guarantee, and the ε that is one."""
    entries = [e for e in ledger.entries if isinstance(e.charge, SelectiveGaussian)]
    claim = (
        paper_epsilon(entries[0].charge, entries[0].count, delta)  # type: ignore[arg-type]
        if entries
        else 0.0
    )
    sound = ledger.statement(delta)
    if as_json:
        return print_json(
            {
                "epsilon": claim,
                "delta": delta,
                "accountant": PAPER,
                "adjacency": sound.adjacency,
                "guarantee": "none",
                "sound_epsilon": sound.to_json()["epsilon"],
                "sound_accountant": sound.accountant,
                **_lines(ledger),
            }
        )
    _table(ledger)
    screen.print(
        f"the paper claims ε = {epsilon_text(claim)} at δ = {delta:g} (Theorem 5.6). "
        "[bold]This is not a guarantee:[/] there are losses for which the true ε is larger."
    )
    screen.print(
        f"[bold]ε = {epsilon_text(sound.epsilon)}[/] at δ = {delta:g} "
        f"({sound.accountant}, adding or removing one record)"
    )
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
@app.command("sign-sgd", help="As dpsgd: signs are taken of what was released.")
@app.command("sign-adam", help="As dpsgd: signs are taken of what was released.")
def dpsgd(
    n: Records,
    batch: Batch,
    sigma: Sigma,
    steps: Steps,
    delta: Delta = 1e-5,
    accountant: Accountant = None,
    as_json: AsJson = False,
) -> None:
    """ε of DP-SGD."""
    ledger = ledger_of(DPSGD(batch=batch, noise=refuse_zero(sigma)), n, steps, delta)
    report(ledger, delta, accountant, as_json)


@app.command("noise-decay")
def noise_decay(
    n: Records,
    batch: Batch,
    sigma: Sigma,
    steps: Steps,
    schedule: Schedule = "exponential",
    rate: Rate = None,
    period: Period = 10,
    end: End = 0.1,
    stage: Stage = None,
    delta: Delta = 1e-5,
    accountant: Accountant = None,
    as_json: AsJson = False,
) -> None:
    """ε of DP-SGD whose noise falls from --sigma along a schedule."""
    shape = {"schedule": schedule, "rate": rate, "period": period, "end": end, "stage": stage}
    method = NoiseDecay(batch=batch, noise=refuse_zero(sigma), **shape)  # type: ignore[arg-type]
    report(ledger_of(method, n, steps, delta), delta, accountant, as_json)


@app.command("dpagd")
def dpagd(
    n: Records,
    batch: Batch,
    sigma: Sigma,
    steps: Annotated[int, typer.Option(help="Number of rounds.")],
    objective_batch: ObjectiveBatch = None,
    choice_epsilon: ChoiceEpsilon = None,
    delta: Delta = 1e-5,
    accountant: Accountant = None,
    as_json: AsJson = False,
) -> None:
    """ε of rounds of DP-AGD at their first price."""
    method = DPAGD(
        batch=batch,
        noise=refuse_zero(sigma),
        objective_batch=objective_batch,
        choice_epsilon=choice_epsilon,
    )
    ledger = ledger_of(method, n, steps, delta)
    ledger.note(FILTERED)
    report(ledger, delta, accountant, as_json)


@app.command("dpsur")
def dpsur(
    n: Records,
    batch: Batch,
    sigma: Sigma,
    steps: Annotated[int, typer.Option(help="Number of accepted updates.")],
    valid_batch: ValidBatch = 256,
    valid_sigma: ValidSigma = 1.3,
    beta: Beta = -1.0,
    trials: Trials = None,
    delta: Delta = 1e-5,
    accountant: Annotated[
        str | None,
        typer.Option(
            help="selective-exact (default), selective-pld, selective-rdp; or paper: what the "
            "paper claims, which is no guarantee."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """ε of DPSUR."""
    method = DPSUR(
        batch=batch,
        noise=refuse_zero(sigma),
        valid_batch=valid_batch,
        valid_noise=valid_sigma,
        beta=beta,
        trials=trials,
    )
    if accountant is not None:
        one_of("accountant", accountant, (*ACCOUNTANTS, PAPER))
    ledger = ledger_of(method, n, steps, delta)
    if accountant == PAPER:
        return report_claim(ledger, delta, as_json)
    return report(ledger, delta, accountant, as_json)


def refuse_zero(sigma: float) -> float:
    """No noise has no ε to speak of."""
    if sigma == 0:
        raise OptionError("sigma", sigma, "no noise means no guarantee, so there is no ε to state")
    return sigma


def ledger_of(method: Any, n: int, steps: int, delta: float) -> Ledger:
    """The ledger of `steps` releases that were never made."""
    whole("n", n)
    whole("steps", steps, least=0)
    ledger = Ledger()
    Budget(epsilon=1, delta=delta)  # δ is checked there
    if (note := delta_note(delta, n)) is not None:
        ledger.note(note)
    for price, count in method.stages(n, steps):
        for charge, purpose in price if count else ():
            ledger.charge(charge, purpose, count=count)
    return ledger
