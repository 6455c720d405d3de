"""Settings that papers do not state, chosen for the presets on held-out records.

python benchmarks/preset_settings.py --device cuda --workers 8

Of the rows below, every candidate is trained on the training split without its last records, and
compared on those; the test split is never looked at. Noise follows from the seed: this is on public
data. `results/preset-settings.json` keeps all of it, and the presets have what it has chosen.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import reticent as rt
from machine import describe_machine
from reticent.cli.building import NEVER, budget_of, build_method, build_model, run_options
from reticent.cli.preparing import prepare
from reticent.cli.settings import Settings
from reticent.reproduction.tables import Entry, load
from reticent.training.held_out import HeldOut
from reticent.training.many import train_many

RESULTS = Path(__file__).parent / "results"
HELD_OUT = {"mnist": 10_000, "fashion-mnist": 10_000, "cifar10": 10_000, "imdb": 5_000}
SEEDS = 2
RATES = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.007, 0.01, 0.02)
SIGN = ("sign-sgd", "sign-adam")
DPAGD = {"candidates": 5, "gamma": 0.001}
CIFAR_BATCHES = ((1024, 1.0), (2048, 1.0), (2048, 2.0), (4096, 2.0), (4096, 4.0), (8192, 4.0))
SEARCHED: dict[str, tuple[float | None, ...]] = {  # tables, and which columns
    "bottleneck/table3": (0.5, 1.0, 2.0),
    "bottleneck/table4": (0.5, 1.0, 2.0),
    "bottleneck/table5": (0.5, 1.0, 2.0),
    "dpsur/table2": (2, None),
    "dpis/table3": (1, None),
}

Candidate = dict[str, Any]


def candidates(settings: Settings) -> list[Candidate]:
    """What is tried in place of the preset's own settings; nothing if a row is not searched."""
    if settings.method in SIGN:
        return [{"lr": rate} for rate in RATES]
    if settings.method == "dpagd":
        # cheap choices: most of the budget is for gradients
        return [
            {"method_options": {**DPAGD, "longest": longest, "choice_epsilon": epsilon}}
            for longest in (0.5, 1.0, 2.0)
            for epsilon in (0.03, 0.1, 0.3)
        ]
    own_network = settings.model == "cifar-cnn" and settings.activation == "tempered-sigmoid"
    if settings.method == "dpsgd" and settings.noise is None and own_network:
        return [{"batch": batch, "lr": rate} for batch, rate in CIFAR_BATCHES]
    if settings.method == "sgd" and settings.data == "cifar10":
        return [{"lr": rate} for rate in (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)]
    return []


def searched(names: Sequence[str] | None = None) -> Iterator[tuple[str, Entry]]:
    """The entries that have candidates."""
    for name, columns in SEARCHED.items():
        if names and name not in names:
            continue
        for entry in load(name).entries():
            if entry.column in columns and candidates(entry.settings):
                yield name, entry


def changed(settings: Settings, candidate: Candidate) -> Settings:
    """The settings with a candidate's; options that it does not name stay."""
    options = {**settings.method_options, **candidate.get("method_options", {})}
    return replace(settings, **{**candidate, "method_options": options})


def accuracies(
    settings: Settings, tried: Sequence[Candidate], held_out: int, device: str, seeds: int = SEEDS
) -> list[list[float]]:
    """Of every candidate with every seed, in percent of the training split's last records."""
    settings = replace(settings, device=device)
    budget = budget_of(settings)
    with tempfile.TemporaryDirectory() as scratch:
        prepared = prepare(settings, budget, None, Path(scratch), resume=False, overwrite=True)
    inputs, labels = prepared.splits.train
    cut = len(labels) - held_out
    own = [replace(changed(settings, one), seed=seed) for one in tried for seed in range(seeds)]
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
        **each,
    )
    held = HeldOut(last, device=device)
    found = [100 * float(held(result.model)["accuracy"]) for result in results]
    return [[round(a, 3) for a in found[k : k + seeds]] for k in range(0, len(found), seeds)]


def best(tried: Sequence[Candidate], found: Sequence[Sequence[float]]) -> Candidate:
    """The candidate with the largest mean; the first of several."""
    return tried[max(range(len(tried)), key=lambda k: sum(found[k]) / len(found[k]))]


def measured(entry: Entry, tried: Sequence[Candidate], device: str) -> tuple[Any, float]:
    """Accuracies of some candidates, and the seconds that they took."""
    begun = time.perf_counter()
    found = accuracies(entry.settings, tried, HELD_OUT[entry.data], device)
    return found, time.perf_counter() - begun


class Search:
    """One entry: what its candidates give, some at a time and in any order, and the best."""

    def __init__(self, name: str, entry: Entry) -> None:
        self.name, self.entry = name, entry
        self.tried = candidates(entry.settings)
        self._found: dict[int, list[float]] = {}
        self._seconds = 0.0

    def parts(self, together: int) -> list[range]:
        """Which candidates are trained at once: so many, or with 0 all of them."""
        count = len(self.tried)
        step = together or count
        return [range(k, min(k + step, count)) for k in range(0, count, step)]

    def take(self, part: range, result: tuple[list[list[float]], float]) -> dict[str, Any] | None:
        """A part's accuracies; the row of the record once all are there."""
        found, seconds = result
        self._found |= dict(zip(part, found, strict=True))
        self._seconds += seconds
        if len(self._found) < len(self.tried):
            return None
        every = [self._found[k] for k in range(len(self.tried))]
        data = self.entry.data
        return {
            "table": self.name,
            "row": self.entry.row,
            "data": data,
            "column": self.entry.column,
            "held_out": HELD_OUT[data],
            "tried": [
                {**one, "accuracies": got} for one, got in zip(self.tried, every, strict=True)
            ],
            "chosen": best(self.tried, every),
            "seconds": round(self._seconds, 1),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", choices=list(SEARCHED))
    parser.add_argument("--data", nargs="+", choices=list(HELD_OUT))
    parser.add_argument("--rows", nargs="+", help="By default all that are searched.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--workers", type=int, default=1, help="Processes that share the device.")
    parser.add_argument(
        "--together", type=int, default=0, help="Candidates trained at once; 0: all of an entry."
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    path = options.out / "preset-settings.json"
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.exists() else []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=spawn) as pool:
        jobs = {
            pool.submit(measured, entry, [one.tried[k] for k in part], options.device): (one, part)
            for name, entry in searched(options.tables)
            if not options.data or entry.data in options.data
            if not options.rows or entry.row in options.rows
            for one in [Search(name, entry)]
            for part in one.parts(options.together)
        }
        for job in as_completed(jobs):
            one, part = jobs[job]
            try:
                row = one.take(part, job.result())
            except (rt.ReticentError, RuntimeError) as error:  # the others go on
                print(f"failed: {error}", flush=True)
                continue
            if row is None:
                continue
            place = ("table", "row", "data", "column")
            rows = [old for old in rows if any(old[key] != row[key] for key in place)] + [row]
            rows.sort(key=lambda one: [str(one[key]) for key in place])
            print(*(row[key] for key in place), row["chosen"], f"{row['seconds']} s", flush=True)
            record = {
                "what": "preset-settings",
                "machine": describe_machine(),
                "seeds": SEEDS,
                "rows": rows,
            }
            path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
