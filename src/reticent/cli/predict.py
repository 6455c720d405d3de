"""`reticent predict`: what a trained model says of new records."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from reticent.cli.output import AsJson, errors, print_json, screen
from reticent.errors import OptionError
from reticent.files import check_folder, write_atomically


def predict(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run on a file of your own.")],
    data: Annotated[
        Path, typer.Option(help="New records: a file or folder of the kind it was trained on.")
    ],
    out: Annotated[Path, typer.Option(help="CSV file to write.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the file if it is there.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Write the probability of each class for each new record.

    Reads run.json, model.safetensors and, if there is one, standardisation.safetensors, and never
    the training records: these three files may be passed on. Nothing is charged.
    """
    from reticent.prediction import Predictor, counts

    _check_out(out, data, run, overwrite)
    with nullcontext() if as_json else screen.status("reading"):
        found = Predictor.load(run, device).predict(data)
    # about people, like the file it was made from
    write_atomically(out, found.to_csv().encode(), mode=0o600)
    given = counts(found.labels, found.classes)
    for text in found.remarks:
        errors.print(f"[bold]note:[/] {escape(text)}", soft_wrap=True)
    if as_json:
        return print_json(
            {
                "out": str(out),
                "records": len(found.names),
                "predicted": given,
                "remarks": list(found.remarks),
            }
        )
    table = Table("predicted", "records")
    for name, count in given.items():
        table.add_row(escape(name), f"{count:,}")
    screen.print(table)
    return screen.print(f"written: {out}", soft_wrap=True, markup=False)


def _check_out(out: Path, data: Path, run: Path, overwrite: bool) -> None:
    if out.is_dir():
        raise OptionError("out", str(out), "is a folder; name a file")
    if out.is_symlink() or (out.exists() and not out.is_file()):
        raise OptionError("out", str(out), "is no plain file; name another")
    if out.exists() and out.suffix != ".csv" and out.resolve().parent == run.resolve():
        raise OptionError("out", str(out), "belongs to the run; name another")
    if out.exists() and data.exists() and out.samefile(data):
        raise OptionError("out", str(out), "is the file of new records itself; name another")
    if out.exists() and not overwrite:
        raise OptionError("out", str(out), "is there already; name another, or say --overwrite")
    check_folder("out", out.parent)
