"""PD-SGD against a batch with flipped labels: how often its updates are rejected, and all others'.

Figure 3 of the paper. The labels of a share of the examples of one batch are flipped, and that
batch stays together throughout the training; all other records are split at random in every step.

python benchmarks/poisoning.py --data digits --device cpu
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import reticent
from machine import describe_machine
from reticent import data as datasets
from reticent.cli.building import build_model, run_options
from reticent.cli.settings import Settings, resolve
from reticent.coins import Coins
from reticent.methods import PDSGD
from reticent.methods.catalog import build

RESULTS = Path(__file__).parent / "results"
FILE = "poisoning-{data}-{device}.json"
SHARES = (0.0, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class OneBatchStays(PDSGD):
    """PD-SGD whose batch number 0 always holds the same records."""

    kept: tuple[int, ...] = field(default=(), kw_only=True)

    def split(self, run: Any) -> list[torch.Tensor]:
        """The kept batch, and all other records at random."""
        order = run.permutation("partition")
        kept = torch.tensor(self.kept, device=order.device)
        others = order[~torch.isin(order, kept)]
        return [kept, *others.tensor_split(self.batches - 1)]


def poisoned(
    labels: torch.Tensor, batches: int, share: float, classes: int, seed: int
) -> tuple[torch.Tensor, list[int]]:
    """Labels with a share of one batch's flipped, and that batch; the same one for all shares."""
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randperm(len(labels), generator=generator)[: len(labels) // batches]
    moved = torch.randint(1, classes, batch.shape, generator=generator)
    some, labels = batch[: round(share * len(batch))], labels.clone()
    labels[some] = (labels[some] + moved[: len(some)]) % classes
    return labels, batch.tolist()


def rejections(
    settings: Settings, splits: datasets.Splits, share: float, seed: int
) -> dict[str, Any]:
    """Train once; how often updates of the poisoned batch and of all others were rejected."""
    plain = build("pd-sgd", **settings.method_options)
    assert isinstance(plain, PDSGD)
    inputs, labels = splits.train
    labels, kept = poisoned(labels, plain.batches, share, splits.info.n_classes, seed)
    training = reticent.run(
        build_model(settings, splits),
        (inputs, labels),
        method=OneBatchStays(**plain.options(), kept=tuple(kept)),
        device=settings.device,
        coins=Coins.from_seed(seed),
        private_diagnostics=True,
        **run_options(settings, len(inputs)),
    )
    result = training.finish()
    lines = training.run.diagnostics or []
    found: dict[str, Any] = {"share": share, "seed": seed}
    for name, chosen in (
        ("poisoned", [line for line in lines if line["seed"] == 0]),
        ("normal", [line for line in lines if line["seed"] != 0]),
    ):
        rejected = sum(1 - line["accepted"] for line in chosen)
        rate = rejected / len(chosen) if chosen else None
        found[name] = {"updates": len(chosen), "rejected": rejected, "rate": rate}
    measured = reticent.evaluate(result.model, splits.test, device=settings.device)
    return {**found, "accuracy": measured["accuracy"]}


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
