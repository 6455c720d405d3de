"""Lower bounds on ε by one training with canaries, beside the ledger's upper bound.

python benchmarks/canaries.py --device cpu
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch

import reticent as rt
from machine import describe_machine
from reticent import data as datasets
from reticent.audit import audit_canaries

RESULTS = Path(__file__).parent / "results"
DELTA = 1e-5
# (releases, rate, canaries, guesses): fixed before the seeds below were run
SETTINGS = ((2, 1.0, 10_000, 624), (3, 0.5, 30_000, 468))


def audited(epsilon: float, setting: tuple[int, float, int, int], options: Any, seed: int) -> Any:
    """One audit of DP-SGD on the embedded digits."""
    steps, rate, canaries, guesses = setting
    train = datasets.load("digits").train
    n = len(train[0]) + canaries
    started = time.perf_counter()
    report = audit_canaries(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        train,
        method=rt.DPSGD(batch=round(rate * n), clip=1.0),
        budget=rt.Budget(epsilon, DELTA),
        steps=steps,
        canaries=canaries,
        guesses=guesses,
        n=n,
        confidence=options.confidence,
        seed=seed,
        device=options.device,
    )
    return {
        **{"seed": seed, "upper": report.upper.epsilon, "refuted": report.refuted},
        "bounds": {bound.family: bound.epsilon for bound in report.bounds},
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[1.0, 4.0, 8.0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[1, 2, 3])
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    record: dict[str, Any] = {
        **{"what": "canaries", "data": "digits", "delta": DELTA, "device": options.device},
        **{"confidence": options.confidence, "machine": describe_machine(), "audits": []},
    }
    for setting in SETTINGS:
        steps, rate, canaries, guesses = setting
        for epsilon in options.epsilon:
            runs = [audited(epsilon, setting, options, seed) for seed in options.seeds]
            record["audits"].append(
                {
                    **{"epsilon": epsilon, "steps": steps, "rate": rate},
                    **{"canaries": canaries, "guesses": guesses, "runs": runs},
                }
            )
            print(epsilon, setting, [run["bounds"] for run in runs], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"canaries-{options.device}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
