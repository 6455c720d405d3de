"""Membership attacks on over-fitted and on private models of a real data set.

python benchmarks/attacks.py --data fashion-mnist --device cuda

Every procedure trains on random halves of the same records: a few targets, and shadow models.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import reticent as rt
from machine import describe_machine
from reticent import data as datasets
from reticent import models
from reticent.audit import Attacking, OneByOne, ShadowPlan, attack_procedure
from reticent.audit.membership import MembershipReport
from reticent.privacy import Ledger
from reticent.training.planning import plan

RESULTS = Path(__file__).parent / "results"
FILE = "attacks-{data}-{records}-{device}.json"
DELTA, BATCH, EPOCHS = 1e-5, 1024, 20  # of the private models
# (name, method, ε): what is trained; None is no promise
PROCEDURES: tuple[tuple[str, str, float | None], ...] = (
    ("over-fitted", "sgd", None),
    ("dpsgd", "dpsgd", 4.0),
    ("dpsgd", "dpsgd", 1.0),
    ("dpis", "dpis", 4.0),
    ("sign-sgd", "sign-sgd", 4.0),
)
METHODS: dict[str, Any] = {
    "dpsgd": rt.DPSGD(batch=BATCH, clip=1.0),
    "dpis": rt.DPIS(batch=BATCH, clip=1.0, k=2.0),
    "sign-sgd": rt.SignSGD(batch=BATCH, clip=1.0),
}
RATES = {"dpsgd": 0.5, "dpis": 0.5, "sign-sgd": 0.002}
# each interval; all of a table hold together with probability 0.95 and more
CONFIDENCE = 0.999


def planned(
    method: str, epsilon: float | None, n: int, epochs: int, device: str, seed: int
) -> ShadowPlan | OneByOne:
    """How models are trained on n records."""
    if epsilon is None:
        return ShadowPlan(batch=128, epochs=epochs, lr=0.05, momentum=0.9, n=n, seed=seed)
    budget, steps = rt.Budget(epsilon, DELTA), max(round(EPOCHS * n / BATCH), 1)
    if method == "dpsgd":
        found, _ = plan(METHODS[method], budget, n, steps, None, Ledger(budget))
        return ShadowPlan(
            **{"batch": BATCH, "steps": steps, "lr": RATES[method], "momentum": 0.9, "clip": 1.0},
            **{"noise": found.noise, "n": n, "seed": seed},  # type: ignore[attr-defined]
        )

    def train(model: nn.Module, data: Any, number: int) -> nn.Module:
        return rt.train(
            model,
            data,
            method=METHODS[method],
            budget=budget,
            steps=steps,
            n=n,
            device=device,
            coins=rt.Coins.from_seed(1000 * seed + number),
            optimizer=lambda p: torch.optim.SGD(
                p, lr=RATES[method], momentum=0.0 if method == "sign-sgd" else 0.9
            ),
        ).model

    return OneByOne(train, {"method": method, "epsilon": epsilon, "steps": steps, "seed": seed})


def accuracy(report: MembershipReport) -> dict[str, Any]:
    """Every attack's numbers, and its curve for the first target."""
    found = {}
    for name, leaks in report.results.items():
        found[name] = {
            "targets": [
                {key: value for key, value in leak.to_json().items() if key != "roc"}
                for leak in leaks
            ],
            "roc": [list(point) for point in leaks[0].roc],
        }
    return found


def measure(options: argparse.Namespace) -> None:
    splits = datasets.load(options.data)
    inputs, labels = splits.train
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    order = order[: options.records]
    pool = inputs[order], labels[order]
    path = options.out / FILE.format(
        data=options.data, records=options.records, device=options.device
    )
    record: dict[str, Any] = {
        "what": "attacks",
        **{"data": options.data, "model": options.model, "records": options.records},
        **{"shadows": options.shadows, "targets": options.targets, "delta": DELTA},
        **{"confidence": CONFIDENCE, "epochs": options.epochs, "private_epochs": EPOCHS},
        **{"device": options.device, "machine": describe_machine(), "procedures": []},
    }

    def build(number: int) -> nn.Module:
        shape = tuple(inputs.shape[1:])
        classes = splits.info.n_classes
        return models.build(options.model, classes=classes, input_shape=shape, seed=0)

    for name, method, epsilon in PROCEDURES:
        if options.only and name not in options.only:
            continue
        attacking = Attacking(shadows=options.shadows, confidence=CONFIDENCE)
        n = (options.records - min(attacking.population, options.records // 6)) // 2
        started = time.perf_counter()
        trained: list[nn.Module] = []

        def remembered(number: int, kept: list[nn.Module] = trained) -> nn.Module:
            kept.append(build(number))
            return kept[-1]

        report = attack_procedure(
            pool,
            build=remembered,
            plan=planned(method, epsilon, n, options.epochs, options.device, 0),
            attacking=attacking,
            targets=options.targets,
            device=options.device,
        )
        held_out = rt.evaluate(trained[0], splits.test, device=options.device)["accuracy"]
        seconds = time.perf_counter() - started
        record["procedures"].append(
            {
                **{"name": name, "method": method, "epsilon": epsilon, "trained_on": n},
                **{"accuracy": held_out, "seconds": seconds, "notes": list(report.notes)},
                **{"duplicates": report.duplicates, "attacks": accuracy(report)},
            }
        )
        for attack, leaks in report.results.items():
            shown = ", ".join(f"{leak.auc.value:.3f}" for leak in leaks)
            low = ", ".join(f"{leak.tpr_at(0.001).tpr.value:.4f}" for leak in leaks)
            print(f"{name} {epsilon} {attack}: AUC {shown}; TPR at 0.1 % {low}", flush=True)
        print(f"accuracy {held_out:.4f}, {seconds:.1f} s", report.notes, flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--model", default="mnist-cnn")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--records", type=int, default=60_000)
    parser.add_argument("--shadows", type=int, default=10)
    parser.add_argument("--targets", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=40, help="of the over-fitted models")
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--out", type=Path, default=RESULTS)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
