"""DPSUR with and without the leaks of its public code, against DP-SGD, on the same features.

python benchmarks/dpsur.py --data fashion-mnist --epsilon 1 3 --seeds 0 1 2 --device cuda

A second call with other seeds adds to what the first has recorded.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import describe_machine
from reticent import data as datasets
from reticent.cli.building import build_training
from reticent.cli.settings import resolve
from reticent.reproduction.claims import planned
from reticent.reproduction.published import dpsur_entries, dpsur_settings

RESULTS = Path(__file__).parent / "results"
CASES = (
    *("published:1", "repaired:1", "repaired:0.5", "sound:1", "sound:0.5", "sound:0.25"),
    *("dpsgd:1", "dpsgd:0.5", "dpsgd:0.25"),
)
MICROBATCH = 4096  # a Poisson batch in one piece


def dpsgd(
    data: str, epsilon: float, lr: float, seed: int, device: str, folder: Path
) -> dict[str, Any]:
    """DP-SGD with the recipe for these features but for the learning rate, by PLD."""
    settings = resolve(
        None,
        {
            **{"data": data, "features": "scattering", "epsilon": epsilon, "lr": lr},
            **{"seed": seed, "device": device, "microbatch": MICROBATCH},
        },
    )
    result = build_training(
        settings, folder=folder, resume=False, coins=None, overwrite=True
    ).finish()
    return {
        "variant": "dpsgd",
        "lr": lr,
        "accuracy": result.accuracy,
        "steps": result.steps,
        **result.statement.to_json(),
    }


def one(
    data: str, epsilon: float, variant: str, lr: float, seed: int, device: str, folder: Path
) -> dict[str, Any]:
    entry = dpsur_entries(data)[epsilon]
    settings = replace(entry.settings, lr=lr, seed=seed, device=device, microbatch=MICROBATCH)
    plan = planned(settings, variant, datasets.lookup(data).n_train)
    claim = {**plan.claim, "published_accuracy": entry.published["accuracy"]}
    training = build_training(
        plan.settings,
        folder=folder,
        resume=False,
        coins=None,
        overwrite=True,
        method=plan.method,
        config={"claim": claim},
        private_diagnostics=True,  # the records are public
    )
    result, seen = training.finish(), training.run.diagnostics or []
    return {
        "trials_per_update": sum(line["trials"] for line in seen) / max(len(seen), 1),
        "variant": variant,
        "lr": lr,
        "accuracy": result.accuracy,
        "steps": result.steps,
        **result.statement.to_json(),
        "claim": claim,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--cases", nargs="+", default=CASES, help="variant:share of the published learning rate"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs/dpsur-benchmark"))
    options = parser.parse_args()
    path = options.out / f"dpsur-{options.data}.json"
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"] if path.exists() else []
    for epsilon in options.epsilon:
        published = dpsur_settings(options.data, epsilon, ["lr"])["lr"]
        cases = [
            (variant, published * float(share))
            for variant, share in (case.split(":") for case in options.cases)
        ]
        for seed in options.seeds:
            for variant, lr in cases:
                begun = time.monotonic()
                if variant == "dpsgd":
                    run = dpsgd(options.data, epsilon, lr, seed, options.device, options.work)
                else:
                    run = one(
                        *(options.data, epsilon, variant, lr, seed, options.device, options.work)
                    )
                run |= {
                    "claimed_epsilon": epsilon,
                    "seed": seed,
                    "seconds": round(time.monotonic() - begun, 1),
                }
                runs.append(run)
                print(
                    f"ε {epsilon:g} {variant} lr {run['lr']:g} seed {seed}: "
                    f"{100 * run['accuracy']:.2f} % in {run['seconds']} s",
                    flush=True,
                )
                record = {
                    "what": "dpsur",
                    "data": options.data,
                    "published": {
                        str(e): entry.published["accuracy"]
                        for e, entry in dpsur_entries(options.data).items()
                    },
                    "machine": describe_machine(),
                    "runs": runs,
                }
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
