"""Choose where training on one's own data starts, by validation rows of public data sets.

    RETICENT_DATA=... python benchmarks/defaults.py          # ten minutes of one core

A quarter of each data set is set aside for testing and not looked at by the search. Of the rest, a
quarter is held out for validation, another one for each seed. A kind's setting is the one with the
best mean over data sets, ε and seeds; it replaces the present one if it is better by more than two
standard errors of the paired difference. Only then is anything tested.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import tempfile
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression

import reticent as rt
from machine import describe_machine
from reticent import features, models
from reticent.coins import Coins
from reticent.data import load
from reticent.data.own import OwnSplits, from_columns, from_file
from reticent.data.own.splitting import held_out
from reticent.data.own.starting import MOMENTUM, Start, start
from reticent.privacy import Ledger
from reticent.training.optimizers import by_name

RESULT = Path(__file__).parent / "results" / "defaults.json"
EPSILONS, DELTA = (1.0, 3.0), 1e-5
SEARCHED, TESTED = (0, 1), (100, 101, 102)  # seeds
SHARE = 0.25
MOVES, STEPS = (0.25, 0.5, 1.0), (30, 100)
CLIPS = {"table": (0.3, 1.0), "text": (0.1, 1.0), "images": (0.1, 1.0)}
CLASSIFIER = {"learning_rate": (2.0, 4.0, 8.0), "clip": (0.5, 1.0), "steps": (50, 200)}
# what was there before the search
BEFORE = {"table": Start(), "text": Start(clip=0.1), "images": Start(clip=0.1)}
CLASSIFIER_BEFORE = {"learning_rate": 4.0, "clip": 1.0, "steps": 200}
TEXTS, IMAGES = 2000, 1500

Rows = tuple[torch.Tensor, torch.Tensor]


def spread(values: np.ndarray[Any, Any]) -> list[float]:
    """A seed's numbers as cells."""
    return [float(value) for value in values]


def mixture(n: int, seed: int) -> dict[str, Any]:
    """Made-up people: four classes, eight numbers around a class's centre, two categories."""
    draw = np.random.RandomState(seed)
    labels = draw.randint(0, 4, n)
    centres = draw.normal(0, 1, (4, 8))
    numbers = centres[labels] + draw.normal(0, 1.2, (n, 8))
    columns: dict[str, Any] = {f"x{k}": spread(numbers[:, k]) for k in range(8)}
    for name in ("city", "trade"):
        likely = draw.randint(0, 12, 4)
        at_random = draw.randint(0, 12, n)
        chosen = np.where(draw.random_sample(n) < 0.5, likely[labels], at_random)
        columns[name] = [f"{name} {value}" for value in chosen]
    return {**columns, "y": [f"class {label}" for label in labels]}


def table(found: Any) -> dict[str, Any]:
    names = [f"x{k}" for k in range(found.data.shape[1])]
    columns: dict[str, Any] = {name: spread(found.data[:, k]) for k, name in enumerate(names)}
    return {**columns, "y": [str(label) for label in found.target]}


def ranges(found: Any) -> dict[str, tuple[float, float]]:
    """The range of each column, from all rows: allowed only because they are public."""
    low, high = found.data.min(0), found.data.max(0)
    return {f"x{k}": (float(low[k]), float(high[k])) for k in range(len(low))}


def tables() -> dict[str, OwnSplits]:
    wine = load_wine()
    income = {
        name: [10 ** (4 + value / 3) for value in cells] if name.startswith("x") else cells
        for name, cells in mixture(5000, 2).items()
    }
    return {
        "breast cancer, no bounds": from_columns(table(load_breast_cancer()), target="y"),
        "wine, bounds": from_columns(table(wine), target="y", bounds=ranges(wine)),
        "digits, bounds": from_columns(table(load_digits()), target="y", bounds="0..16"),
        "mixture of 2,000, bounds": from_columns(mixture(2000, 1), target="y", bounds="-6..6"),
        "mixture of 5,000, no bounds": from_columns(income, target="y"),
    }


def texts() -> dict[str, OwnSplits]:
    imdb = load("imdb")
    root = Path(os.environ["RETICENT_DATA"])
    words = (root / "imdb_vocab.txt").read_text(encoding="utf-8").splitlines()
    chosen = torch.from_numpy(np.random.RandomState(0).permutation(len(imdb.train[0]))[:TEXTS])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reviews.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for tokens, label in zip(
                imdb.train[0][chosen].tolist(), imdb.train[1][chosen].tolist(), strict=True
            ):
                said = [words[token] for token in tokens if token > 2]  # marks are no words
                file.write(json.dumps({"text": " ".join(said), "label": str(label)}) + "\n")
        return {f"IMDb, {TEXTS:,} reviews": from_file(path, target="label")}


