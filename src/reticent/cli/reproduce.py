"""`reticent reproduce`: a row of a published table, with its leaks or without them."""

from __future__ import annotations

import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from reticent import data as datasets
from reticent.cli.building import build_method, build_training
from reticent.cli.output import AsJson, epsilon_text, print_json, screen
from reticent.cli.settings import Settings
from reticent.cli.train import finish
from reticent.errors import one_of
from reticent.methods import DPSUR
from reticent.methods.published import PublishedDPSUR
from reticent.privacy import Budget, Ledger, SelectiveGaussian
from reticent.privacy.selective_paper import paper_epsilon, paper_steps
from reticent.reproduction import TABLES, row
from reticent.training import Training

PUBLISHED, REPAIRED, SOUND = "published", "repaired", "sound"
VARIANTS = {
    PUBLISHED: "as the public code runs: rejected gradients and old losses leak; no ε",
    REPAIRED: "the same number of updates without the leaks; costs more than claimed",
    SOUND: "as many updates without the leaks as the claimed ε affords",
}


def plan(
    table: str, data: str, epsilon: float, delta: float, n: int, variant: str, **changes: Any
) -> tuple[Settings, DPSUR, dict[str, Any]]:
    """Settings, method and the claim to record, for one variant of one entry of the table."""
    one_of("variant", variant, VARIANTS)
    entry = row(table, data)
    settings = Settings(
        data=data, method=DPSUR.name, epsilon=epsilon, delta=delta, n=n, **entry.at(epsilon)
    )
    settings = replace(settings, **changes)
    method = build_method(settings)
    assert isinstance(method, DPSUR)
    charge = method.price(n)[0][0]
    assert isinstance(charge, SelectiveGaussian)
    steps = paper_steps(charge, epsilon, delta)
    ledger = Ledger()
    ledger.charge(charge, "accepted updates", count=steps)
    sound = ledger.epsilon(delta)
    claim = {
        "variant": variant,
        "claimed_epsilon": paper_epsilon(charge, steps, delta),
        "claimed_steps": steps,
        "accountant": "paper",
        "guarantee": "none",
        "sound_epsilon": sound,
        "published_accuracy": entry.accuracy.get(epsilon),
    }
    if variant == PUBLISHED:
        settings = replace(settings, steps=steps, non_private=True)
        same = {field.name: getattr(method, field.name) for field in fields(method)}
        return settings, PublishedDPSUR(**same), claim
    if variant == REPAIRED:
        # what those updates really cost, with a little room for rounding
        settings = replace(settings, steps=steps, epsilon=round(sound + 5e-5, 4))
    return settings, method, claim


def run_variant(
    table: str,
    data: str,
    epsilon: float,
    variant: str,
    *,
    n: int,
    seed: int = 0,
    delta: float = 1e-5,
    folder: Path | None = None,
    overwrite: bool = True,
    show: bool = False,
    private_diagnostics: bool = False,
    **changes: Any,
) -> tuple[Training, dict[str, Any]]:
    """Train one variant; the finished training and the claim that stands beside it."""
    settings, method, claim = plan(table, data, epsilon, delta, n, variant, seed=seed, **changes)
    with tempfile.TemporaryDirectory() as scratch:
        training = build_training(
            settings,
            folder=folder or Path(scratch),
            resume=False,
            coins=None,
            overwrite=overwrite,
            method=method,
            config={"claim": claim},
            private_diagnostics=private_diagnostics,
        )
        finish(training) if show else training.finish()
    return training, claim


def reproduce(
    table: Annotated[str, typer.Argument(help=f"One of {', '.join(TABLES)}.")],
    data: Annotated[str, typer.Option(help="A data set of that table.")] = "fashion-mnist",
    epsilon: Annotated[float, typer.Option(help="The claimed ε of the entry.")] = 3.0,
    variant: Annotated[str, typer.Option(help="; ".join(VARIANTS))] = PUBLISHED,
    root: Annotated[str | None, typer.Option(help="Folder that holds the data sets.")] = None,
    lr: Annotated[float | None, typer.Option(help="Another learning rate.")] = None,
    seed: Annotated[int, typer.Option(help="Public seed of the initial model.")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for the run.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run in that folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run an entry of a published table as its authors' code did, or without the leaks."""
    Budget(epsilon, 1e-5)  # checked there
    changes: dict[str, Any] = {"root": root, "device": device, **({} if lr is None else {"lr": lr})}
    folder = out or Path("runs") / f"{table.replace('/', '-')}-{data}-{epsilon:g}-{variant}"
    row(table, data)
    n = datasets.lookup(data).n_train
    if variant == PUBLISHED and not as_json:
        screen.print("[bold]this run leaks its records: it has no ε[/], whatever was claimed")
    training, claim = run_variant(
        table,
        data,
        epsilon,
        variant,
        n=n,
        seed=seed,
        folder=folder,
        overwrite=overwrite,
        show=not as_json,
        **changes,
    )
    result = training.result()
    statement = result.statement.to_json()
    if as_json:
        return print_json(
            {**statement, "accuracy": result.accuracy, "steps": result.steps, "claim": claim}
        )
    shown = Table(show_header=False)
    shown.add_row("variant", f"{variant}: {VARIANTS[variant]}")
    shown.add_row("accuracy", f"{100 * (result.accuracy or 0):.2f} %")
    if claim["published_accuracy"] is not None:
        shown.add_row("published", f"{claim['published_accuracy']:.2f} %")
    shown.add_row("claimed", f"ε = {epsilon_text(claim['claimed_epsilon'])}: not a guarantee")
    proved = "none" if statement["epsilon"] is None else f"ε = {epsilon_text(statement['epsilon'])}"
    shown.add_row("guarantee", proved)
    shown.add_row("claimed updates", f"cost ε = {epsilon_text(claim['sound_epsilon'])}")
    shown.add_row("releases", f"{result.steps:,}")
    shown.add_row("run folder", str(folder))
    return screen.print(shown)
