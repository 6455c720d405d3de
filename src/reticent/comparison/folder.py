"""The folder of a comparison: whose records it is about, and what was ever begun on them.

`jobs/` has finished jobs, `work/` checkpoints of those on public data. Runs on one's own records
are in `runs/` and stay; `records.json` says which records these are, `plan.json` what was to be
trained on them, and `begun/` how often that began.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from reticent.cli.building import budget_of
from reticent.cli.own_data import RECORDS_FILE
from reticent.comparison.spending import Group, Spent
from reticent.errors import CheckpointError
from reticent.files import check_folder, read_json, to_json, write_atomically
from reticent.privacy import Budget
from reticent.reproduction.jobs import Job, Kept
from reticent.reproduction.own_records import (
    BEGUN,
    BEGUN_FOLDER,
    RUNS_FOLDER,
    beginnings,
    run_name,
)
from reticent.training.result import RUN_FILE, read_run

PLAN_FILE, LOCK_FILE = "plan.json", ".lock"
PLAN_FORMAT = "reticent-comparison-plan/1"


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Refuse a second command in the same folder: two would train the same models twice."""
    check_folder("out", folder)
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise CheckpointError(
            f"out = {str(folder)!r}: another comparison is at work there; wait for it, or choose "
            "another folder"
        ) from None
    try:
        yield
    finally:
        os.close(handle)  # and with it the lock; the file stays, or a third could lock another one


def check_records(folder: Path, identity: str | None) -> None:
    """Refuse a folder that is about other records; keep whose it is, for their owner alone."""
    path = folder / RECORDS_FILE
    if not path.exists():
        traces = (PLAN_FILE, RUNS_FOLDER, BEGUN_FOLDER)
        if any((folder / name).exists() for name in traces):
            raise CheckpointError(
                f"{str(path)!r} is missing, so nobody can tell whose records this comparison is "
                "about; put it back, or choose another --out, and count both"
            )
        if (folder / "jobs").is_dir() and identity is not None:
            raise CheckpointError(
                f"out = {str(folder)!r}: holds jobs on public data; choose another folder"
            )
        if identity is not None:
            held = {"warning": "as private as the records", "fingerprint": identity}
            write_atomically(path, to_json(held), mode=0o600)
        return
    try:
        before = read_json(path)["fingerprint"]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{str(path)!r} cannot be read") from None
    if identity is None:
        raise CheckpointError(
            f"out = {str(folder)!r}: holds a comparison on somebody's own records; choose another"
        )
    if before != identity:
        raise CheckpointError(
            f"out = {str(folder)!r}: the records have changed since this comparison was begun; put "
            "the file back as it was, or choose another folder"
        )


def note_plan(folder: Path, jobs: Sequence[Job]) -> None:
    """Write down what is about to be trained on one's own records, before it is."""
    groups = _read_plan(folder)
    planned = {key for group in groups for key in group}
    new = {job.key: _line(job) for job in jobs if job.key not in planned}
    if new:
        content = {"format": PLAN_FORMAT, "groups": [*groups, new]}
        write_atomically(folder / PLAN_FILE, to_json(content), mode=0o600)


def spent_in(folder: Path) -> list[Group]:
    """All that was ever begun on the records of this folder, whatever was asked for since."""
    kept = Kept(folder)
    found = []
    for group in _read_plan(folder):
        spent = [one for key, line in group.items() for one in _spent(folder, kept, key, line)]
        finished = all(one.ledger is not None for one in spent)
        found.append(Group(tuple(spent), whole=finished and len(spent) == len(group)))
    return found


def _line(job: Job) -> dict[str, Any]:
    budget = budget_of(job.settings)
    return {
        "method": job.settings.method,
        "budget": None if budget is None else budget.to_json(),
        "run": run_name(job),
    }


def _spent(folder: Path, kept: Kept, key: str, line: dict[str, Any]) -> list[Spent]:
    """What a planned job has spent; more than once if what it had left was deleted."""
    budget = None if line["budget"] is None else Budget(**line["budget"])
    run = folder / RUNS_FOLDER / line["run"]
    found = []
    outcome = kept.read(key)
    if outcome is not None and outcome.ledger is not None:
        found = [Spent(line["method"], budget, outcome.ledger)]
    elif (run / RUN_FILE).exists():  # it ended, and was not written down
        found = [Spent(line["method"], budget, read_run(run)["ledger"])]
    elif any((run / name).exists() for name in BEGUN):
        found = [Spent(line["method"], budget)]
    gone = beginnings(run) - len(found)
    return found + [Spent(line["method"], budget)] * gone


def _read_plan(folder: Path) -> list[dict[str, dict[str, Any]]]:
    path = folder / PLAN_FILE
    if not path.exists():
        for paid in (folder / RUNS_FOLDER, folder / BEGUN_FOLDER, Kept(folder).folder):
            if paid.is_dir() and any(paid.iterdir()):
                raise CheckpointError(
                    f"{str(path)!r} is missing, but models left traces in {str(paid)!r}: what was "
                    "spent on these records is not known; take another --out, and count both"
                )
        return []
    try:
        content = read_json(path)
        if content["format"] != PLAN_FORMAT:
            raise ValueError
        return [dict(group) for group in content["groups"]]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{str(path)!r} cannot be read: what was spent on these records is not known"
        ) from None