def pictures() -> dict[str, OwnSplits]:
    from PIL import Image

    clothes = load("fashion-mnist")
    chosen = np.random.RandomState(0).permutation(len(clothes.train[0]))[:IMAGES]
    with tempfile.TemporaryDirectory() as folder:
        for number in chosen.tolist():
            pixels, label = clothes.train[0][number], int(clothes.train[1][number])
            place = Path(folder) / str(label)
            place.mkdir(exist_ok=True)
            grey = (pixels.reshape(28, 28) - pixels.min()) / max(float(np.ptp(pixels)), 1e-9)
            Image.fromarray((grey.numpy() * 255).astype(np.uint8)).save(place / f"{number}.png")
        splits = from_file(folder)
    settings = start(splits, 3.0, DELTA, IMAGES)
    made = features.apply(
        splits,
        settings["features"],
        settings["feature_options"],
        keep=False,
        device=torch.device("cpu"),
    )
    return {f"Fashion-MNIST, {IMAGES:,} images": replace(splits, train=made.train, test=made.test)}


@dataclass(frozen=True)
class Case:
    """A data set: rows to search with, and rows that the search does not see."""

    name: str
    splits: OwnSplits
    rest: Rows
    test: Rows

    @classmethod
    def of(cls, name: str, splits: OwnSplits) -> Case:
        """All rows of a data set, a quarter of them set aside."""
        inputs = torch.cat([splits.train[0], splits.test[0]])
        labels = torch.cat([splits.train[1], splits.test[1]])
        apart = torch.from_numpy(held_out(len(inputs), SHARE, seed=0))
        rest, test = (inputs[~apart], labels[~apart]), (inputs[apart], labels[apart])
        return cls(name, splits, rest, test)

    def validation(self, seed: int) -> OwnSplits:
        """The searched rows, a part of them held out."""
        apart = torch.from_numpy(held_out(len(self.rest[0]), SHARE, seed + 1))
        inputs, labels = self.rest
        return replace(
            self.splits,
            train=(inputs[~apart], labels[~apart]),
            test=(inputs[apart], labels[apart]),
        )

    def final(self) -> OwnSplits:
        """All searched rows to train on, the others to test with."""
        return replace(self.splits, train=self.rest, test=self.test)


def own(splits: OwnSplits, epsilon: float, chosen: Start, seed: int) -> float:
    """Accuracy of what `reticent train` would do with these rows."""
    n = len(splits.train[0])
    settings = start(splits, epsilon, DELTA, n, chosen)
    ledger, coins = Ledger(rt.Budget(epsilon, DELTA)), Coins.from_seed(seed)
    if splits.private_columns:
        statistics = features.channel_statistics(
            splits.train[0][:, list(splits.private_columns)],
            ledger=ledger,
            n=n,
            noise=settings["standardise_noise"],
            coins=Coins.from_seed(seed + 10**6),
        )
        splits = splits.standardised(statistics)
    result = rt.train(
        models.build(
            settings["model"],
            classes=splits.info.n_classes,
            input_shape=tuple(splits.train[0].shape[1:]),
            seed=0,
            **settings["model_options"],
        ),
        splits.train,
        method=rt.DPSGD(batch=n, clip=settings["clip"]),
        budget=ledger.budget,
        ledger=ledger,
        n=n,
        steps=settings["steps"],
        optimizer=by_name("sgd", lr=settings["lr"], momentum=MOMENTUM),
        coins=coins,
        device="cpu",
        microbatch=2048,
    )
    return rt.evaluate(result.model, splits.test)["accuracy"]


def classifier(splits: OwnSplits, epsilon: float, chosen: dict[str, Any], seed: int) -> float:
    """Accuracy of `PrivateClassifier` with these options; rows are in [-1, 1] already."""
    (inputs, labels), (held, wanted) = splits.train, splits.test
    made = rt.PrivateClassifier(
        epsilon,
        DELTA,
        classes=range(splits.info.n_classes),
        insecure_coins=seed,
        device="cpu",
        **chosen,
    )
    made.fit(inputs.numpy(), labels.numpy())
    return float(made.score(held.numpy(), wanted.numpy()))


