"""Search for the best honest recipes: public features, then a private linear layer in full batches.

Candidates are compared on the last part of the training split, which is held out for that and not
trained on; the test split is never looked at. All candidates are written, not only the best.

Releases are those of DP-SGD at rate 1 (every record in every release): the sum of the records'
clipped gradients plus noise, a Gaussian mechanism, composed exactly. A linear layer without bias
has gradients x ⊗ (p - y), of norm ‖x‖·‖p - y‖, so that hundreds of settings train at once. The
search itself is on public benchmark data; on records that are not, it would have to be paid for.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from machine import describe_machine
from reticent import data as datasets
from reticent import features
from reticent.best import WITH
from reticent.cli.settings import assignments
from reticent.features.applying import extras_of
from reticent.features.catalog import build
from reticent.features.random_images import RandomImages
from reticent.features.whitening import public_images, whitening
from reticent.features.word_clusters import WordClusters
from reticent.privacy import Budget, SampledGaussian, noise_for

RESULTS = Path(__file__).parent / "results"
HELD_OUT = {"mnist": 10_000, "fashion-mnist": 10_000, "cifar10": 10_000, "imdb": 5_000}
TEXTS_ENCODED = f"imdb{WITH}sentence-encoder"  # with the encoder of $RETICENT_ENCODER
IMAGES_ENCODED = f"cifar10{WITH}image-encoder"  # with that of `--feature encoder=FILE`
EPSILONS = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
DELTA = 1e-5
MOMENTUM = 0.9
SEEDS = 2
STEPS = {"cifar10": (50, 100, 200), "imdb": (50, 100, 200)}
RATES = (5.0, 10.0, 20.0, 40.0, 80.0)  # of the mean clipped gradient, in units of the clip
CLIPS = (0.1, 0.3)


def candidates(name: str) -> list[dict[str, Any]]:
    """Feature options to try."""
    if name == IMAGES_ENCODED:
        whitened: list[dict[str, Any]] = [{"images": 8192, "ridge": r} for r in (1.0, 10.0)]
        return [{"images": 0}, *whitened]
    if name == TEXTS_ENCODED:
        return [{"clusters": 4000, "weight": w} for w in (0.35, 0.5)]
    if name == "imdb":
        return [{"clusters": c, "sharpness": s} for c in (4000, 8000) for s in (1.5, 2.5)]
    parts, processes = {
        "cifar10": (("3x4+2x4", "3x4+2x4+1x4"), ("mixed",)),
        "fashion-mnist": (("3x4+2x4+scattering",), ("mixed", "figures")),
        "mnist": (("3x2+scattering", "3x4+2x4+scattering"), ("mixed", "strokes")),
    }[name]
    ridges = {"cifar10": (1.0, 3.0), "mnist": (0.1, 1.0)}.get(name, (0.1,))
    return [
        {"parts": p, "process": q, "ridge": r, "mirror": name != "mnist"}
        for q in processes
        for p in parts
        for r in ridges
    ]


def features_of(
    name: str,
    options: dict[str, Any],
    splits: Any,
    device: str,
    *,
    root: str | None = None,
    brought: dict[str, Any] | None = None,
) -> Tensor:
    """The training split's features; what candidates share is computed once."""
    inputs = splits.train[0]
    if name == IMAGES_ENCODED:
        given = {**options, **(brought or {})}
        made = features.apply(splits, "image-encoder", given, root=root, device=device)
        return made.train[0].to(device)
    if name == TEXTS_ENCODED:
        made = build("sentence-encoder", tuple(inputs.shape[1:]), options, extras_of(splits))
        made = made.to(device)
        return torch.cat([made(some) for some in inputs.split(1000)])
    if name == "imdb":
        made = WordClusters(splits.extras["vectors"], **options).to(device)
        return torch.cat([made(some) for some in inputs.split(1000)])
    shape = tuple(inputs.shape[1:])
    kept = {key: value for key, value in options.items() if key != "ridge"}
    key = (name, *sorted(kept.items()))
    if _POOLED.get("key") != key:
        made = RandomImages(shape, **kept).to(device)
        bank = public_images(options["process"], 16_384, shape)
        _POOLED["key"] = key
        _POOLED["public"] = torch.cat(
            [made.pooled(some.to(device).float() / 255) for some in bank.split(2048)]
        )
        _POOLED["records"] = torch.cat(
            [made.pooled(some.to(device)) for some in inputs.split(2048)]
        )
    return whitening(_POOLED["public"], options["ridge"])(_POOLED["records"])


_POOLED: dict[str, Any] = {}


