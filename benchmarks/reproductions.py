"""Run published tables through `reticent reproduce`'s framework and keep what came out.

python benchmarks/reproductions.py --tables dpsur/table2 --data fashion-mnist --seeds 3 \
    --device cuda --out DIR --time-limit 500

DIR gets a file for each finished job, `jobs/KEY.json`, checkpoints of what is under way, and for
each table `reproduce-PAPER-TABLE.json`, a compact record that is brought up to date whenever a job
ends. Jobs go row by row, so that a cut-off leaves whole rows. The same command goes on; so does
one in an empty folder on another machine, from the records in `--known` (by default
`benchmarks/results`), whose runs are taken over where their settings are still the table's.
`benchmarks/merge.py` joins what several folders hold.
"""

from __future__ import annotations

import argparse
import json
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from reticent.cli.settings import Settings
from reticent.files import write_atomically
from reticent.reproduction.jobs import Job, Kept, Outcome, job_of
from reticent.reproduction.measures import IN_PERCENT
from reticent.reproduction.reports import report
from reticent.reproduction.running import ENDED, Event, run_jobs
from reticent.reproduction.tables import Entry, Table, load

RESULTS = Path(__file__).parent / "results"
WHAT = "reproduce"
AGAIN = 0.2  # seconds, where the limit finds a result being written
SECONDS_BETWEEN = 5.0  # between two writings of the records
_OF_A_RUN = ("claimed_epsilon", "sound_epsilon", "steps", "seconds", "notes")
_HEAD = (
    *("table", "paper", "name", "title", "kind", "measures", "percent", "axis", "columns"),
    *("data", "runs", "changes", "notes"),
)
_KEPT = (
    *("row", "data", "column", "variant", "paper_is_sound", "why", "measures"),
    *("claimed_epsilon", "sound_epsilon", "failed", "claim", "options"),
)


def settings_of(entry: Entry, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an entry as a record has them; where it runs and its seed left out."""
    found = replace(entry.settings, **changes).to_json()
    for name in ("seed", "device", "root"):
        del found[name]
    return json.loads(json.dumps(found))


def same_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether settings are equal; what one does not have yet is at its default."""
    default = Settings().to_json()
    return all(
        one.get(name, default.get(name)) == other.get(name, default.get(name))
        for name in {*one, *other}
    )


def compact(
    table: Table,
    outcomes: Mapping[str, Outcome],
    seeds: Iterable[int],
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is known of a table, as a record: the entries that were run, with every seed."""
    changed = dict(changes or {})
    # what is not on this machine is no result, and says where it was looked for
    known = {key: one for key, one in outcomes.items() if one.state != "missing"}
    found = report(table, table.entries(), known, seeds=sorted(seeds), changes=changed)
    machines: list[dict[str, Any]] = []
    entries = []
    for asked, line in zip(table.entries(), found["entries"], strict=True):
        if not line["seeds"] and not line["failed"]:
            continue
        runs = []
        for seed in line["seeds"]:
            outcome = known[job_of(table, asked, seed, **changed).key]
            if outcome.made not in machines:
                machines.append(outcome.made)
            own = {name: getattr(outcome, name) for name in _OF_A_RUN}
            runs.append({"seed": seed, **own, "machine": machines.index(outcome.made)})
        kept = {name: line[name] for name in _KEPT}
        entries.append({**kept, "settings": settings_of(asked, changed), "runs": runs})
    shared = _shared([entry["settings"] for entry in entries])
    for entry in entries:
        entry["settings"] = {k: v for k, v in entry["settings"].items() if k not in shared}
    head = {name: found[name] for name in _HEAD}
    return {"what": WHAT, **head, "machines": machines, "settings": shared, "entries": entries}


def _shared(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all entries have, which a record says once."""
    first = settings[0] if settings else {}
    return {
        name: value
        for name, value in first.items()
        if all(name in one and one[name] == value for one in settings)
    }


def recovered(
    record: Mapping[str, Any], table: Table, changes: Mapping[str, Any]
) -> Iterator[tuple[Job, Outcome]]:
    """The runs in a record of this table, failed ones too, that are still what it asks for."""
    for line, entry in matched(record, table, changes):
        if entry is None:
            continue
        for run in line["runs"]:
            job = job_of(table, entry, run["seed"], **changes)
            yield job, _outcome(record, line, run, job.key)
        for seed, error in line["failed"].items():
            job = job_of(table, entry, int(seed), **changes)
            yield job, Outcome(job.key, "failed", error=error)


def matched(
    record: Mapping[str, Any], table: Table, changes: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], Entry | None]]:
    """The lines of a record of this table; None beside one that is not what it asks for now."""
    if record.get("what") != WHAT or record["table"] != table.id:
        return
    entries = {place(vars(entry)): entry for entry in table.entries()}
    for line in record["entries"]:
        entry = entries.get(place(line))
        if entry is not None:
            then = {**record["settings"], **line["settings"]}
            now = settings_of(entry, changes), json.loads(json.dumps(entry.options))
            same = same_settings(then, now[0]) and line["options"] == now[1]
            entry = entry if same and set(line["measures"]) == set(table.measures) else None
        yield line, entry


