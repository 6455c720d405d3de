"""Settings that papers do not state, chosen for the presets on held-out records.

python benchmarks/preset_settings.py --device cuda --workers 8

Every candidate of `settings_tried.py` is trained on the training split without its last records,
and compared on those; the test split is never looked at. Noise follows from the seed: this is on
public data. `results/preset-settings.json` keeps all of it, searches that were replaced by later
ones too, and the presets have what it has chosen. A search that was cut off goes on with the same
command: `preset-settings.jsonl`, beside the record, has what was measured.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import reticent as rt
from machine import describe_machine
from reticent.cli.building import NEVER, budget_of, build_method, build_model, run_options
from reticent.cli.preparing import prepare
from reticent.cli.settings import Settings
from reticent.files import write_atomically
from reticent.gradients.rounding import PRECISIONS
from reticent.models.starting import START
from reticent.privacy import Ledger
from reticent.reproduction.running import OF_THE_DEVICE
from reticent.reproduction.tables import Entry, load
from reticent.training.held_out import HeldOut
from reticent.training.many import train_many
from reticent.training.planning import plan
from settings_tried import SEARCHED, Candidate, candidates

RESULTS = Path(__file__).parent / "results"
HELD_OUT = {"mnist": 10_000, "fashion-mnist": 10_000, "cifar10": 10_000}
HELD_OUT |= {"imdb": 5_000, "imdb-shifted": 5_000}
SEEDS = 2


def searched(names: Sequence[str] | None = None) -> Iterator[tuple[str, Entry]]:
    """The entries that have candidates; settings that several tables have, once."""
    seen: list[Settings] = []
    for name, columns in SEARCHED.items():
        if names and name not in names:
            continue
        for entry in load(name).entries():
            if entry.column not in columns or entry.settings in seen:
                continue
            if candidates(entry.settings):
                seen.append(entry.settings)
                yield name, entry


def changed(settings: Settings, candidate: Candidate) -> Settings:
    """The settings with a candidate's; options that it does not name stay."""
    options = {**settings.method_options, **candidate.get("method_options", {})}
    return replace(settings, **{**candidate, "method_options": options})


def affordable(settings: Settings, n: int) -> bool:
    """Whether the budget affords the planned releases with any noise."""
    budget = budget_of(settings)
    if budget is None:
        return True
    try:
        plan(build_method(settings), budget, n, settings.steps, settings.epochs, Ledger(budget))
    except rt.BudgetError:
        return False
    return True


def accuracies(
    settings: Settings,
    tried: Sequence[Candidate],
    held_out: int,
    device: str,
    seeds: int = SEEDS,
    precision: str | None = None,
) -> list[list[float]]:
    """Of every candidate with every seed, in percent of the training split's last records.

    None where the budget does not afford a candidate.
    """
    settings = replace(settings, device=device)
    budget = budget_of(settings)
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(settings, budget, None, Path(scratch), resume=False, overwrite=True)
    inputs, labels = prepared.splits.train
    cut = len(labels) - held_out
    each_candidate = [changed(settings, one) for one in tried]
    can = [affordable(one, cut) for one in each_candidate]
    own = [
        replace(one, seed=seed)
        for one, fits in zip(each_candidate, can, strict=True)
        if fits
        for seed in range(seeds)
    ]
    if not own:
        return [[] for _ in tried]
    options = [run_options(one, cut) for one in own]
    names = ("optimizer", "steps", "epochs", "scheduler", "average")
    each: dict[str, Any] = {name: [one[name] for one in options] for name in names}
    last = (inputs[cut:], labels[cut:])
    results = train_many(
        [build_model(one, prepared.splits) for one in own],
        (inputs[:cut], labels[:cut]),
        method=[build_method(one) for one in own],
        budget=budget,
        coins=[rt.Coins.from_seed(one.seed) for one in own],
        every=NEVER,
        device=device,
        precision=precision,
        **each,
    )
    held = HeldOut(last, device=device)
    found = iter([round(100 * float(held(result.model)["accuracy"]), 3) for result in results])
    return [[next(found) for _ in range(seeds)] if fits else [] for fits in can]


