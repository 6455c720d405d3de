"""`reticent report`: a run as one page for people, and its model card."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from reticent.cli.output import AsJson, errors, print_json, screen
from reticent.report import write_card, write_report
from reticent.report.folder import CARD_FILE, read_folder
from reticent.training.result import MODEL_FILE

PRIVATE_WARNING = "shows what ε does not cover: must not leave whoever holds the records"


def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write; report.html in the folder if left out.")
    ] = None,
    private: Annotated[
        bool,
        typer.Option(
            "--private",
            help="Also show the audit and private diagnostics: for whoever holds the records.",
        ),
    ] = False,
    card: Annotated[
        bool, typer.Option("--card", help=f"Write {CARD_FILE} beside the page, replacing it.")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a page that says what a run guarantees, what it cost and how good its model is.

    One file, without scripts or anything to load; nothing private is in it unless --private.
    """
    path = write_report(run, out, private=private)
    described = write_card(run, path.parent / CARD_FILE) if card else None
    found = read_folder(run)
    finished = found.run is not None
    if as_json:
        print_json(
            {
                "report": str(path),
                "card": None if described is None else str(described),
                "private": private,
                "finished": finished,
                "model_trouble": found.model_trouble,
            }
        )
    else:
        for written in (path, described):
            if written is not None:
                screen.print(f"written: {written}", soft_wrap=True, markup=False)
        if not finished:
            screen.print("the run is not finished; the page says so")
    if found.model_trouble is not None:
        told = f"{MODEL_FILE} {found.model_trouble}; the page says so"
        errors.print(f"[bold yellow]warning:[/] {escape(told)}", soft_wrap=True)
    if private:
        errors.print(f"[bold]{escape(str(path))}[/]: {PRIVATE_WARNING}", soft_wrap=True)
    if open_:
        webbrowser.open(path.resolve().as_uri())


def refresh_reports(folder: Path, *, private: bool = False, card: bool = False) -> Path | None:
    """Write the pages of a run that was just made or audited; None where that failed.

    A run whose records have been paid for must not look failed because of a page, or somebody
    makes it again and pays twice: whatever goes wrong here is told, not raised.
    """
    try:
        path = write_report(folder)
        if private:
            write_report(folder, private=True)
        if card:
            write_card(folder)
    except Exception as error:
        errors.print(f"no report was written: {escape(str(error))}", soft_wrap=True)
        return None
    return path