def trained(
    train: tuple[Tensor, Tensor], classes: int, steps: int, settings: list[tuple[float, ...]]
) -> Tensor:
    """The weights [settings, d, classes] after `steps` releases, for all settings at once.

    Args:
        train: features [n, d] and labels.
        classes: how many.
        steps: releases.
        settings: of each training: noise multiplier, learning rate in units of the clip, clip.
    """
    x, y = train
    n, device = len(x), x.device
    noise, rates, clips = torch.tensor(settings, device=device).T[..., None, None]
    target, lengths = F.one_hot(y, classes).float(), x.norm(dim=1)
    weights = torch.zeros(len(settings), x.shape[1], classes, device=device)
    speed = torch.zeros_like(weights)
    for _ in range(steps):
        total = torch.zeros_like(weights)
        for start in range(0, n, 10_000):
            part = slice(start, start + 10_000)
            flat = weights.permute(1, 0, 2).reshape(x.shape[1], -1)
            error = (x[part] @ flat).reshape(-1, len(settings), classes).softmax(-1)
            error -= target[part, None]
            norm = error.norm(dim=-1) * lengths[part, None]
            error *= (clips[:, 0, 0] / norm.clamp(min=1e-9)).clamp(max=1)[..., None]
            product = x[part].T @ error.reshape(len(error), -1)
            total += product.reshape(x.shape[1], len(settings), classes).permute(1, 0, 2)
        release = total / clips + noise * torch.randn_like(total)
        speed = MOMENTUM * speed + release / n
        weights -= rates * speed
    return weights


def noises(steps: int) -> dict[float, float]:
    """The noise multiplier of this many releases for each ε."""
    return {
        e: noise_for(Budget(e, DELTA), lambda noise: SampledGaussian(1.0, noise), steps)
        for e in EPSILONS
    }


def trials(
    train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor], classes: int, steps: int
) -> list[dict[str, Any]]:
    """The accuracies of all settings with this number of releases, on the held-out records."""
    noise = noises(steps)
    grid = [(e, rate, clip) for e in EPSILONS for rate in RATES for clip in CLIPS]
    settings = [(noise[e], rate, clip) for e, rate, clip in grid for _ in range(SEEDS)]
    weights = trained(train, classes, steps, settings)
    flat = weights.permute(1, 0, 2).reshape(weights.shape[1], -1)
    guesses = (held_out[0] @ flat).reshape(-1, len(settings), classes).argmax(-1)
    right = (guesses == held_out[1][:, None]).float().mean(0)
    means = right.reshape(-1, SEEDS).mean(1).tolist()
    return [
        {"epsilon": e, "steps": steps, "rate": rate, "clip": clip, "accuracy": round(100 * a, 3)}
        for (e, rate, clip), a in zip(grid, means, strict=True)
    ]


def search(
    name: str, root: str | None, device: str, brought: dict[str, Any] | None = None
) -> dict[str, Any]:
    """All candidates of one data set; the best features, and with them the best settings per ε."""
    data = name.split(WITH)[0]
    splits = datasets.load(data, root=root)
    labels = splits.train[1].to(device)
    cut = len(labels) - HELD_OUT[data]
    found: list[dict[str, Any]] = []
    for options in candidates(name):
        begun = time.perf_counter()
        x = features_of(name, options, splits, device, root=root, brought=brought)
        train, held_out = (x[:cut], labels[:cut]), (x[cut:], labels[cut:])
        rows: list[dict[str, Any]] = []
        for steps in STEPS.get(data, (100, 200, 400)):
            rows += trials(train, held_out, splits.info.n_classes, steps)
        best = _best(rows)
        found.append({"options": options, "best": best, "trials": len(rows), "rows": rows})
        shown = "  ".join(f"{row['epsilon']:g}: {row['accuracy']:.2f}" for row in best)
        print(name, options, shown, f"{time.perf_counter() - begun:.0f} s", flush=True)
    winner = max(found, key=_average)
    return {
        "data": name,
        "held_out": HELD_OUT[data],
        "options": winner["options"],
        "chosen": winner["best"],
        "candidates": found,
    }


def _average(candidate: dict[str, Any]) -> float:
    """Over ε: features are computed once and serve every budget."""
    return sum(row["accuracy"] for row in candidate["best"]) / len(EPSILONS)


def _best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        max((row for row in rows if row["epsilon"] == e), key=lambda row: row["accuracy"])
        for e in EPSILONS
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    encoded = (TEXTS_ENCODED, IMAGES_ENCODED)
    parser.add_argument("--data", nargs="+", default=list(HELD_OUT), choices=[*HELD_OUT, *encoded])
    parser.add_argument("--feature", action="append", help="NAME=VALUE, what only a user can say.")
    parser.add_argument("--root")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = True
    for name in options.data:
        begun = time.perf_counter()
        torch.manual_seed(0)
        brought = assignments("feature", options.feature) or {}
        result = search(name, options.root, options.device, brought)
        result = {
            "what": "search",
            "seconds": round(time.perf_counter() - begun, 1),
            "machine": describe_machine(),
            "delta": DELTA,
            "momentum": MOMENTUM,
            "seeds": SEEDS,
            **result,
            **({"brought": brought} if brought else {}),
        }
        path = options.out / f"search-{name}.json"
        path.write_text(json.dumps(result, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
