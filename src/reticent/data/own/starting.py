"""Where to start on records of one's own: a linear layer, all records in every release.

With all n records in each of T releases, ε is that of one Gaussian release of μ = √T/σ whatever T
is, so few long steps waste nothing. The weights can move by at most L = lr/(1 - momentum)·clip·T,
and the noise moves the score of a record of length 1 by about L/(n·μ): L is chosen so that this is
`move`. Settings depend on n, ε, δ and the number of columns, all public.

`move`, clip and T come from a search on public data sets by validation rows, at ε = 1 and 3:
`benchmarks/defaults.py`, with its numbers in `benchmarks/results/defaults.json`. Of twelve settings
the best replaced the former one for tables and texts; for images none was clearly better. Arrays
were not searched: they have what tables have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from reticent.data.own.columns import LOG_REACH
from reticent.data.own.splits import OwnSplits

MOMENTUM = 0.9


@dataclass(frozen=True)
class Start:
    """What is the same for all records of a kind.

    Attributes:
        move: by how much the noise moves the score of a record of length 1.
        clip: bound on a gradient, for records of length 1.
        steps: number of releases.
    """

    move: float = 0.5
    clip: float = 1.0
    steps: int = 100


_TABLE = Start(move=1.0, clip=0.3)
STARTS = {"table": _TABLE, "array": _TABLE, "text": Start(), "images": Start(clip=0.1)}
_PARTS = 8  # one record in so many, where a method needs samples
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


def usable(epsilon: Any, delta: Any) -> tuple[float, float]:
    """ε and δ to choose settings by; what cannot be one is refused later, by name.

    >>> usable(0, 1e-6)
    (3.0, 1e-06)
    """
    good = isinstance(epsilon, (int, float)) and math.isfinite(epsilon) and epsilon > 0
    return epsilon if good else 3.0, delta if isinstance(delta, float) and 0 < delta < 1 else 1e-5


def linear_start(
    chosen: Start, epsilon: float, delta: float, n: int, length: float = 1.0
) -> dict[str, Any]:
    """A linear layer on rows of this length, which its gradients are proportional to."""
    clip = chosen.clip
    strength = n * epsilon / math.sqrt(2 * math.log(1.25 / delta))  # n·μ, nearly
    lr = chosen.move * strength * (1 - MOMENTUM) / (clip * chosen.steps)
    return {
        "model": "linear-head",
        "model_options": {"bias": False, "zero": True},
        "batch": n,
        "clip": clip * length,
        "steps": chosen.steps,
        "optimizer": "sgd",
        "momentum": MOMENTUM,
        "lr": min(lr, _FASTEST) / length**2,
    }


def start(
    splits: OwnSplits, epsilon: float, delta: float, n: int, chosen: Start | None = None
) -> dict[str, Any]:
    """Settings that work, each open to change by file or flag; `chosen` in the kind's place.

    >>> from reticent.data.own import from_columns
    >>> columns = {"age": [20, 60] * 500, "ill": ["no", "yes"] * 500}
    >>> splits = from_columns(columns, target="ill", classes="no,yes", bounds={"age": (0, 120)})
    >>> settings = start(splits, epsilon=3, delta=1e-5, n=800)
    >>> settings["model"], settings["batch"], round(settings["lr"], 2), settings["clip"]
    ('linear-head', 800, 1.65, 0.3)
    """
    chosen = STARTS[splits.form] if chosen is None else chosen
    settings = linear_start(chosen, epsilon, delta, n, length=math.sqrt(splits.blocks))
    settings["model_options"]["bias"] = splits.form in ("table", "array")
    if splits.form == "images":
        settings |= _FEATURES
    if splits.private_columns:
        # a twentieth of the budget, as the multiplier 8 is at ε = 3
        settings |= {"standardise": True, "standardise_noise": max(8.0, 24.0 / epsilon)}
    return settings


def sampled(settings: dict[str, Any], n: int) -> dict[str, Any]:
    """The same for DPIS, which chooses a sample among more records than it keeps.

    >>> sampled({"batch": 800, "steps": 100}, n=800)
    {'batch': 100, 'steps': 100}
    """
    return settings | {"batch": max(n // _PARTS, 1)}


def selective(settings: dict[str, Any], n: int) -> dict[str, Any]:
    """The same for DPSUR, whose test of an update is paid for too, and cheap only for samples.

    The noise is set and the number of updates follows from the budget: noise for a given number
    would have to be searched, with minutes of exact accounting for each.

    >>> made = selective({"batch": 800, "steps": 100, "lr": 1.0}, n=800)
    >>> made["batch"], made["valid_batch"], "steps" in made
    (100, 25, False)
    """
    kept = {name: value for name, value in settings.items() if name != "steps"}
    return kept | {
        "batch": max(n // _PARTS, 1),
        "noise": 6.0,
        "valid_batch": max(n // (4 * _PARTS), 1),
        "valid_noise": 1.3,
        # the noise in a sampled sum is larger beside the mean
        "lr": settings["lr"] / 4,
    }


SAMPLING = {"dpis": sampled, "dpsur": selective}
"""What changes for methods that need samples, with the number of records."""
