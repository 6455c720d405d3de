"""Search for the recipes of `digits` and `fashion-mnist` at ε = 3.

Candidates are compared on the last part of the training split, which is held out for that and not
trained on; the test split is never looked at. Writes all candidates, not only the best.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import time
from pathlib import Path
from typing import Any

import torch

import reticent as rt
from machine import describe_machine

RESULTS = Path(__file__).parent / "results"
HELD_OUT = {"digits": 287, "fashion-mnist": 10_000}
BUDGET = rt.Budget(3, 1e-5)


def candidates() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for batch, epochs, lr, average in itertools.product(
        (1024, 2048), (30, 60), (1.0, 2.0, 3.0, 4.0, 6.0), (0.99, 0.997)
    ):
        found.append(
            {
                "data": "fashion-mnist",
                "model": "mnist-cnn",
                "activation": "tanh",
                "batch": batch,
                "clip": 0.1,
                "steps": round(epochs * 50_000 / batch),
                "lr": lr,
                "momentum": 0.9,
                "average": average,
                "repeats": 1,
            }
        )
    for model, batch, steps, lr, average in itertools.product(
        ("linear", "digits-cnn"), (300, 500), (80, 100, 150), (1.5, 2.0, 3.0), (0.9, 0.95)
    ):
        found.append(
            {
                "data": "digits",
                "model": model,
                "activation": None,
                "batch": batch,
                "clip": 1.0,
                "steps": steps,
                "lr": lr,
                "momentum": 0.0,
                "average": average,
                "repeats": 8,
            }
        )
    return found


def try_one(candidate: dict[str, Any]) -> dict[str, Any]:
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() and candidate["data"] != "digits" else "cpu"
    inputs, targets = rt.data.load(candidate["data"]).train
    cut = len(inputs) - HELD_OUT[candidate["data"]]
    accuracies = []
    started = time.monotonic()
    for seed in range(candidate["repeats"]):
        model = rt.models.build(
            candidate["model"],
            classes=10,
            input_shape=tuple(inputs.shape[1:]),
            activation=candidate["activation"],
            seed=seed,
        )
        result = rt.train(
            model,
            (inputs[:cut], targets[:cut]),
            method=rt.DPSGD(batch=candidate["batch"], clip=candidate["clip"]),
            budget=BUDGET,
            steps=candidate["steps"],
            optimizer=lambda params: torch.optim.SGD(
                params, lr=candidate["lr"], momentum=candidate["momentum"]
            ),
            average=candidate["average"],
            device=device,
        )
        held_out = (inputs[cut:], targets[cut:])
        accuracies.append(rt.evaluate(result.model, held_out, device=device)["accuracy"])
    mean = sum(accuracies) / len(accuracies)
    return {
        **candidate,
        "held_out_accuracy": mean,
        "each": accuracies,
        "seconds": round(time.monotonic() - started, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        tried = list(pool.imap_unordered(try_one, candidates()))
    tried.sort(key=lambda one: (one["data"], -one["held_out_accuracy"]))
    record = {"what": "recipes", "tried": tried, "machine": describe_machine()}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "recipes.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
