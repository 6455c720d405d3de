"""`reticent methods`: what can be run by name, and what it promises."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from reticent import methods
from reticent.cli.output import AsJson, print_json, screen

app = typer.Typer(help="List the training methods, or show one.")


@app.callback()
def _group() -> None:
    """List the training methods, or show one."""


@app.command("list")
def list_methods(as_json: AsJson = False) -> None:
    """List every method with its guarantee."""
    cards = [methods.describe(name) for name in methods.names()]
    if as_json:
        return print_json([card.to_json() for card in cards])
    table = Table("method", "guarantee", "title", "paper")
    for card in cards:
        table.add_row(card.name, card.guarantee, card.title, card.paper)
    return screen.print(table)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A method's name; see `list`.")],
    as_json: AsJson = False,
) -> None:
    """Show a method's paper, guarantee, hyperparameters and cost per release."""
    card = methods.describe(name)
    if as_json:
        return print_json(card.to_json())
    screen.print(f"[bold]{card.name}[/]: {card.title}")
    screen.print(f"paper: {card.paper}")
    screen.print(f"guarantee: {card.guarantee}: {card.promise}")
    screen.print(f"cost: {card.cost}")
    table = Table("option", "default", "meaning")
    for option in card.options:
        table.add_row(
            option.name, "-" if option.default is None else str(option.default), option.help
        )
    return screen.print(table)
