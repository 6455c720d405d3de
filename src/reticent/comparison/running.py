"""A comparison done and written down; a second call takes what is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent.comparison.folder import alone, check_records, note_plan, spent_in
from reticent.comparison.page import render
from reticent.comparison.plans import Cell, Comparison
from reticent.comparison.results import gather, to_csv
from reticent.comparison.spending import total
from reticent.errors import OptionError
from reticent.files import to_json, write_atomically
from reticent.reproduction.jobs import Kept, Outcome
from reticent.reproduction.running import Tell, run_jobs

PAGE_FILE, JSON_FILE, CSV_FILE = "comparison.html", "comparison.json", "comparison.csv"


@dataclass(frozen=True)
class Compared:
    """What came of a comparison.

    Attributes:
        found: What is in `comparison.json`.
        outcomes: Of every job, by key; those that failed say why, which may be private.
        page: Where the page is.
    """

    found: dict[str, Any]
    outcomes: dict[str, Outcome]
    page: Path


def check_way(comparison: Comparison, *, together: bool) -> None:
    """Refuse to train models of one's own records at once: nothing would outlive a crash."""
    if together and comparison.own:
        raise OptionError(
            "together",
            True,
            "models of your own records are trained by themselves, so that what was paid for "
            "outlives a crash; leave it out",
        )


def to_do(comparison: Comparison, folder: Path) -> tuple[int, list[Cell]]:
    """How many jobs are not kept in a folder, and which cells have seeds among them."""
    kept = Kept(folder)
    left = {job.key for job in comparison.jobs() if kept.read(job.key) is None}
    seeds = range(comparison.seeds)
    cells = [c for c in comparison.cells if any(comparison.job(c, s).key in left for s in seeds)]
    return len(left), cells


def run_comparison(
    comparison: Comparison,
    folder: str | Path,
    *,
    device: str = "auto",
    root: str | None = None,
    workers: int = 1,
    together: bool = False,
    command: str | None = None,
    tell: Tell | None = None,
) -> Compared:
    """Train what is not kept in the folder, and write page, JSON and CSV.

    Args:
        comparison: What `compare_plan` gave.
        folder: Where everything goes; of one set of records only, if they are somebody's own.
        device: Where to train.
        root: Folder that holds the data sets.
        workers: How many processes.
        together: Whether models that differ only in seed and numbers are trained at once.
        command: What the page says that it was made by.
        tell: Called with every event.
    """
    check_way(comparison, together=together)
    folder = Path(folder)
    jobs = comparison.jobs()
    with alone(folder):
        check_records(folder, comparison.identity)
        if comparison.own:
            note_plan(folder, jobs)
        outcomes = run_jobs(
            jobs, folder, device=device, root=root, workers=workers, together=together, tell=tell
        )
        spent = total(spent_in(folder)) if comparison.own else None
        found = gather(comparison, outcomes, spent)
        write_atomically(folder / JSON_FILE, to_json(found))
        write_atomically(folder / CSV_FILE, to_csv(found).encode())
        write_atomically(folder / PAGE_FILE, render(found, command).encode())
    return Compared(found, outcomes, folder / PAGE_FILE)
