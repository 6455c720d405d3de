"""From a job to its outcome: trained, attacked or computed; what goes wrong is part of it."""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from reticent import data as datasets
from reticent.cli.building import NEVER, budget_of, build_model, build_training, run_options
from reticent.cli.preparing import STATISTICS_FILE, prepare
from reticent.cli.settings import Settings
from reticent.data import as_records
from reticent.errors import CheckpointError, ReticentError
from reticent.reproduction.checking import absent_features
from reticent.reproduction.claims import Planned, planned
from reticent.reproduction.computing import function
from reticent.reproduction.costs import gradient_evaluations
from reticent.reproduction.interrupts import Interrupts
from reticent.reproduction.jobs import Job, Outcome, Value, made_by
from reticent.reproduction.measures import ACCURACY, REJECTED
from reticent.reproduction.own_records import DP, RUNS_FOLDER, train_own
from reticent.reproduction.tables import TRAINING
from reticent.training import Release, Result, Training, evaluate
from reticent.training.checkpoint import CHECKPOINT
from reticent.training.evaluation import Evaluation
from reticent.training.train import pick_device

Progress = Callable[[int, int], None]
# the settings in which jobs that are trained at once may differ
FREE = (
    *("seed", "epsilon", "delta", "noise", "clip", "lr", "momentum", "weight_decay"),
    *("steps", "epochs", "average", "valid_noise", "bound", "beta"),
)
AT_ONCE = ("dpsgd", "sign-sgd", "sign-adam", "noise-decay", "sgd", "dpsur")
MOST_AT_ONCE = 32


def missing_data(job: Job, root: str | None) -> str | None:
    """What is not here, and how to get it; None if all is."""
    if job.private:
        return None  # reading it says what is wrong with it
    info = datasets.lookup(job.settings.data)
    here = datasets.locate(info.name, root=root)
    what, files = info.name, ", ".join(source.file for source in info.sources) or "its files"
    if here.form != "absent":
        if info.vectors is None or here.vectors is not None or not _takes_vectors(job.settings):
            return absent_features(job.settings)
        what = f"the word vectors of {info.name}"
        files = f"{info.vectors.name}-{info.vectors.version}.tgz"
    return (
        f"{what}: not in {here.home}. Run `reticent data get {info.name}`, or put {files} into "
        f"{here.home / info.name}; --root names another folder"
    )


def _takes_vectors(settings: Settings) -> bool:
    """Whether public word vectors are used, unless the model trains its own on the words."""
    return settings.features != "none" or settings.model_options.get("words") != "trained"


def measure(
    job: Job,
    folder: Path,
    *,
    device: str = "auto",
    root: str | None = None,
    runs: Path | None = None,
    progress: Progress | None = None,
    interrupts: Interrupts | None = None,
) -> Outcome:
    """Do one job; `folder` keeps what an interrupted one has reached, and is empty afterwards.

    What was trained on records of one's own stays in `runs`: it was paid for.
    """
    begun = time.monotonic()
    work = folder / job.key
    try:
        absent = missing_data(job, root)
        if absent is not None:
            return Outcome(job.key, "missing", error=absent)
        chosen = pick_device(device)
        there = replace(job, settings=replace(job.settings, device=str(chosen), root=root))
        if job.private:
            found = train_own(there, runs or folder / RUNS_FOLDER, progress, interrupts)
            return replace(found, key=job.key, made=made_by(chosen))
        if job.kind != TRAINING:
            outcome = _computed(there)
        elif job.attacks:
            outcome = _attacked(there, work, progress)
        else:
            outcome = _trained(there, work, progress, interrupts)
        made = made_by(chosen)
    except Exception as error:  # whatever it is, the other jobs go on
        return _failed(job, error)
    shutil.rmtree(work, ignore_errors=True)
    seconds = round(outcome.seconds or time.monotonic() - begun, 3)
    notes = (*outcome.notes, *job.brought_notes())
    return replace(outcome, key=job.key, seconds=seconds, made=made, notes=notes)


