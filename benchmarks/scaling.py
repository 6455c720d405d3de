"""How the price of privacy grows: private over plain against one size at a time.

python benchmarks/scaling.py --device cpu

Small models of four kinds; each curve changes one size and keeps the others. `figures.py` draws
what is recorded.
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

import rivals
from cases import CLASSES, Encoder
from machine import describe_machine
from reticent import models
from steps import (
    CLIP,
    LR,
    NOISE,
    RESULTS,
    allow_tf32,
    private,
    race,
    save,
    summary,
    tidy,
)


class Point(NamedTuple):
    """A model and the batch it gets."""

    model: nn.Module
    inputs: Tensor


class Curve(NamedTuple):
    """One size against cost."""

    what: str
    model: str
    sizes: tuple[int, ...]
    """On a CPU; a device gets `more` times as much."""
    more: int
    make: Callable[[int, int], Point]
    """From the size and, for the other sizes, how many times as much."""


def mlp(width: int, depth: int, batch: int) -> Point:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return Point(nn.Sequential(*layers, nn.Linear(width, CLASSES)), torch.randn(batch, width))


class Bag(nn.Module):
    """The mean of a trainable embedding, and a linear head."""

    def __init__(self, vocabulary: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the class scores of each row of tokens."""
        return self.head(self.embedding(tokens).mean(1))


def convolutions(batch: int, _: int) -> Point:
    model = models.build("mnist-cnn", classes=CLASSES, input_shape=(1, 28, 28), seed=0)
    return Point(model, torch.randn(batch, 1, 28, 28))


def wide(width: int, more: int) -> Point:
    return mlp(width, 4, 64 * more)


def deep(depth: int, more: int) -> Point:
    return mlp(256, depth, 64 * more)


def long(length: int, more: int) -> Point:
    model = Encoder(1000, width=128, layers=2)
    return Point(model, torch.randint(0, 1000, (8 * more, length)))


def worded(vocabulary: int, more: int) -> Point:
    return Point(Bag(vocabulary), torch.randint(0, vocabulary, (64 * more, 64)))


CURVES = (
    Curve("batch", "mnist-cnn", (32, 64, 128, 256, 512), 8, convolutions),
    Curve("width", "four linear layers", (64, 128, 256, 512, 1024), 8, wide),
    Curve("depth", "linear layers of width 256", (2, 4, 8, 16, 32), 8, deep),
    Curve("sequence", "transformer, 2 layers of width 128", (16, 32, 64, 128, 256), 8, long),
    Curve("vocabulary", "embedding of width 64", (1000, 3000, 10_000, 30_000, 100_000), 8, worded),
)
GROWING = ("batch",)
"""Curves whose own size is larger on a device."""


def measure(point: Point, device: str, repeats: int) -> dict[str, dict[str, list[float]]]:
    """Plain and private steps in turns."""
    inputs = point.inputs.to(device)
    targets = torch.randint(0, CLASSES, (len(inputs),)).to(device)
    ours = functools.partial(private, True)
    makers: dict[str, Callable[[], rivals.Run]] = {
        name: functools.partial(
            make,
            copy.deepcopy(point.model).to(device),
            inputs,
            targets,
            lr=LR,
            noise=NOISE,
            clip=CLIP,
        )
        for name, make in (("plain", rivals.plain), ("private", ours))
    }
    times, failed = race(makers, device, repeats)
    if failed:
        raise SystemExit(f"a step failed: {failed}")
    return summary(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--points", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    device = options.device
    if device == "cuda":
        allow_tf32()
    torch.manual_seed(0)
    curves = []
    for curve in CURVES:
        more = curve.more if device == "cuda" else 1
        points = []
        for size in curve.sizes[: options.points]:
            size *= more if curve.what in GROWING else 1
            point = curve.make(size, more)
            found = measure(point, device, options.repeats)
            points.append(
                {
                    "size": size,
                    "batch": len(point.inputs),
                    "plain_ms": found["plain"]["ms"][1],
                    "private_ms": found["private"]["ms"][1],
                    "ratio": found["private"]["ratio"],
                }
            )
            print(
                f"{curve.what:10} {size:7} {found['private']['ratio'][1]:6.2f} x plain", flush=True
            )
            tidy()
        curves.append({"what": curve.what, "model": curve.model, "points": points})
    record = {
        "what": "scaling",
        "device": device,
        "repeats": options.repeats,
        "machine": describe_machine(),
        "curves": curves,
    }
    save(record, options.out / f"scaling-{device}.json")


if __name__ == "__main__":
    main()
