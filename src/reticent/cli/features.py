"""`reticent features`: what inputs can be turned into before training, and doing it ahead."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from reticent import data, features
from reticent.cli import pretraining
from reticent.cli.output import AsJson, errors, print_json, screen
from reticent.errors import OptionError
from reticent.training.train import pick_device

app = typer.Typer(help="List the fixed features, show one kind, or compute them ahead.")
app.command("pretrain")(pretraining.pretrain)

Name = Annotated[str, typer.Argument(help="The features' name; see `list`.")]


@app.callback()
def _group() -> None:
    """List the fixed features, show one kind, or compute them ahead."""


@app.command("list")
def list_features(as_json: AsJson = False) -> None:
    """List every kind of features with what it is computed from."""
    cards = [features.describe(name) for name in features.names()]
    if as_json:
        return print_json([card.to_json() for card in cards])
    table = Table("features", "of", "what", "paper")
    for card in cards:
        table.add_row(card.name, card.inputs, card.summary, card.paper)
    return screen.print(table)


@app.command("show")
def show(name: Name, as_json: AsJson = False) -> None:
    """Show where features come from, their shape, their options and what they cost."""
    card = features.describe(name)
    if as_json:
        return print_json(card.to_json())
    screen.print(f"[bold]{card.name}[/]: {card.summary}")
    screen.print(f"paper: {card.paper}")
    screen.print(f"output: {card.output}")
    screen.print(f"privacy: {card.privacy}")
    if told := card.learned():
        values = (f"{n} {v:.4g}" if isinstance(v, float) else f"{n} {v}" for n, v in told.items())
        screen.print(f"learned: {', '.join(values)}")
    table = Table("option", "default", "meaning")
    for option in card.options:
        table.add_row(option.name, str(option.default), option.help)
    return screen.print(table)


@app.command("compute")
def compute(
    dataset: Annotated[str, typer.Argument(metavar="DATA", help="Data set; `reticent data list`.")],
    name: Name = "scattering",
    option: Annotated[
        list[str] | None, typer.Option(help="NAME=VALUE, such as scales=3; may be repeated.")
    ] = None,
    root: Annotated[str | None, typer.Option(help="Folder that holds the data sets.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Compute the features of a data set, so that trainings find them in its folder."""
    chosen = dict(_parsed(text) for text in option or ())
    splits = data.load(dataset, root=root)
    columns = (TextColumn("records"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    computed = False
    started = time.perf_counter()
    with Progress(*columns, console=errors, transient=True, disable=as_json) as bars:
        bar = bars.add_task("", total=None, visible=False)

        def progress(done: int, total: int) -> None:
            nonlocal computed
            computed = True
            bars.update(bar, completed=done, total=total, visible=True)

        where = pick_device(device)
        made = features.apply(splits, name, chosen, root=root, device=where, progress=progress)
    seconds = time.perf_counter() - started
    paths = features.locate(splits, name, chosen, root=root)
    row: dict[str, Any] = {
        "data": dataset,
        "features": name,
        "options": features.describe(name).complete(chosen),
        "computed": computed,
        "seconds": round(seconds, 3),
        "train": _file(paths["train"], made.train[0]),
        "test": _file(paths["test"], made.test[0]),
        "notes": list(made.notes),
    }
    if as_json:
        return print_json(row)
    said = f"computed in {seconds:.1f} s" if computed else "found"
    screen.print(f"[bold]{name}[/] of [bold]{dataset}[/]: {said}")
    for split in ("train", "test"):
        shape = "x".join(map(str, row[split]["shape"]))
        screen.print(f"{split}: {shape} in {row[split]['path'] or 'no file'}", soft_wrap=True)
    for note in made.notes:
        screen.print(f"note: {note}", soft_wrap=True)
    return None


def _parsed(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError("option", text, "must be written NAME=VALUE, such as scales=3")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _file(path: Path, values: Any) -> dict[str, Any]:
    return {"path": str(path) if path.is_file() else None, "shape": list(values.shape)}
