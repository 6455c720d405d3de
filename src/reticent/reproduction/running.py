"""All jobs of a table: those that are kept are taken from there, the others are done.

Jobs are independent. With several workers each is a process of its own, since small models leave a
device idle; a worker that dies fails its job, and the others go on.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from reticent.errors import whole
from reticent.files import check_folder
from reticent.reproduction.interrupts import Interrupts
from reticent.reproduction.jobs import Job, Kept, Outcome
from reticent.reproduction.measuring import grouped, train_group
from reticent.reproduction.own_records import RUNS_FOLDER

KEPT, STARTED, GOING, ENDED = "kept", "started", "going", "ended"
SECONDS_BETWEEN = 0.5  # what a worker says of how far it is
PATIENCE = 30.0  # seconds that a worker has to end after it was told to
OF_THE_DEVICE = 0.9  # what workers take of its memory together; the rest is for their kernels


@dataclass(frozen=True)
class Event:
    """What happened to a job: it was `kept`, has `started`, is `going` on, or has `ended`."""

    what: str
    key: str
    done: int = 0
    total: int = 0
    outcome: Outcome | None = None


Tell = Callable[[Event], None]


def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    *,
    device: str = "auto",
    root: str | None = None,
    workers: int = 1,
    together: bool = False,
    tell: Tell | None = None,
) -> dict[str, Outcome]:
    """Do the jobs that are not kept in `out`; outcomes by key, in the order of the jobs.

    Args:
        jobs: What is to be done; the same content is done once.
        out: Folder of results, and of the checkpoints of what is under way.
        device: Where to train.
        root: Folder that holds the data sets.
        workers: How many processes.
        together: Whether jobs that differ only in seed and numbers are trained at once.
        tell: Called with every event, in this process.
    """
    whole("workers", workers)
    check_folder("out", out)
    kept = Kept(out)
    say = tell or (lambda event: None)
    found: dict[str, Outcome] = {}
    left: dict[str, Job] = {}
    for job in jobs:
        outcome = kept.read(job.key)
        if outcome is None:
            left.setdefault(job.key, job)
        elif job.key not in found:
            found[job.key] = outcome
            say(Event(KEPT, job.key, outcome=outcome))
    groups = grouped(list(left.values()), together=together)

    def keep(outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            kept.write(left[outcome.key], outcome)
            found[outcome.key] = outcome
            say(Event(ENDED, outcome.key, outcome=outcome))

    options = {"folder": out / "work", "device": device, "root": root, "runs": out / RUNS_FOLDER}
    if workers == 1 or len(groups) < 2:
        _one_by_one(groups, options, say, keep)
    else:
        crowded = _side_by_side(groups, options, min(workers, len(groups)), say, keep)
        _one_by_one(crowded, options, say, keep)
    work = out / "work"
    if work.is_dir() and not any(work.iterdir()):
        work.rmdir()
    return {job.key: found[job.key] for job in jobs}


def _one_by_one(
    groups: Sequence[tuple[Job, ...]],
    options: dict[str, Any],
    say: Tell,
    keep: Callable[[Sequence[Outcome]], None],
) -> None:
    for group in groups:
        for job in group:
            say(Event(STARTED, job.key))

        def going(done: int, total: int, key: str = group[0].key) -> None:
            say(Event(GOING, key, done, total))

        with Interrupts() as interrupts:
            outcomes = train_group(group, progress=going, interrupts=interrupts, **options)
        keep(outcomes)


def _side_by_side(
    groups: Sequence[tuple[Job, ...]],
    options: dict[str, Any],
    workers: int,
    say: Tell,
    keep: Callable[[Sequence[Outcome]], None],
) -> list[tuple[Job, ...]]:
    """Do the groups; those for which the others left no memory are not kept but returned."""
    crowded: list[tuple[Job, ...]] = []
    threads = max((os.cpu_count() or 1) // workers, 1)
    waiting = list(groups)
    busy: dict[Connection, tuple[_Worker, tuple[Job, ...]]] = {}
    threads, share = min(threads, torch.get_num_threads()), OF_THE_DEVICE / workers
    idle = [_Worker(options, threads, share) for _ in range(workers)]
    try:
        while waiting or busy:
            while waiting and idle:
                worker, group = idle.pop(), waiting.pop(0)
                worker.connection.send(group)
                busy[worker.connection] = worker, group
                for job in group:
                    say(Event(STARTED, job.key))
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                worker, group = busy[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    del busy[connection]
                    keep([_died(job, worker) for job in group])
                    idle += [worker.again()] if waiting else []
                    continue
                if isinstance(message, tuple):
                    say(Event(GOING, group[0].key, *message))
                    continue
                del busy[connection]
                idle.append(worker)
                short = [outcome.key for outcome in message if _out_of_memory(outcome)]
                crowded += [(job,) for job in group if job.key in short]
                keep([outcome for outcome in message if outcome.key not in short])
    finally:
        everyone = [*idle, *(worker for worker, _ in busy.values())]
        for worker in everyone:
            worker.end()
        for worker in everyone:
            worker.gone()
    order = [job.key for group in groups for job in group]
    return sorted(crowded, key=lambda one: order.index(one[0].key))


def _out_of_memory(outcome: Outcome) -> bool:
    return outcome.state == "failed" and "out of memory" in (outcome.error or "")


def _died(job: Job, worker: _Worker) -> Outcome:
    worker.process.join(PATIENCE)
    code = worker.process.exitcode
    return Outcome(job.key, "failed", error=f"its process ended with exit code {code}")


class _Worker:
    """A process that does one group after the other."""

    def __init__(self, options: dict[str, Any], threads: int, share: float) -> None:
        self._own = options, threads, share
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        self.connection, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_work, args=(theirs, *self._own), daemon=True)
        self.process.start()
        theirs.close()

    def again(self) -> _Worker:
        """Another one, after this one died."""
        self.connection.close()
        return _Worker(*self._own)

    def end(self) -> None:
        """Ask it to end, with a checkpoint of what is under way."""
        self.process.terminate()

    def gone(self) -> None:
        """Wait until it has ended."""
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.connection.close()


def _work(connection: Connection, options: dict[str, Any], threads: int, share: float) -> None:
    """What a worker does until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the first process tells us
    torch.set_num_threads(threads)
    if torch.cuda.is_available() and options["device"] != "cpu":
        with suppress(RuntimeError):  # a device that cannot be used is named by each job
            number = torch.device(options["device"].replace("auto", "cuda")).index
            # else each worker would measure what is free, and all would take it
            torch.cuda.set_per_process_memory_fraction(share, number)

    told = 0.0

    def going(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= SECONDS_BETWEEN:
            told = time.monotonic()
            with suppress(OSError):
                connection.send((done, total))

    try:
        while True:
            group = connection.recv()
            with Interrupts() as interrupts:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                found = train_group(group, progress=going, interrupts=interrupts, **options)
            connection.send(found)
    except (EOFError, OSError, KeyboardInterrupt):
        return
