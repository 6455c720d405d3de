"""Plain SGD, PD-SGD, AdvReg, SELENA and DP-SGD on one data set: accuracy, rejections, time.

python benchmarks/defences.py --data digits fashion-mnist --device cuda
python benchmarks/defences.py --steps mnist-cnn wrn-16-4 --device cuda

Trainings are what `reticent train --method NAME` runs with its defaults. Steps are timed on random
records, all methods in turn in every round, through the whole training loop.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import reticent as rt
from cases import CASES
from machine import describe_machine
from reticent.cli.building import build_training
from reticent.cli.settings import resolve

RESULTS = Path(__file__).parent / "results"
METHODS = ("sgd", "pd-sgd", "advreg", "selena", "dpsgd")
# of PD-SGD's timed steps: T of the paper; a noise at which all batches are plausible, and none is
THRESHOLD, BATCHES = 3, 8


def trained(data: str, method: str, device: str, seed: int) -> dict[str, Any]:
    """One training."""
    settings = resolve(None, {"data": data, "method": method, "device": device, "seed": seed})
    with tempfile.TemporaryDirectory() as folder:
        started = time.perf_counter()
        training = build_training(
            settings,
            folder=Path(folder),
            resume=False,
            coins=rt.Coins.from_seed(seed),
            private_diagnostics=True,
        )
        result = training.finish()
        seconds = time.perf_counter() - started
    lines = [line for line in training.run.diagnostics or [] if "accepted" in line]
    rejected = None
    if lines:
        rejected = sum(1 - line["accepted"] for line in lines) / len(lines)
    return {
        **{"seed": seed, "accuracy": result.accuracy, "seconds": seconds, "rejected": rejected},
        **{"guarantee": result.to_json()["guarantee"], "steps": result.steps},
        "epsilon": result.to_json()["statement"]["epsilon"],
    }


def trainings(options: argparse.Namespace) -> None:
    for data in options.data:
        record: dict[str, Any] = {
            **{"what": "defences", "data": data, "device": options.device},
            **{"machine": describe_machine(), "methods": {}},
        }
        path = options.out / f"defences-{data}-{options.device}.json"
        if path.exists():  # methods can be added one by one, on the same machine
            before = json.loads(path.read_text())
            same = before["machine"] == record["machine"]
            record["methods"] = before["methods"] if same else {}
        for method in options.methods:
            runs = [trained(data, method, options.device, seed) for seed in options.seeds]
            settings = resolve(None, {"data": data, "method": method}).to_json()
            record["methods"][method] = {"runs": runs, "settings": settings}
            for run in runs:
                print(data, method, run, flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=1) + "\n")


def _running(model: Any, records: Any, method: Any, budget: Any, device: str) -> Iterator[Any]:
    training = rt.run(
        model,
        records,
        method=method,
        budget=budget,
        steps=10_000,
        device=device,
        optimizer=lambda params: torch.optim.SGD(params, lr=1e-6),
    )
    return iter(training)


def timed(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of one release of each method, on the same batch size."""
    case = CASES[name]
    shape, batch = case.cuda if options.device == "cuda" else case.cpu
    records = case.examples(shape, batch * BATCHES, "cpu")
    kinds: dict[str, tuple[Any, Any]] = {
        "sgd": (rt.SGD(batch=batch), None),
        "pd-sgd, passing": (rt.PDSGD(BATCHES, 1e-3, 1e12, THRESHOLD), None),
        "pd-sgd, rejecting": (rt.PDSGD(BATCHES, 1e-3, 1e-12, THRESHOLD), None),
        "dpsgd": (rt.DPSGD(batch=batch, noise=1.0), rt.Budget(1e6, 1e-5)),
    }
    running = {
        kind: _running(case.build(name, shape), records, method, budget, options.device)
        for kind, (method, budget) in kinds.items()
    }
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(options.warmup + options.repeats):
        for kind, releases in running.items():
            _wait(options.device)
            started = time.perf_counter()
            next(releases)
            _wait(options.device)
            if number >= options.warmup:
                found[kind].append(1e3 * (time.perf_counter() - started))
    medians = {kind: statistics.median(times) for kind, times in found.items()}
    print(name, batch, {kind: round(ms, 2) for kind, ms in medians.items()}, flush=True)
    return {"label": case.label, "batch": batch, "milliseconds": medians}


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="*", default=[])
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--steps", nargs="*", default=[])
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    trainings(options)
    if options.steps:
        record = {
            **{"what": "deniable-steps", "device": options.device, "machine": describe_machine()},
            **{"batches": BATCHES, "threshold": THRESHOLD},
            "cases": {name: timed(name, options) for name in options.steps},
        }
        path = options.out / f"deniable-steps-{options.device}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