def place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where in a table an entry is."""
    return tuple(entry[name] for name in ("row", "data", "column", "variant"))


def _outcome(
    record: Mapping[str, Any], line: Mapping[str, Any], run: Mapping[str, Any], key: str
) -> Outcome:
    """One run of a record, in the units of outcomes: a share where the table has percent."""
    seed = str(run["seed"])
    values: dict[str, Any] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for name, numbers in line["measures"].items():
        unit = 100.0 if name in record["percent"] and name not in IN_PERCENT else 1.0
        value = numbers["seeds"][seed]
        values[name] = value / unit if isinstance(value, (int, float)) else value
        if seed in numbers["intervals"]:
            low, high = numbers["intervals"][seed]
            intervals[name] = low / unit, high / unit
    return Outcome(
        key,
        values=values,
        intervals=intervals,
        claim=line["claim"],
        made=record["machines"][run["machine"]],
        **{name: run[name] for name in _OF_A_RUN if name != "notes"},
        notes=tuple(run["notes"]),
    )


def file_name(table: Table, changes: Mapping[str, Any]) -> str:
    """Of a table's record."""
    changed = "".join(f"-{name}{value:g}" for name, value in changes.items())
    return f"{WHAT}-{table.id.replace('/', '-')}{changed}.json"


@dataclass(frozen=True)
class Asked:
    """A table, and what is asked of it."""

    table: Table
    entries: tuple[Entry, ...]

    def jobs(self, seeds: int, changes: Mapping[str, Any]) -> list[Job]:
        """Row by row, and within a row column by column: what is cut off is the last row."""
        return [
            job_of(self.table, entry, seed, **changes)
            for entry in self.entries
            if entry.missing is None
            for seed in range(seeds)
        ]


def asked_of(
    names: Sequence[str],
    *,
    data: Sequence[str] | None = None,
    columns: Sequence[str] | None = None,
    rows: Sequence[str] | None = None,
    variants: Sequence[str] | None = None,
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
        found.append(Asked(table, entries))
    if not any(one.entries for one in found):
        raise SystemExit("no entry of these tables is all of this")
    return found


class Keeper:
    """Brings the records up to date, and says what happens."""

    def __init__(
        self, asked: Sequence[Asked], out: Path, seeds: int, changes: dict[str, Any]
    ) -> None:
        self._asked, self._out, self._changes = asked, out, changes
        self._kept = Kept(out)
        self._seeds, self._outcomes = set(range(seeds)), dict[str, Outcome]()
        self.written = 0.0

    def take_over(self, folders: Iterable[Path], *, failed: bool = True) -> int:
        """Put the runs of earlier records among the finished jobs; how many there were."""
        count = 0
        for one in self._asked:
            for folder in folders:
                path = folder / file_name(one.table, self._changes)
                if not path.exists():
                    continue
                record = json.loads(path.read_text(encoding="utf-8"))
                for job, outcome in recovered(record, one.table, self._changes):
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
        for one in self._asked:
            known = dict(self._outcomes)
            for entry in one.table.entries():
                for seed in self._seeds:
                    key = job_of(one.table, entry, seed, **self._changes).key
                    if key not in known and (found := self._kept.read(key)) is not None:
                        known[key] = self._outcomes[key] = found
            record = compact(one.table, known, self._seeds, self._changes)
            if not record["entries"]:
                continue
            path = self._out / file_name(one.table, self._changes)
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
    seeds: int = 1,
    known: Iterable[Path] = (),
    changes: Mapping[str, Any] | None = None,
    time_limit: float | None = None,
    **options: Any,
) -> list[Outcome | None]:
    """Run what is not known yet; the outcomes of all jobs asked for, None where time was short.

    Args:
        asked: Tables and their entries.
        out: Folder of jobs and records.
        seeds: How many for each entry.
        known: Folders of earlier records.
        changes: Settings that override the tables'.
        time_limit: Seconds after which no more is begun, and what is under way is stopped.
        options: For `run_jobs`.
    """
    changed = dict(changes or {})
    jobs = [job for one in asked for job in one.jobs(seeds, changed)]
    keeper = Keeper(asked, out, seeds, changed)
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
    parser.add_argument("--tables", nargs="+", required=True, help="PAPER/TABLE, or TOML files.")
    for name in ("data", "columns", "rows", "variants"):
        parser.add_argument(f"--{name}", nargs="+", help=f"Only these {name}.")
    parser.add_argument("--seeds", type=int, default=1)
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
    asked = asked_of(
        words.tables,
        data=words.data,
        columns=words.columns,
        rows=words.rows,
        variants=words.variants,
    )
    outcomes = measure(
        asked,
        words.out,
        seeds=words.seeds,
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
