"""Reports as files."""

from __future__ import annotations

from pathlib import Path

from reticent.errors import CheckpointError, OptionError
from reticent.files import check_folder, write_atomically
from reticent.report.card import model_card
from reticent.report.folder import CARD_FILE, PRIVATE_REPORT_FILE, REPORT_FILE, read_folder
from reticent.report.page import render


def write_report(run: str | Path, out: str | Path | None = None, *, private: bool = False) -> Path:
    """Write a run's page; where to is returned.

    Args:
        run: The folder of a run, finished or not.
        out: The file; by default report.html in the folder, or report.private.html.
        private: Show the audit and private diagnostics. Such a page is readable by its owner alone.
    """
    run = Path(run)
    folder = read_folder(run, private=private)
    path = run / (PRIVATE_REPORT_FILE if private else REPORT_FILE) if out is None else Path(out)
    if path.is_dir():
        raise OptionError("out", str(path), "is a folder; name a file")
    check_folder("out", path.parent)
    page = render(folder, private=private)
    write_atomically(path, page.encode("utf-8"), mode=0o600 if private else 0o644)
    return path


def write_card(run: str | Path, out: str | Path | None = None) -> Path:
    """Write a run's MODEL_CARD.md, by default into its folder; it holds public numbers only."""
    folder = read_folder(run)
    if folder.run is None:
        raise CheckpointError(f"run {str(run)!r}: is not finished: there is no model to describe")
    path = Path(run) / CARD_FILE if out is None else Path(out)
    try:
        text = model_card(folder)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CheckpointError(
            f"run {str(run)!r}: run.json is damaged, or of another version "
            f"({type(error).__name__}: {error})"
        ) from error
    write_atomically(path, text.encode("utf-8"))
    return path