def best(tried: Sequence[Candidate], found: Sequence[Sequence[float]]) -> Candidate:
    """The candidate with the largest mean; the first of several. One not afforded never is."""
    return tried[max(range(len(tried)), key=lambda k: sum(found[k]) / max(len(found[k]), 1))]


def measured(entry: Entry, tried: Sequence[Candidate], device: str, *how: Any) -> tuple[Any, float]:
    """Accuracies of some candidates, and the seconds that they took."""
    begun = time.perf_counter()
    found = accuracies(entry.settings, tried, HELD_OUT[entry.data], device, *how)
    return found, time.perf_counter() - begun


def take_share(share: float) -> None:
    """Called in every worker: else each would take the memory that it finds free."""
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(share)


class Search:
    """One entry: what its candidates give, some at a time and in any order, and the best."""

    def __init__(self, name: str, entry: Entry, precision: str | None = None) -> None:
        self.entry, self.precision = entry, precision
        self.place = {
            "table": name,
            "row": entry.row,
            "data": entry.data,
            "column": entry.column,
            "held_out": HELD_OUT[entry.data],
            "start": entry.settings.model_options.get(START.name, START.default),
        }
        self.tried = candidates(entry.settings)
        self._found: dict[int, list[float]] = {}
        self._seconds = 0.0

    def recall(self, lines: Sequence[dict[str, Any]], seeds: int) -> None:
        """Take over what an earlier search, which was cut off, has measured."""
        for line in lines:
            same = self._line() == {key: line[key] for key in self._line()}
            if same and line["candidate"] in self.tried and len(line["accuracies"]) in (0, seeds):
                self._found[self.tried.index(line["candidate"])] = line["accuracies"]
                self._seconds += line["seconds"]

    def reuse(self, rows: Sequence[dict[str, Any]], seeds: int) -> None:
        """Take over what finished searches of this entry have measured of the same candidates.

        What one did not vary was the preset's.
        """
        named = {name for one in self.tried for name in one if name != "method_options"}
        preset = {name: getattr(self.entry.settings, name) for name in named}
        for row in rows:
            if any(row.get(key) != value for key, value in self._line().items()):
                continue
            for old in row["tried"]:
                found = old["accuracies"]
                one = {**preset, **{name: old[name] for name in old if name != "accuracies"}}
                if one in self.tried and len(found) in (0, seeds):
                    self._found.setdefault(self.tried.index(one), found)
                    self._seconds += row["seconds"] / len(row["tried"])

    def _line(self) -> dict[str, Any]:
        return {**self.place, "precision": self.precision}

    def parts(self, together: int) -> list[list[int]]:
        """Which candidates are trained at once: so many, or with 0 all that are left."""
        left = [k for k in range(len(self.tried)) if k not in self._found]
        step = together or max(len(left), 1)
        return [left[k : k + step] for k in range(0, len(left), step)]

    def take(self, part: Sequence[int], result: tuple[Any, float]) -> list[dict[str, Any]]:
        """A part's accuracies; the lines to remember them by."""
        found, seconds = result
        self._found |= dict(zip(part, found, strict=True))
        self._seconds += seconds
        each = round(seconds / len(part), 1)
        return [
            {**self._line(), "candidate": self.tried[k], "accuracies": got, "seconds": each}
            for k, got in zip(part, found, strict=True)
        ]

    def row(self) -> dict[str, Any] | None:
        """What the record has of this entry, once all candidates are there."""
        if len(self._found) < len(self.tried):
            return None
        every = [self._found[k] for k in range(len(self.tried))]
        return {
            **self.place,
            "tried": [
                {**one, "accuracies": got} for one, got in zip(self.tried, every, strict=True)
            ],
            "chosen": best(self.tried, every),
            "precision": self.precision,
            "machine": describe_machine(),
            "seconds": round(self._seconds, 1),
        }


