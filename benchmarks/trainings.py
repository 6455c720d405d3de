"""Train by command line, as a user would, and record what came out.

python benchmarks/trainings.py --data fashion-mnist --epsilon 3 --runs 3 --device cpu
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from machine import describe_machine

RESULTS = Path(__file__).parent / "results"
SEARCHED = dict.fromkeys(("digits", "fashion-mnist"), "a search on held-out training records")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-note", help="What a reader must know about this copy of the data.")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    runs = []
    for seed in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            words = [
                *("train", "--data", options.data, "--epsilon", str(options.epsilon)),
                *("--seed", str(seed), "--device", options.device),
                *("--out", f"{folder}/run", "--json"),
            ]
            done = subprocess.run(
                [sys.executable, "-m", "reticent", *words],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            shown = json.loads(done.stdout)
            run = json.loads((Path(folder) / "run" / "run.json").read_text())
        kept = ("accuracy", "loss", "epsilon", "delta", "accountant", "steps", "seconds")
        runs.append({"seed": seed, **{key: shown[key] for key in kept}})
        print(runs[-1], flush=True)
    record = {
        "what": "trainings",
        "data": options.data,
        "epsilon": options.epsilon,
        "device": options.device,
        "settings": run["config"]["settings"],
        "method": run["method"],
        "settings_from": SEARCHED.get(options.data, "a first guess, not searched"),
        "runs": runs,
        **({"data_note": options.data_note} if options.data_note else {}),
        "machine": describe_machine(),
    }
    name = f"training-{options.data}-eps{options.epsilon:g}-{options.device}.json"
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / name).write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
