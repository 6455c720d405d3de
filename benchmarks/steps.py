"""What a private step costs beside an ordinary one: same model, same batch, same process, in turns.

The update is checked against one example at a time before it is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from machine import describe_machine
from reticent import models
from reticent.gradients import check, clipped_sum

RESULTS = Path(__file__).parent / "results"
CASES: dict[str, tuple[str, tuple[int, ...], int]] = {
    "small CNN": ("mnist-cnn", (1, 28, 28), 512),
    "CIFAR CNN": ("cifar-cnn", (3, 32, 32), 128),
    "WRN-16-4, GroupNorm": ("wrn-16-4", (3, 32, 32), 16),
    "IMDb BiLSTM": ("imdb-bilstm", (80,), 64),
}


def examples(shape: tuple[int, ...], batch: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    if len(shape) == 1:
        inputs = torch.randint(0, 20_000, (batch, *shape), device=device)
    else:
        inputs = torch.randn(batch, *shape, device=device)
    return inputs, torch.randint(0, 2, (batch,), device=device)


def measure(name: str, shape: tuple[int, ...], batch: int, device: str, repeats: int) -> Any:
    model = models.build(name, classes=10, input_shape=shape).to(device)
    loss_fn = nn.CrossEntropyLoss()
    inputs, targets = examples(shape, batch, device)
    check(model, loss_fn, inputs[:3], targets[:3]).raise_if_wrong()

    def plain() -> None:
        model.zero_grad(set_to_none=True)
        loss_fn(model(inputs), targets).backward()

    def private() -> None:
        clipped_sum(model, loss_fn, inputs, targets, 1.0)

    times: dict[str, list[float]] = {"plain": [], "private": []}
    for repeat in range(repeats + 2):
        for label, step in (("plain", plain), ("private", private)):
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
            step()
            if device == "cuda":
                torch.cuda.synchronize()
            if repeat >= 2:
                times[label].append(1e3 * (time.perf_counter() - started))
    middle = {label: statistics.median(values) for label, values in times.items()}
    return {
        "batch": batch,
        "plain_ms": middle["plain"],
        "private_ms": middle["private"],
        "ratio": middle["private"] / middle["plain"],
        "ratio_spread": [
            min(p / q for p, q in zip(times["private"], times["plain"], strict=True)),
            max(p / q for p, q in zip(times["private"], times["plain"], strict=True)),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--scale", type=int, default=1, help="Multiply every batch by this.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.manual_seed(0)
    cases = {}
    for label, (name, shape, batch) in CASES.items():
        cases[label] = measure(name, shape, batch * options.scale, options.device, options.repeats)
        print(f"{label:24} {cases[label]['ratio']:.2f} x plain", flush=True)
    record = {
        "what": "steps",
        "device": options.device,
        "repeats": options.repeats,
        "cases": cases,
        "machine": describe_machine(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"steps-{options.device}.json"
    path.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