def _with_start(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows say how weights started; those of before there was a choice had PyTorch's."""
    return [{START.name: START.default, **row} for row in rows]


def length(part: tuple[Search, Sequence[int]]) -> float:
    """About how long a part takes, beside others: its epochs."""
    search, places = part
    each = [changed(search.entry.settings, search.tried[k]).epochs for k in places]
    return sum(epochs or 0.0 for epochs in each)


class Record:
    """`preset-settings.json`, and beside it what has been measured of unfinished entries."""

    def __init__(self, folder: Path) -> None:
        self._path, self._tried = folder / "preset-settings.json", folder / "preset-settings.jsonl"
        kept = json.loads(self._path.read_text(encoding="utf-8")) if self._path.exists() else {}
        self.rows = _with_start(kept.get("rows", []))
        self._replaced = _with_start(kept.get("replaced", []))

    def tried(self) -> list[dict[str, Any]]:
        """Lines of `Search.take`, of earlier searches too."""
        if not self._tried.exists():
            return []
        lines = self._tried.read_text(encoding="utf-8").splitlines(keepends=True)
        # a process that was killed leaves half a line
        return _with_start([json.loads(line) for line in lines if line.endswith("\n")])

    def remember(self, lines: Sequence[dict[str, Any]]) -> None:
        """Keep these lines, whatever happens next."""
        every = [*self.tried(), *lines]
        write_atomically(self._tried, "".join(json.dumps(one) + "\n" for one in every).encode())

    def finish(self, row: dict[str, Any]) -> None:
        """Put a row into the record; an earlier search of the same place is kept among others."""
        place = ("table", "row", "data", "column")
        others = [old for old in self.rows if any(old[key] != row[key] for key in place)]
        self._replaced += [
            old for old in self.rows if old not in others and old["tried"] != row["tried"]
        ]
        self.rows = sorted([*others, row], key=lambda one: [str(one[key]) for key in place])
        print(*(row[key] for key in place), row["chosen"], f"{row['seconds']} s", flush=True)
        record = {"what": "preset-settings", "rows": self.rows, "replaced": self._replaced}
        write_atomically(self._path, (json.dumps(record, indent=1) + "\n").encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=list(SEARCHED))
    parser.add_argument("--data", nargs="+", choices=list(HELD_OUT))
    parser.add_argument("--rows", nargs="+", help="By default all that are searched.")
    parser.add_argument("--columns", nargs="+", help="By default all that are searched.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="Processes that share the device.")
    parser.add_argument(
        "--together", type=int, default=0, help="Candidates trained at once; 0: all of an entry."
    )
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--precision", choices=PRECISIONS, help="By default PyTorch's.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    record = Record(options.out)
    searches = [
        Search(name, entry, options.precision)
        for name, entry in searched(options.tables)
        if not options.data or entry.data in options.data
        if not options.rows or entry.row in options.rows
        if not options.columns or str(entry.column) in options.columns
    ]
    earlier = record.tried()
    for one in searches:
        one.reuse(record.rows, options.seeds)
        one.recall(earlier, options.seeds)
        if (row := one.row()) is not None:
            record.finish(row)
    spawn = multiprocessing.get_context("spawn")
    share = OF_THE_DEVICE / options.workers
    how = (options.device, options.seeds, options.precision)
    with ProcessPoolExecutor(
        options.workers, mp_context=spawn, initializer=take_share, initargs=(share,)
    ) as pool:
        parts = [(one, part) for one in searches for part in one.parts(options.together)]
        jobs = {
            pool.submit(measured, one.entry, [one.tried[k] for k in part], *how): (one, part)
            for one, part in sorted(parts, key=length, reverse=True)  # no long one left at the end
        }
        for job in as_completed(jobs):
            one, part = jobs[job]
            try:
                record.remember(one.take(part, job.result()))
            except BrokenProcessPool:
                raise SystemExit(
                    "a process died, as they do where memory is short: what is finished is kept; "
                    f"again, with fewer than --workers {options.workers}"
                ) from None
            except (rt.ReticentError, RuntimeError) as error:  # the others go on
                print(f"failed: {error}", flush=True)
                continue
            if (row := one.row()) is not None:
                record.finish(row)


if __name__ == "__main__":
    main()
