"""Jobs on somebody's own records: noise that nobody can guess, and nothing paid for twice.

Each job is a run folder as `reticent train` leaves it, and stays: its model was paid for. What was
begun goes on from its checkpoint or fails; it never begins again by itself, since a second training
would spend a second time.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file

from reticent.cli.building import budget_of, build_method, build_model, build_training
from reticent.cli.own_data import RECORDS_FILE, load_own
from reticent.cli.preparing import STATISTICS_FILE, prepare
from reticent.cli.settings import SETTINGS_FILE, save_settings
from reticent.errors import CheckpointError, OptionError, ReticentError
from reticent.files import read_json
from reticent.methods import DPIS
from reticent.reproduction.costs import gradient_evaluations
from reticent.reproduction.interrupts import Interrupts
from reticent.reproduction.measures import ACCURACY
from reticent.reproduction.tables import SOUND, TRAINING
from reticent.training import Release, evaluate, load_weights
from reticent.training.checkpoint import CHECKPOINT
from reticent.training.result import MODEL_FILE, RUN_FILE, read_run
from reticent.training.train import pick_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from reticent.reproduction.jobs import Job, Outcome

RUNS_FOLDER, BEGUN_FOLDER = "runs", "begun"
DP = "differential-privacy"
BEGUN = (CHECKPOINT, STATISTICS_FILE, RUN_FILE)
"""Files of a run folder that say that something was spent."""


def run_name(job: Job) -> str:
    """What a job's run folder is called: for people, and not the same for two jobs."""
    settings = job.settings
    budget = budget_of(settings)
    shown = "" if budget is None else f"-eps{budget.epsilon:g}"
    return f"{settings.method}{shown}-seed{settings.seed}-{job.key[:8]}"


def train_own(
    job: Job,
    runs: Path,
    progress: Callable[[int, int], None] | None,
    interrupts: Interrupts | None,
) -> Outcome:
    """Train a job on records of one's own, or go on with it; what is finished is only read.

    Args:
        job: What to train.
        runs: Folder of run folders. Where the folder it lies in holds a fingerprint of the records,
            others are refused.
        progress: Told the number of releases made and planned.
        interrupts: Ends the training gently.
    """
    _check_plain(job)
    folder = runs / run_name(job)
    if not (folder / RUN_FILE).exists():
        _train(job, folder, progress, interrupts)
    return outcome_of(job, folder)


def _check_plain(job: Job) -> None:
    """Refuse what would need more than a training, or has no noise where it should."""
    data = job.settings.data
    if job.kind != TRAINING or job.variant != SOUND:
        raise OptionError("data", data, "only sound trainings are made on records of one's own")
    if job.attacks or job.measures != (ACCURACY,):
        raise OptionError(
            "data", data, "attacks on records of one's own are made by reticent audit RUN"
        )


def _train(
    job: Job,
    folder: Path,
    progress: Callable[[int, int], None] | None,
    interrupts: Interrupts | None,
) -> None:
    begun = any((folder / name).exists() for name in BEGUN)
    if not begun:
        _note_beginning(folder)
    try:
        training = build_training(job.settings, folder=folder, resume=begun, coins=None)
    except BaseException:
        if not any((folder / name).exists() for name in BEGUN):  # refused: nothing was released
            path = _beginnings_file(folder)
            os.truncate(path, path.stat().st_size - 1)
        raise
    if not (folder / SETTINGS_FILE).exists():
        save_settings(job.settings, folder)
    _check_records(folder, folder.parent.parent / RECORDS_FILE)

    def tell(release: Release) -> None:
        if progress is not None:
            progress(release.step, release.steps)

    with interrupts.watching(training) if interrupts is not None else nullcontext():
        training.finish(tell)


def _note_beginning(folder: Path) -> None:
    """One byte more in a file beside the run folders, which may be deleted while it stays."""
    path = _beginnings_file(folder)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, b".")
        os.fsync(file)
    finally:
        os.close(file)


def beginnings(folder: Path) -> int:
    """How often a training began from nothing in this run folder, whatever is left of it."""
    path = _beginnings_file(folder)
    return path.stat().st_size if path.exists() else 0


def _beginnings_file(folder: Path) -> Path:
    return folder.parent.parent / BEGUN_FOLDER / folder.name


def _check_records(folder: Path, expected: Path) -> None:
    """Refuse records that are not those of the other jobs, before anything is released."""
    if expected.exists():
        found = [read_json(path)["fingerprint"] for path in (folder / RECORDS_FILE, expected)]
        if found[0] != found[1]:
            raise CheckpointError(
                f"{str(folder)!r}: the records have changed while others were trained on them"
            )


def outcome_of(job: Job, folder: Path) -> Outcome:
    """What a finished run folder says, and nothing that it does not: its time may be private."""
    from reticent.reproduction.jobs import Outcome

    run = read_run(folder)
    if not all(bool(torch.isfinite(t).all()) for t in load_file(folder / MODEL_FILE).values()):
        raise ReticentError("diverged: the model's weights are not finite; try a smaller lr")
    settings, stated = job.settings, run["statement"]
    method = build_method(settings)
    n = settings.n
    if n is None and isinstance(method, DPIS):
        n = len(load_own(settings.data, settings.data_options, fresh=True).train[0])
    return Outcome(
        job.key,
        values={ACCURACY: 100 * _accuracy(job, folder, run)},
        claimed_epsilon=None if run["budget"] is None else run["budget"]["epsilon"],
        sound_epsilon=stated["epsilon"] if run["guarantee"] == DP else None,
        steps=run["steps"],
        seconds=run["seconds"],
        gradients=gradient_evaluations(method, run["conduct"], n, run["steps"]),
        guarantee=run["guarantee"],
        ledger=run["ledger"],
    )


def _accuracy(job: Job, folder: Path, run: dict[str, Any]) -> float:
    """Of the final model; a run that its budget ended was last asked earlier."""
    last = run["metrics"][-1] if run["metrics"] else {}
    if last.get("step") == run["steps"] and last.get("accuracy") is not None:
        return float(last["accuracy"])
    settings = job.settings
    prepared = prepare(settings, budget_of(settings), None, folder, resume=True, overwrite=False)
    device = pick_device(settings.device)
    model = load_weights(build_model(settings, prepared.splits), folder).to(device)
    return float(evaluate(model, prepared.splits.test, device=device)["accuracy"])
