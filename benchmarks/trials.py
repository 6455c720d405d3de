"""What a trial of DPSUR costs, against its parts and against candidates computed together.

python benchmarks/trials.py --device cuda
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import reticent as rt
from machine import describe_machine
from reticent import models
from reticent.gradients import Flat

RESULTS = Path(__file__).parent / "results"
N, BATCH, VALID, SHAPE = 60_000, 2048, 256, (81, 7, 7)


def started(method: rt.Method, device: torch.device, steps: int, data: Any) -> rt.Training:
    return rt.run(
        models.build("scatter-cnn", classes=10, input_shape=SHAPE, seed=0),
        data,
        method=method,
        budget=rt.Budget(50, 1e-5),
        steps=steps,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
        device=device,
        microbatch=2 * BATCH,
        coins=rt.Coins.from_seed(1),
        private_diagnostics=True,  # the records are noise
    )


def timed(work: Callable[[], Any], device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    begun = time.perf_counter()
    work()
    wait()
    return 1000 * (time.perf_counter() - begun)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = torch.device(options.device)
    coins = torch.Generator().manual_seed(0)
    data = (
        torch.rand(N, *SHAPE, generator=coins),
        torch.randint(0, 10, (N,), generator=coins),
    )
    warm, rounds = 3, options.repeats
    running = {
        count: started(
            rt.DPSUR(batch=BATCH, clip=0.1, noise=4.0, valid_batch=VALID, together=count),
            device,
            warm + rounds * options.updates,
            data,
        )
        for count in options.together
    }
    releases = {count: iter(training) for count, training in running.items()}
    for each in releases.values():
        for _ in range(warm):
            next(each)
    run = started(rt.DPSGD(batch=BATCH, clip=0.1, noise=4.0), device, 1, data).run
    drawn = torch.randperm(N, generator=coins).to(device)

    def clipped_sum() -> None:
        run.begin_release()
        run.clipped_sum(drawn[:BATCH], Flat(0.1))

    def forward() -> None:
        run.begin_release()
        run.mean_losses([drawn[:VALID]], "model before")

    parts: dict[str, Callable[[], Any]] = {"clipped sum": clipped_sum, "forward": forward}
    for part in parts.values():
        part()
    part_ms: dict[str, list[float]] = {name: [] for name in parts}
    update_ms: dict[int, list[float]] = {count: [] for count in running}
    trial_ms: dict[int, list[float]] = {count: [] for count in running}
    for _ in range(rounds):  # in turns, so that a slow moment hits all alike
        for name, part in parts.items():
            part_ms[name] += [timed(part, device) for _ in range(20)]
        for count, training in running.items():
            assert training.run.diagnostics is not None
            training.run.diagnostics.clear()
            each = releases[count]
            spent = timed(lambda each=each: [next(each) for _ in range(options.updates)], device)
            trials = sum(line["trials"] for line in training.run.diagnostics)
            update_ms[count].append(spent / options.updates)
            trial_ms[count].append(spent / trials)
    middle = {name: statistics.median(values) for name, values in part_ms.items()}
    whole = middle["clipped sum"] + 2 * middle["forward"]
    record = {
        "what": "trials",
        "device": options.device,
        "model": "scatter-cnn",
        "batch": BATCH,
        "valid_batch": VALID,
        "machine": describe_machine(),
        "parts_ms": middle,
        "together": {
            str(count): {
                "ms_per_update": statistics.median(update_ms[count]),
                "ms_per_trial": statistics.median(trial_ms[count]),
                "trial_over_parts": statistics.median(trial_ms[count]) / whole,
            }
            for count in running
        },
    }
    print(json.dumps(record, indent=1))
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"trials-{options.device}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
