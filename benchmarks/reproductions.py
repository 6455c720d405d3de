"""Run published tables through `reticent reproduce`'s framework and keep what came out.

python benchmarks/reproductions.py --tables dpsur/table2 --data fashion-mnist --seeds 3 \
    --device cuda --out DIR --time-limit 500

DIR gets a file for each finished job, `jobs/KEY.json`, checkpoints of what is under way, and for
each table `reproduce-PAPER-TABLE.json`, a compact record that is brought up to date whenever a job
ends. Jobs go row by row, so that a cut-off leaves whole rows. The same command goes on; so does
one in an empty folder on another machine, from the records in `--known` (by default
`benchmarks/results`), whose runs are taken over where their settings are still the table's.
`benchmarks/merge.py` joins what several folders hold.

With `--queue FILE`, each line of a file asks for a part of a table, and all parts are worked
through in that order by the same workers:

    dpsur/table2 --data cifar10 --rows DPSGD DPSGD-TS --seeds 3
    dpis/table4 --data imdb
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from reproduction_records import compact, file_name, recovered
from reticent.files import write_atomically
from reticent.reproduction.jobs import Job, Kept, Outcome, job_of
from reticent.reproduction.running import ENDED, Event, run_jobs
from reticent.reproduction.tables import Entry, Table, load

RESULTS = Path(__file__).parent / "results"
AGAIN = 0.2  # seconds, where the limit finds a result being written
SECONDS_BETWEEN = 5.0  # between two writings of the records


@dataclass(frozen=True)
class Asked:
    """A table, and what is asked of it, with how many seeds."""

    table: Table
    entries: tuple[Entry, ...]
    seeds: int = 1

    def jobs(self, changes: Mapping[str, Any]) -> list[Job]:
        """Row by row, and within a row column by column: what is cut off is the last row."""
        return [
            job_of(self.table, entry, seed, **changes)
            for entry in self.entries
            if entry.missing is None
            for seed in range(self.seeds)
        ]


def asked_of(
    names: Sequence[str],
    *,
    data: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
    seeds: int = 1,
) -> list[Asked]:
    """The tables, narrowed down; what a table has not is no error as long as another has it."""
    found = []
    for name in names:
        table = load(name)
        entries = tuple(
            entry
            for entry in table.entries()
            if (not data or entry.data in data)
            and (not columns or entry.column is None or str(entry.column) in columns)
            and (not rows or entry.row in rows)
            and (not variants or entry.variant in variants)
        )
        found.append(Asked(table, entries, seeds))
    if not any(one.entries for one in found):
        raise SystemExit(f"no entry of {', '.join(names)} is all of this")
    return found


def queued(path: Path) -> list[Asked]:
    """What the lines of a file ask for, in their order."""
    parser = argparse.ArgumentParser(prog=path.name)
    parser.add_argument("tables", nargs="+")
    add_parts(parser)
    lines = path.read_text(encoding="utf-8").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [one for line in words if line for one in asked_of(**parts_of(parser.parse_args(line)))]


def add_parts(parser: argparse.ArgumentParser) -> None:
    """Options that narrow tables down."""
    for name in ("data", "columns", "rows", "variants"):
        parser.add_argument(f"--{name}", nargs="+", help=f"Only these {name}.")
    parser.add_argument("--seeds", type=int, default=1)


def parts_of(words: argparse.Namespace) -> dict[str, Any]:
    """Those options, for `asked_of`."""
    names = ("data", "columns", "rows", "variants", "seeds")
    return {"names": words.tables, **{name: getattr(words, name) for name in names}}


class Keeper:
    """Brings the records up to date, and says what happens."""

    def __init__(self, asked: Sequence[Asked], out: Path, changes: dict[str, Any]) -> None:
        self._tables = list({one.table.id: one.table for one in asked}.values())
        self._out, self._changes = out, changes
        self._kept = Kept(out)
        self._seeds = {seed for one in asked for seed in range(one.seeds)}
        self._outcomes: dict[str, Outcome] = {}
        self.written = 0.0

    def take_over(self, folders: Iterable[Path], *, failed: bool = True) -> int:
        """Put the runs of earlier records among the finished jobs; how many there were."""
        count = 0
        for table in self._tables:
            for folder in folders:
                path = folder / file_name(table, self._changes)
                if not path.exists():
                    continue
                record = json.loads(path.read_text(encoding="utf-8"))
                for job, outcome in recovered(record, table, self._changes):
                    self._seeds.add(job.settings.seed)
                    if self._kept.read(job.key) is not None:
                        continue
                    if outcome.state == "done":
                        self._kept.write(job, outcome)
                        count += 1
                    elif failed:  # it is tried again where it is asked for
                        self._outcomes[job.key] = outcome
        self._seeds |= self._kept.seeds()
        return count

    def tell(self, event: Event) -> None:
        """Called by `run_jobs`."""
        if event.outcome is None:
            return
        self._outcomes[event.key] = event.outcome
        if event.what == ENDED:
            values = ", ".join(
                f"{name} {value:.4g}"
                for name, value in event.outcome.values.items()
                if isinstance(value, (int, float))
            )
            seconds = event.outcome.seconds or 0.0
            said = values or event.outcome.error
            print(f"{event.key[:8]} {event.outcome.state}: {said} ({seconds:.0f} s)", flush=True)
            if time.monotonic() - self.written > SECONDS_BETWEEN:
                self.write()

    def outcome(self, job: Job) -> Outcome | None:
        """What came of a job, if anything has."""
        return self._outcomes.get(job.key)

    def write(self) -> None:
        """Write all records, with all that is kept."""
        for table in self._tables:
            known = dict(self._outcomes)
            for entry in table.entries():
                for seed in self._seeds:
                    key = job_of(table, entry, seed, **self._changes).key
                    if key not in known and (found := self._kept.read(key)) is not None:
                        known[key] = self._outcomes[key] = found
            record = compact(table, known, self._seeds, self._changes)
            if not record["entries"]:
                continue
            path = self._out / file_name(table, self._changes)
            write_atomically(path, json.dumps(record, indent=1, allow_nan=False).encode() + b"\n")
        self.written = time.monotonic()


@contextmanager
def limited(seconds: float | None) -> Iterator[None]:
    """After so many seconds, what Ctrl-C does; but never while a finished job is written."""

    def due(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_name in ("keep", "tell"):
                signal.setitimer(signal.ITIMER_REAL, AGAIN)
                return
            frame = frame.f_back
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGALRM, due)
    signal.setitimer(signal.ITIMER_REAL, seconds or 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def measure(
    asked: Sequence[Asked],
    out: Path,
    *,
    known: Iterable[Path] = (),
    changes: Mapping[str, Any] | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> list[Outcome | None]:
    """Run what is not known yet; the outcomes of all jobs asked for, None where time was short.

    Args:
        asked: Tables, their entries and how many seeds.
        out: Folder of jobs and records.
        known: Folders of earlier records.
        changes: Settings that override the tables'.
        time_limit: Seconds after which no more is begun, and what is under way is stopped.
        options: For `run_jobs`.
    """
    changed = dict(changes or {})
    jobs = [job for one in asked for job in one.jobs(changed)]
    keeper = Keeper(asked, out, changed)
    with limited(time_limit):
        try:
            taken = keeper.take_over((out, *known))
            print(f"{len(jobs)} jobs; {taken} runs taken over from records", flush=True)
            run_jobs(jobs, out, tell=keeper.tell, **options)
        except KeyboardInterrupt:
            print("stopped; the same command goes on", flush=True)
    keeper.write()
    return [keeper.outcome(job) for job in jobs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tables", nargs="+", help="PAPER/TABLE, or TOML files.")
    what.add_argument("--queue", type=Path, help="File whose lines ask for parts of tables.")
    add_parts(parser)
    parser.add_argument("--lr", type=float, help="Another learning rate, in a record of its own.")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--root", help="Folder that holds the data sets.")
    parser.add_argument("--workers", type=int, default=1, help="Processes that share the device.")
    parser.add_argument(
        "--together", action="store_true", help="Similar jobs at once; a cut-off loses them."
    )
    parser.add_argument("--time-limit", type=float, help="Seconds; half a minute may be added.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--known", type=Path, nargs="*", default=[RESULTS])
    words = parser.parse_args()
    asked = queued(words.queue) if words.queue else asked_of(**parts_of(words))
    outcomes = measure(
        asked,
        words.out,
        known=words.known,
        changes={} if words.lr is None else {"lr": words.lr},
        time_limit=words.time_limit,
        device=words.device,
        root=words.root,
        workers=words.workers,
        together=words.together,
    )
    states = Counter("left" if one is None else one.state for one in outcomes)
    print(", ".join(f"{count} {state}" for state, count in states.items()))
    for text in sorted({one.error or "" for one in outcomes if one and one.state == "missing"}):
        print(f"missing: {text}")
    if states["failed"] or states["missing"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
