"""Where the time of a step goes: the operations with the most time of their own.

python benchmarks/profiles.py --device cpu --case mnist-cnn

On a CPU operations of PyTorch are listed, on a GPU kernels.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from cases import CASES
from machine import describe_machine
from rivals import Run
from steps import RESULTS, WARMUP, Bench, allow_tf32, contestants, save, short, tidy, wait

LONGEST = 60


def shortened(name: str) -> str:
    """A kernel's name without its return type, template arguments and parameters."""
    name = re.sub(r"^void\s+", "", name)
    while (bare := re.sub(r"<[^<>]*>", "", name)) != name:
        name = bare
    name = re.sub(r"\(anonymous namespace\)::", "", name)
    name = re.sub(r"\(.*\)$", "", name).strip()
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def profiled(run: Run, device: str, steps: int, top: int) -> dict[str, Any]:
    """Milliseconds of one step by operation, the largest first."""
    for _ in range(WARMUP):
        run()
    wait(device)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda")
    with profile(activities=activities) as seen:
        for _ in range(steps):
            run()
        wait(device)
    spent: dict[str, float] = {}
    calls: dict[str, int] = {}
    for event in seen.key_averages():
        if device == "cuda" and event.device_type.name != "CUDA":
            continue  # operations only launch the kernels
        self_time = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        name = shortened(event.key)
        spent[name] = spent.get(name, 0.0) + self_time / steps / 1e3
        calls[name] = calls.get(name, 0) + event.count // steps
    whole = sum(spent.values())
    largest = sorted(spent, key=lambda name: -spent[name])[:top]
    return {
        "ms": short(whole),
        "calls": sum(calls.values()),
        "top": [
            {
                "name": name,
                "ms": short(spent[name]),
                "share": round(spent[name] / whole, 3),
                "calls": calls[name],
            }
            for name in largest
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--case", choices=CASES, default="mnist-cnn")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--top", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cuda":
        allow_tf32()
    bench = Bench(options.case, options.device, options.batch)
    known = contestants(options.device, compiled=False, others=False)
    found = {}
    for title in ("plain", "reticent"):
        run = bench.make(known[title])
        found[title] = profiled(run, options.device, options.steps, options.top)
        del run
        tidy()
        print(f"{title}: {found[title]['ms']:.2f} ms", flush=True)
        for one in found[title]["top"]:
            print(f"  {one['ms']:9.3f} ms {100 * one['share']:5.1f} % {one['name']}", flush=True)
    record = {
        "what": "profile",
        "device": options.device,
        "case": options.case,
        "label": bench.case.label,
        "batch": bench.batch,
        "machine": describe_machine(),
        "contestants": found,
    }
    save(record, options.out / f"profile-{options.case}-{options.device}.json")


if __name__ == "__main__":
    main()
