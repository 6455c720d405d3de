"""PD-SGD against a batch with flipped labels: how often its updates are rejected, and all others'.

Figure 3 of the paper. The labels of a share of the examples of one batch are flipped, and that
batch stays together throughout the training; all other records are split at random in every step.

python benchmarks/poisoning.py --data digits --device cpu
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from machine import describe_machine
from reticent import data as datasets
from reticent.cli.settings import resolve
from reticent.reproduction.deniability import rejections

RESULTS = Path(__file__).parent / "results"
FILE = "poisoning-{data}-{device}.json"
SHARES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    flags = {name: getattr(options, name) for name in ("data", "device", "steps", "lr")}
    settings = resolve(None, {**flags, "method": "pd-sgd"})
    splits = datasets.load(options.data)
    record: dict[str, Any] = {
        "what": "poisoning",
        **{"data": options.data, "model": settings.model, "steps": settings.steps},
        **{"lr": settings.lr, "momentum": settings.momentum, "method": settings.method_options},
        **{"device": options.device, "machine": describe_machine(), "runs": []},
    }
    path = options.out / FILE.format(data=options.data, device=options.device)
    path.parent.mkdir(parents=True, exist_ok=True)
    for share in options.shares:
        for seed in options.seeds:
            found = rejections(settings, splits, share, seed)
            record["runs"].append(found)
            rates = [found[name]["rate"] for name in ("poisoned", "normal")]
            print(f"{share:4.0%} flipped, seed {seed}: rejected {rates}", flush=True)
            path.write_text(json.dumps(record, indent=1) + "\n")
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--shares", type=float, nargs="+", default=list(SHARES))
    parser.add_argument("--steps", type=int, help="instead of the recipe's")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--out", type=Path, default=RESULTS)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
