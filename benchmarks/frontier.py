"""Test accuracy of the best recipes, several seeds each, at a sound ε.

Settings are those that `benchmarks/search.py` chose on held-out training records; here they train
on the whole training split, and the test split is looked at for the first time.

python benchmarks/frontier.py --data cifar10 --seeds 3 --device cuda
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import best
import reticent as rt
from machine import describe_machine
from reticent import data as datasets
from reticent import features
from reticent.best import WITH
from reticent.cli.building import budget_of, build_method, build_model, run_options
from reticent.cli.settings import Settings
from reticent.training import evaluate

RESULTS = Path(__file__).parent / "results"
SAMPLE = 1000  # records whose encoding is timed where all of them are in the folder already


def one(settings: Settings, splits: Any, device: str) -> dict[str, Any]:
    """One training; what `reticent train --recipe best` does, with the features at hand."""
    begun = time.perf_counter()
    held_out = datasets.as_records(splits.test, device)
    result = rt.train(
        build_model(settings, splits),
        splits.train,
        method=build_method(settings),
        budget=budget_of(settings),
        evaluation=functools.partial(evaluate, data=held_out, device=device),
        every=settings.steps,
        device=device,
        **run_options(settings, len(splits.train[0])),
    )
    statement = result.statement.to_json()
    return {
        "seed": settings.seed,
        "accuracy": round(100 * (result.accuracy or 0), 3),
        "epsilon": statement["epsilon"],
        "accountant": statement["accountant"],
        "seconds": round(time.perf_counter() - begun, 2),
    }


def encoding_seconds(
    search: dict[str, Any], splits: Any, brought: dict[str, Any], device: str
) -> float:
    """How long an encoder takes for `SAMPLE` records."""
    few = replace(
        splits,
        train=tuple(part[:SAMPLE] for part in splits.train),
        test=tuple(part[:0] for part in splits.test),
    )
    begun = time.perf_counter()
    features.apply(few, best.common(search)["features"], brought, device=device, keep=False)
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--root")
    parser.add_argument("--data-note", help="What a reader must know about this copy of the data.")
    parser.add_argument("--encoder", help="What the encoder is called, for the record.")
    parser.add_argument("--encoder-note", help="What it was trained on, for the record.")
    parser.add_argument("--kept", action="store_true", help="Use features that are in the folder.")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--searches", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    for name in options.data:
        search = json.loads((options.searches / f"search-{name}.json").read_text())
        data, brought = name.split(WITH)[0], search.get("brought", {})
        splits = datasets.load(data, root=options.root)
        begun = time.perf_counter()
        made = features.apply(
            splits,
            best.common(search)["features"],
            {**search["options"], **brought},
            root=options.root,
            device=options.device,
            keep=options.kept,
        )
        seconds = time.perf_counter() - begun
        if options.kept:
            seconds = encoding_seconds(search, splits, brought, options.device)
        made = replace(
            made,
            train=tuple(part.to(options.device) for part in made.train),
            test=tuple(part.to(options.device) for part in made.test),
        )
        entries = []
        for row in search["chosen"]:
            chosen = {**best.common(search), "batch": len(made.train[0]), **best.chosen(row)}
            runs = [
                one(
                    Settings(data=data, epsilon=row["epsilon"], seed=seed, **chosen),
                    made,
                    options.device,
                )
                for seed in range(options.seeds)
            ]
            entries.append({"epsilon": row["epsilon"], "settings": chosen, "runs": runs})
            print(name, row["epsilon"], [run["accuracy"] for run in runs], flush=True)
        record = {
            "what": "frontier",
            "data": name,
            "device": options.device,
            "delta": Settings.delta,
            "features_seconds": round(seconds, 1),
            "held_out": search["held_out"],
            "searched": sum(one["trials"] for one in search["candidates"]),
            "search_seconds": search["seconds"],
            "entries": entries,
            **({"data_note": options.data_note} if options.data_note else {}),
            **({"features_of": SAMPLE} if options.kept else {}),
            **({"brought": brought} if brought else {}),
            **({"encoder": options.encoder} if WITH in name else {}),
            **({"encoder_note": options.encoder_note} if options.encoder_note else {}),
            "machine": describe_machine(),
        }
        path = options.out / f"frontier-{name}.json"
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
