"""`reticent models`: what can be trained by name."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from torch import nn

from reticent import models

app = typer.Typer(help="List the models that can be trained by name, or show one.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]


@app.callback()
def _group() -> None:
    """List the models that can be trained by name, or show one."""


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """List every model: its usual input, its parameters, and the paper it comes from."""
    rows = []
    for name in models.names():
        card = models.describe(name)
        trained, frozen = models.parameter_counts(_usual(card))
        rows.append({**card.as_dict(), "trained": trained, "frozen": frozen})
    if as_json:
        typer.echo(json.dumps(rows, indent=2, default=str))
        return
    table = Table("model", "input", "classes", "parameters", "activation", "paper")
    for row in rows:
        table.add_row(
            row["name"],
            _times(row["input_shape"]),
            str(row["classes"]),
            f"{row['trained']:,}",
            row["activation"] or "-",
            row["paper"],
        )
    Console().print(table)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A model's name; see `list`.")],
    as_json: AsJson = False,
) -> None:
    """Show one model at its usual shape: its layers, its parameters and its options."""
    card = models.describe(name)
    model = _usual(card)
    trained, frozen = models.parameter_counts(model)
    rows = models.layers(model, card.sample())
    if as_json:
        layers = [asdict(row) for row in rows]
        shown = {**card.as_dict(), "trained": trained, "frozen": frozen, "layers": layers}
        typer.echo(json.dumps(shown, indent=2, default=str))
        return
    console = Console(highlight=False, markup=False)
    console.print(f"{card.name}: {card.summary}")
    console.print(f"paper: {card.paper}")
    console.print(
        f"input: {_times(card.input_shape)} {card.input_kind}; classes: {card.classes}; "
        f"activation: {card.activation or 'none'}"
    )
    console.print(f"parameters: {trained:,} trained, {frozen:,} frozen")
    for option in card.options:
        console.print(f"option {option.name} = {option.default!r}: {option.help}")
    for note in card.notes:
        console.print(f"note: {note}")
    table = Table("layer", "kind", "settings", "output", "parameters")
    for row in rows:
        count = f"{row.trained:,}" if not row.frozen else f"{row.frozen:,} frozen"
        table.add_row(row.name, row.kind, row.details, _times(row.output), count)
    console.print(table)


def _usual(card: models.ModelCard) -> nn.Module:
    return models.build(card.name, classes=card.classes, input_shape=card.input_shape)


def _times(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))