def _failed(job: Job, error: Exception) -> Outcome:
    said = str(error) if isinstance(error, ReticentError) else f"{type(error).__name__}: {error}"
    return Outcome(job.key, "failed", error=said)


def _computed(job: Job) -> Outcome:
    found = function(job.kind)(job.settings, job.options, job.settings.device)
    return Outcome(job.key, values={name: found.get(name) for name in (*job.measures, *found)})


def _attacked(job: Job, work: Path, progress: Progress | None) -> Outcome:
    from reticent.reproduction.attacking import attack  # here: most tables need no attack

    work.mkdir(parents=True, exist_ok=True)
    found = attack(job, work, progress=progress)
    return Outcome(
        job.key,
        values=found.values,
        intervals=found.intervals,
        claimed_epsilon=found.planned.claimed_epsilon,
        sound_epsilon=found.sound_epsilon,
        steps=found.steps,
        claim=found.planned.claim,
        notes=found.notes,
    )


def _records(job: Job) -> int:
    return job.settings.n or datasets.lookup(job.settings.data).n_train


def _trained(
    job: Job, work: Path, progress: Progress | None, interrupts: Interrupts | None
) -> Outcome:
    plan = planned(job.settings, job.variant, _records(job))
    training = _begin_or_go_on(job, plan, work)

    def tell(release: Release) -> None:
        if progress is not None:
            progress(release.step, release.steps)

    with interrupts.watching(training) if interrupts is not None else nullcontext():
        result = training.finish(tell)
    values: dict[str, Value] = {}
    if REJECTED in job.measures:
        from reticent.reproduction.attacking import rejected_share

        values[REJECTED] = rejected_share(training)
    if ACCURACY in job.measures:
        values[ACCURACY] = 100 * _accuracy(result, training.evaluation)
    conduct = training.run.conduct.to_json()
    gradients = gradient_evaluations(training.method, conduct, training.run.n, result.steps)
    found = _outcome(job, plan, result, values)
    return replace(found, seconds=training.seconds, gradients=gradients)


def _begin_or_go_on(job: Job, plan: Planned, work: Path) -> Training:
    """The training, from its checkpoint where a usable one lies in the folder."""
    rejecting = REJECTED in job.measures
    options: dict[str, Any] = {
        "folder": work,
        "method": plan.method,
        "config": {"claim": plan.claim} if plan.claim else None,
        "private_diagnostics": rejecting,
    }
    # what was rejected before a checkpoint is not in it
    begun = any((work / name).exists() for name in (CHECKPOINT, STATISTICS_FILE))
    if begun and not rejecting:
        try:
            return build_training(plan.settings, resume=True, coins=None, **options)
        except CheckpointError:  # of another version or device
            pass
    return build_training(plan.settings, resume=False, overwrite=True, coins=job.coins(), **options)


def _accuracy(result: Result, evaluation: Evaluation | None) -> float:
    """Accuracy of the final model; a run that its budget ended was last asked earlier."""
    last = result.metrics[-1] if result.metrics else {}
    if last.get("step") == result.steps:
        return float(last["accuracy"])
    assert evaluation is not None
    return float(evaluation(result.model)["accuracy"])


def _outcome(job: Job, plan: Planned, result: Result, values: dict[str, Value]) -> Outcome:
    if not all(bool(torch.isfinite(p).all()) for p in result.model.parameters()):
        raise ReticentError("diverged: the model's weights are not finite; try a smaller lr")
    proved = result.guarantee == "differential-privacy" and result.budget is not None
    return Outcome(
        job.key,
        values=values,
        claimed_epsilon=plan.claimed_epsilon,
        sound_epsilon=result.epsilon if proved else None,
        steps=result.steps,
        guarantee=result.guarantee if proved or result.guarantee != DP else "none",
        claim=plan.claim,
    )


# -- several at once --------------------------------------------------------------------------