def not_private(case: Case) -> float:
    """Test accuracy of scikit-learn's logistic regression on the same numbers."""
    (inputs, labels), (held, wanted) = case.rest, case.test
    columns = list(case.splits.private_columns)
    inputs, held = inputs.double().clone(), held.double().clone()
    if columns:
        mean, deviation = inputs[:, columns].mean(0), inputs[:, columns].std(0)
        for rows in (inputs, held):
            rows[:, columns] = (rows[:, columns] - mean) / deviation.clamp_min(1e-9)
    model = LogisticRegression(max_iter=3000).fit(inputs.numpy(), labels.numpy())
    return float(model.score(held.numpy(), wanted.numpy()))


def search(
    cases: list[Case], settings: list[Any], now: int, fit: Any, told: Any
) -> tuple[list[dict[str, Any]], int]:
    """Validation accuracies of every setting, and which one is chosen."""
    scores: list[list[float]] = []
    for setting in settings:
        scores.append(
            [
                fit(case.validation(seed), epsilon, setting, seed)
                for case, epsilon, seed in itertools.product(cases, EPSILONS, SEARCHED)
            ]
        )
        told(f"{setting} {np.mean(scores[-1]):.4f}")
    best = max(range(len(settings)), key=lambda k: float(np.mean(scores[k])))
    gain = np.array(scores[best]) - np.array(scores[now])
    error = float(gain.std(ddof=1)) / math.sqrt(len(gain))
    chosen = best if float(gain.mean()) > 2 * error else now
    lines = [
        {
            "setting": asdict(setting) if isinstance(setting, Start) else setting,
            "validation": [round(score, 4) for score in one],
            "mean": round(float(np.mean(one)), 4),
        }
        for setting, one in zip(settings, scores, strict=True)
    ]
    return lines, chosen


def kind(name: str, cases: list[Case], settings: list[Any], now: Any, fit: Any) -> dict[str, Any]:
    """Search for one kind of data, then test what was chosen and what was there before."""
    started = time.process_time()

    def told(text: str) -> None:
        print(f"{name} {time.process_time() - started:.0f} s: {text}", flush=True)

    place = settings.index(now)
    lines, chosen = search(cases, settings, place, fit, told)
    tested = []
    for case, epsilon in itertools.product(cases, EPSILONS):
        row: dict[str, Any] = {"data": case.name, "n": len(case.rest[0]), "epsilon": epsilon}
        for label, number in (("chosen", chosen), ("before", place)):
            row[label] = (
                row["chosen"]
                if label == "before" and number == chosen
                else [round(fit(case.final(), epsilon, settings[number], s), 4) for s in TESTED]
            )
        row["not private"] = round(not_private(case), 4)
        told(str(row))
        tested.append(row)
    return {
        "kind": name,
        "settings": lines,
        "before": lines[place]["setting"],
        "best": max(lines, key=lambda line: line["mean"])["setting"],
        "chosen": lines[chosen]["setting"],
        "tests": tested,
        "cpu_seconds": round(time.process_time() - started),
    }


KINDS = ("table", "text", "images", "classifier")


def run(name: str) -> dict[str, Any]:
    if name == "classifier":
        names = list(CLASSIFIER)
        grid: list[Any] = [
            dict(zip(names, values, strict=True))
            for values in itertools.product(*CLASSIFIER.values())
        ]
        cancer = load_breast_cancer()
        found = {key: one for key, one in tables().items() if "no bounds" not in key}
        found["breast cancer, bounds"] = from_columns(
            table(cancer), target="y", bounds=ranges(cancer)
        )
        cases = [Case.of(key, one) for key, one in found.items()]
        return kind(name, cases, grid, CLASSIFIER_BEFORE, classifier)
    grid = [Start(*values) for values in itertools.product(MOVES, CLIPS[name], STEPS)]
    read = {"table": tables, "text": texts, "images": pictures}[name]
    cases = [Case.of(key, one) for key, one in read().items()]
    return kind(name, cases, grid, BEFORE[name], own)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS, nargs="*", default=KINDS)
    parser.add_argument("--out", type=Path, default=RESULT)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # lists of classes are learned: all is public here
    before = json.loads(arguments.out.read_text())["kinds"] if arguments.out.exists() else []
    for name in arguments.only:
        before = [one for one in before if one["kind"] != name] + [run(name)]
        record = {
            "what": "defaults",
            "delta": DELTA,
            "epsilons": EPSILONS,
            "seeds": {"search": SEARCHED, "test": TESTED},
            "machine": describe_machine(),
            "kinds": sorted(before, key=lambda one: KINDS.index(one["kind"])),
        }
        arguments.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
