"""Whole trainings on a device: seconds after warm-up, and memory that fits large batches.

python benchmarks/runs.py --device cuda

Two trainings on Fashion-MNIST's scattering features with the published batch sizes: DP-SGD, and
DPSUR with as many accepted updates as the paper's accounting allows at ε = 3. Then one release of a
batch far larger than memory, in pieces that were measured to fit: WRN-16-4 on a CUDA device, the
CIFAR CNN on the CPU.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch

import reticent as rt
from machine import describe_machine
from reticent import data as datasets
from reticent import features, models
from reticent.reproduction.published import dpsur_settings

RESULTS = Path(__file__).parent / "results"
WARM_UP = 60
BUDGET = rt.Budget(100, 1e-5)  # speed is measured, not privacy


def settled(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def training(method: rt.Method, steps: int, device: str, splits: Any, lr: float) -> dict[str, Any]:
    inputs, targets = splits.train
    begun = time.perf_counter()
    prepared = rt.run(
        models.build("scatter-cnn", classes=10, input_shape=tuple(inputs.shape[1:]), seed=0),
        splits.train,
        method=method,
        budget=BUDGET,
        steps=WARM_UP + steps,
        optimizer=lambda p: torch.optim.SGD(p, lr=lr, momentum=0.9),
        device=device,
        coins=rt.Coins.from_seed(1),
        private_diagnostics=True,  # the records are public
    )
    releases = iter(prepared)
    for _ in range(WARM_UP):
        next(releases)
    started = settled(prepared.run.device)
    warm_up = started - begun
    assert prepared.run.diagnostics is not None
    prepared.run.diagnostics.clear()
    for _ in range(steps):
        next(releases)
    seconds = settled(prepared.run.device) - started
    trials = sum(line.get("trials", 1) for line in prepared.run.diagnostics) or steps
    model = prepared.run.model.eval()
    x, y = (t.to(prepared.run.device) for t in splits.test)
    with torch.no_grad():
        right = sum(
            int((model(a).argmax(1) == b).sum())
            for a, b in zip(x.split(2000), y.split(2000), strict=True)
        )
    return {
        "records": len(targets),
        "batch": method.options()["batch"],
        "steps": steps,
        "warm_up_steps": WARM_UP,
        "warm_up_seconds": warm_up,
        "seconds": seconds,
        "ms_per_update": 1000 * seconds / steps,
        "trials_per_update": trials / steps,
        "ms_per_trial": 1000 * seconds / trials,
        "accuracy": right / len(y),
    }


def large_batch(name: str, batch: int, device: str) -> dict[str, Any]:
    """One release of `batch` made-up images, in pieces chosen by measurement."""
    generator = torch.Generator().manual_seed(0)
    n = 2 * batch
    records = (
        torch.randn(n, 3, 32, 32, generator=generator),
        torch.randint(0, 10, (n,), generator=generator),
    )
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    prepared = rt.run(
        models.build(name, classes=10, input_shape=(3, 32, 32), seed=0),
        records,
        method=rt.DPSGD(batch=batch, clip=1.0, noise=1.0),
        budget=BUDGET,
        steps=1,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        device=device,
        coins=rt.Coins.from_seed(1),
    )
    started = settled(prepared.run.device)
    for _ in prepared:
        pass
    seconds = settled(prepared.run.device) - started
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resource_peak()
    return {
        "model": name,
        "batch": batch,
        "records": n,
        "microbatch": prepared.run.microbatch,
        "seconds": seconds,
        "peak_mib": peak / 2**20,
    }


def resource_peak() -> int:
    """The most memory this process ever had, the records included."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--only", choices=["trainings", "memory"])
    parser.add_argument("--share", type=float, default=1.0, help="Part of the steps to make.")
    options = parser.parse_args()
    record: dict[str, Any] = {"what": "runs", "device": options.device}
    if options.only != "memory":
        splits = features.apply(
            datasets.load("fashion-mnist"), "scattering", device=options.device, keep=False
        )
        names = ("batch", "clip", "noise", "valid_batch", "valid_noise")
        dpsur = rt.DPSUR(**dpsur_settings("fashion-mnist", 3.0, names))
        dpsgd = rt.DPSGD(batch=2048, clip=0.1, noise=2.15)
        record["trainings"] = {
            "dpsgd": training(dpsgd, round(1770 * options.share), options.device, splits, 2.0),
            "dpsur": training(dpsur, round(1081 * options.share), options.device, splits, 4.0),
        }
    if options.only != "trainings":
        case = ("wrn-16-4", 65_536) if options.device == "cuda" else ("cifar-cnn", 8192)
        record["memory"] = large_batch(*case, options.device)
    record["machine"] = describe_machine()
    print(json.dumps(record, indent=1))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"runs-{options.device}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