def grouped(jobs: Sequence[Job], *, together: bool) -> list[tuple[Job, ...]]:
    """Jobs in groups that `train_group` takes; by themselves unless they can be trained at once."""
    groups: dict[str, list[Job]] = {}
    for job in jobs:
        name = job.key
        if together and can_be_together(job):
            fixed = {**job.content(), "settings": vars(job.settings).copy()}
            for free in FREE:
                del fixed["settings"][free]
            name = str(fixed)
        groups.setdefault(name, []).append(job)
    return [
        tuple(group[start : start + MOST_AT_ONCE])
        for group in groups.values()
        for start in range(0, len(group), MOST_AT_ONCE)
    ]


def can_be_together(job: Job) -> bool:
    """Whether a job is a plain training that has a vectorised form."""
    settings = job.settings
    return (
        job.kind == TRAINING
        and not job.private  # at once, nothing of what was paid for outlives a crash
        and job.measures == (ACCURACY,)
        and settings.method in AT_ONCE
        and settings.clipping == "flat"
        and not settings.standardise
        and settings.path == "auto"
    )


def train_group(
    jobs: Sequence[Job],
    folder: Path,
    *,
    device: str = "auto",
    root: str | None = None,
    runs: Path | None = None,
    progress: Progress | None = None,
    interrupts: Interrupts | None = None,
) -> list[Outcome]:
    """Do the jobs of a group: those of one architecture on the same records at once.

    A group of one, and one that cannot be trained at once after all, goes job by job.
    """
    notes: tuple[str, ...] = ()
    if len(jobs) > 1:
        try:
            return _at_once(jobs, device, root, progress)
        except Exception as error:  # each by itself says what is wrong with it, or has the memory
            notes = (f"not trained at once: {error}",)
    options: dict[str, Any] = {"device": device, "root": root, "interrupts": interrupts}
    found = (measure(job, folder, runs=runs, progress=progress, **options) for job in jobs)
    return [replace(outcome, notes=(*outcome.notes, *notes)) for outcome in found]


def _at_once(
    jobs: Sequence[Job], device: str, root: str | None, progress: Progress | None
) -> list[Outcome]:
    from reticent.training.many import train_many

    begun = time.monotonic()
    absent = missing_data(jobs[0], root)
    if absent is not None:
        return [Outcome(job.key, "missing", error=absent) for job in jobs]
    chosen = pick_device(device)
    first = replace(jobs[0].settings, root=root, device=str(chosen))
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(
            first, budget_of(first), None, Path(scratch), resume=False, overwrite=True
        )
    splits, n = prepared.splits, len(prepared.splits.train[1])
    plans = [planned(job.settings, job.variant, first.n or n) for job in jobs]
    options = [run_options(plan.settings, n) for plan in plans]
    names = ("optimizer", "steps", "epochs", "scheduler", "average")
    own: dict[str, Any] = {name: [one[name] for one in options] for name in names}
    evaluation = functools.partial(evaluate, data=as_records(splits.test, chosen), device=chosen)
    results = train_many(
        [build_model(job.settings, splits) for job in jobs],
        splits.train,
        method=[plan.method for plan in plans],
        budget=[budget_of(plan.settings) for plan in plans],
        coins=[job.coins() for job in jobs],
        evaluation=evaluation,
        every=NEVER,
        n=first.n,
        device=chosen,
        data_on=first.data_on,
        precision=first.precision,
        on_step=progress,
        **own,
    )
    made = made_by(chosen)
    seconds = round((time.monotonic() - begun) / len(jobs), 3)
    outcomes = []
    for k, (job, plan, result) in enumerate(zip(jobs, plans, results, strict=True)):
        how = f"one of {len(jobs)} trained at once"
        if k in results.apart:
            how = f"trained by itself: {results.apart[k]}"
        try:
            accuracy = _accuracy(result, evaluation)
            values: dict[str, Value] = {ACCURACY: 100 * accuracy}
            found = replace(_outcome(job, plan, result, values), seconds=seconds, made=made)
            done = gradient_evaluations(plan.method, result.conduct, first.n or n, result.steps)
            outcomes.append(replace(found, notes=(how,), gradients=done))
        except ReticentError as error:
            outcomes.append(_failed(job, error))
    return outcomes
