"""Where to start on records of one's own: a linear layer, all records in every release.

With all n records in each of T releases, ε is that of one Gaussian release of μ = √T/σ whatever T
is, so few long steps waste nothing. The weights can move by at most L = lr/(1 - momentum)·clip·T,
and the noise moves the score of a record of length 1 by about L/(n·μ): L is chosen so that this is
`MOVE`. Settings depend on n, ε, δ and the number of columns, all public.

`MOVE`, clip and T lie between the best of a small grid on public tables (breast cancer, digits,
made-up ones of 300 to 20,000 records, at ε = 1 and 3) with exactly standardised columns, by test
scores; images and texts have the clip of the best recipes for CIFAR-10 and IMDb, else untuned.
"""

from __future__ import annotations

import math
from typing import Any

from reticent.data.own.columns import LOG_REACH
from reticent.data.own.splits import OwnSplits

MOVE = 0.5
STEPS = 100
MOMENTUM = 0.9
CLIP = {"table": 1.0, "array": 1.0, "text": 0.1, "images": 0.1}
_FASTEST = 200.0  # beyond, full batches of rows of length 1 swing
_FEATURES = {
    "features": "random-images",
    # few numbers and few images for whitening: a minute on one core
    "feature_options": {"parts": "3x2", "mirror": False, "images": 2048},
}


def noise_floor(splits: OwnSplits, noise: float, n: int) -> float:
    """Below which the private deviations of columns without bounds are noise, in decades.

    Values on the log scale are at most 1, so the noise in a mean square is noise·√columns/n.
    """
    return LOG_REACH * math.sqrt(noise * math.sqrt(len(splits.private_columns)) / n)


def start(splits: OwnSplits, epsilon: float, delta: float, n: int) -> dict[str, Any]:
    """Settings that work, each open to change by file or flag.

    >>> from reticent.data.own import from_columns
    >>> columns = {"age": [20, 60] * 500, "ill": ["no", "yes"] * 500}
    >>> splits = from_columns(columns, target="ill", classes="no,yes", bounds={"age": (0, 120)})
    >>> settings = start(splits, epsilon=3, delta=1e-5, n=800)
    >>> settings["model"], settings["batch"], round(settings["lr"], 2), settings["clip"]
    ('linear-head', 800, 0.25, 1.0)
    """
    clip = CLIP[splits.form]
    strength = n * epsilon / math.sqrt(2 * math.log(1.25 / delta))  # n·μ, nearly
    lr = MOVE * strength * (1 - MOMENTUM) / (clip * STEPS)
    length = math.sqrt(splits.blocks)  # of a row; gradients are as much longer
    settings: dict[str, Any] = {
        "model": "linear-head",
        "model_options": {"bias": splits.form in ("table", "array"), "zero": True},
        "batch": n,
        "clip": clip * length,
        "steps": STEPS,
        "optimizer": "sgd",
        "momentum": MOMENTUM,
        "lr": min(lr, _FASTEST) / length**2,
    }
    if splits.form == "images":
        settings |= _FEATURES
    if splits.private_columns:
        # a twentieth of the budget, as the multiplier 8 is at ε = 3
        settings |= {"standardise": True, "standardise_noise": max(8.0, 24.0 / epsilon)}
    return settings
