"""`reticent data`: which data sets there are, fetching one, and what a local copy holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from reticent import data

app = typer.Typer(help="List the public data sets, fetch one, or look at one.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Name = Annotated[str, typer.Argument(help="A data set's name; see `list`.")]
Root = Annotated[
    Path | None,
    typer.Option("--root", help="The data folder. Default: $RETICENT_DATA, else the user's cache."),
]


@app.callback()
def _group() -> None:
    """List the public data sets, fetch one, or look at one."""


@app.command("list")
def list_sets(root: Root = None, as_json: AsJson = False) -> None:
    """List every data set and whether it is on this machine."""
    rows = [_summary(name, root) for name in data.names()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table("data", "train + test", "input", "classes", "here")
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['n_train']:,} + {row['n_test']:,}",
            "x".join(map(str, row["shape"])),
            str(row["n_classes"]),
            row["present"],
        )
    Console().print(table)


@app.command("get")
def get(
    name: Name,
    root: Root = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep downloaded archives once they are prepared.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fetch a data set and keep it in its compact prepared form."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        bar = bars.add_task("", total=None, visible=False)

        def say(message: str) -> None:
            bars.update(bar, visible=False)
            bars.console.print(message, markup=False, highlight=False, soft_wrap=True)

        def show(done: int, total: int | None) -> None:
            bars.update(bar, completed=done, total=total, visible=True)

        data.get(name, root=root, keep=keep, progress=show, say=say)
    row = _summary(name, root)
    if as_json:
        typer.echo(json.dumps(row, indent=2))
        return
    for path in row["paths"] or ["nothing to fetch: it comes with the library"]:
        typer.echo(f"{name}: {path}")


@app.command("info")
def info(name: Name, root: Root = None, as_json: AsJson = False) -> None:
    """Say what a data set is, who to cite, where it is here, and what the local copy holds."""
    row = {**_summary(name, root), **_details(name), "contents": None}
    if row["present"] != "absent":
        splits = data.load(name, root=root)
        row["notes"] = list(splits.notes)
        row["contents"] = {
            "train": _split(splits.train, len(splits.info.classes)),
            "test": _split(splits.test, len(splits.info.classes)),
            "extras": {key: list(value.shape) for key, value in splits.extras.items()},
        }
    if as_json:
        typer.echo(json.dumps(row, indent=2))
        return
    table = Table(show_header=False)
    for key, value in _lines(row):
        table.add_row(key, value)
    Console().print(table)


def _summary(name: str, root: Path | None) -> dict[str, Any]:
    entry = data.lookup(name)
    here = data.locate(name, root=root)
    paths = [*here.paths, *([here.vectors] if here.vectors else [])]
    return {
        "name": entry.name,
        "description": entry.description,
        "task": entry.task,
        "n_train": entry.n_train,
        "n_test": entry.n_test,
        "n_classes": entry.n_classes,
        "shape": list(entry.shape),
        "present": here.form,
        "root": str(here.home),
        "paths": [str(path) for path in paths],
    }


def _details(name: str) -> dict[str, Any]:
    entry = data.lookup(name)
    packages = [*entry.packages, *([entry.vectors] if entry.vectors else [])]
    return {
        "classes": list(entry.classes),
        "licence": entry.licence,
        "citation": entry.citation,
        "sources": [{"url": source.url, "md5": source.md5} for source in entry.sources],
        "packages": [str(package) for package in packages],
        "notes": list(entry.notes),
    }


def _split(split: Any, classes: int) -> dict[str, Any]:
    inputs, labels = split
    return {
        "shape": list(inputs.shape),
        "dtype": str(inputs.dtype).removeprefix("torch."),
        "class_counts": labels.bincount(minlength=classes).tolist(),
    }


def _lines(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The same facts as the JSON, one line each."""
    here = row["present"]
    where = here if here == "embedded" else f"{here}: {', '.join(row['paths']) or row['root']}"
    lines = [
        ("data", f"{row['name']}: {row['description']}"),
        ("task", f"{row['task']}, {row['n_classes']} classes: {', '.join(row['classes'][:10])}"),
        ("records", f"{row['n_train']:,} train, {row['n_test']:,} test"),
        ("here", where),
    ]
    contents = row["contents"] or {}
    for split in ("train", "test"):
        if split in contents:
            part = contents[split]
            shape = "x".join(map(str, part["shape"]))
            counts = part["class_counts"]
            spread = f"{min(counts):,} to {max(counts):,}" if len(counts) > 10 else _commas(counts)
            lines.append((split, f"{part['dtype']} {shape}; per class {spread}"))
    for key, shape in contents.get("extras", {}).items():
        lines.append((key, "x".join(map(str, shape))))
    if here == "absent":
        lines.append(("fetch", f"reticent data get {row['name']}"))
    lines += [("licence", row["licence"]), ("cite", row["citation"])]
    lines += [("source", source["url"]) for source in row["sources"]]
    lines += [("or", package) for package in row["packages"]]
    return lines + [("note", note) for note in row["notes"]]


def _commas(counts: list[int]) -> str:
    return ", ".join(f"{count:,}" for count in counts)
