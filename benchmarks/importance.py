"""DPIS against DP-SGD at equal budget: noise by epoch (Figure 1 of the paper) and accuracy.

python benchmarks/importance.py --data fashion-mnist --epsilon 0.5 1 4 --device cuda

`benchmarks/figures.py` draws what is recorded.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from machine import describe_machine
from reticent.cli.building import build_training
from reticent.cli.settings import resolve
from reticent.privacy import Budget, Ledger, SampledGaussian, noise_for

RESULTS = Path(__file__).parent / "results"
FILE = "importance-{data}-{device}.json"


def trained(options: argparse.Namespace, method: str, epsilon: float, seed: int) -> dict[str, Any]:
    """One training by either method, all else equal."""
    flags: dict[str, Any] = {
        **{"data": options.data, "method": method, "epsilon": epsilon, "seed": seed},
        **{"batch": options.batch, "clip": options.clip, "lr": options.lr, "momentum": 0.9},
        **{"epochs": options.epochs, "device": options.device, "average": None},
    }
    if method == "dpis":
        flags["method_options"] = {"k": 5.0, "divider": options.divider}
    with tempfile.TemporaryDirectory() as folder:
        training = build_training(
            resolve(None, flags), folder=Path(folder), resume=False, coins=None, overwrite=True
        )
        result = training.finish()
    found = {"accuracy": result.accuracy, "seconds": result.seconds, **result.statement.to_json()}
    n, length = training.run.n, max(round(training.run.n / options.batch), 1)
    if method == "dpis":
        size = result.released["size"]
        epochs = result.released["epochs"]
        found["planned"] = result.method["noise"]
        found["noise"] = [line["noise"] for line in epochs]
        found["share"] = [line["sum"] / (size * line["clip"]) for line in epochs]
        return {"steps": result.steps, "epoch": length, **found}
    budget = Budget(epsilon, result.statement.delta)
    by_rdp = noise_for(
        budget,
        lambda m: SampledGaussian(options.batch / n, m),
        result.steps,
        ledger=Ledger(budget),
        accountant="rdp",
    )
    return {"steps": result.steps, "noise": result.method["noise"], "by_rdp": by_rdp, **found}


def measure(options: argparse.Namespace) -> None:
    record: dict[str, Any] = {
        "what": "importance",
        **{name: getattr(options, name) for name in ("data", "batch", "clip", "lr", "epochs")},
        **{"divider": options.divider, "device": options.device, "machine": describe_machine()},
        "budgets": [],
    }
    path = options.out / FILE.format(data=options.data, device=options.device)
    for epsilon in options.epsilon:
        found: dict[str, Any] = {"epsilon": epsilon}
        for method in ("dpsgd", "dpis"):
            found[method] = [trained(options, method, epsilon, seed) for seed in options.seeds]
            for run in found[method]:
                print(epsilon, method, f"{100 * run['accuracy']:.2f} %", run["noise"], flush=True)
        record["budgets"].append(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.5, 1.0, 4.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--lr", type=float, default=0.4)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--divider", type=float, default=0.8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
