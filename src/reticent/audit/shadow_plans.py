"""How shadow models are trained, as public numbers or as a function of the user's own."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler

from reticent.coins import Coins
from reticent.errors import OptionError, one_of, positive, whole
from reticent.files import to_json as as_json
from reticent.methods import DPSGD
from reticent.training.optimizers import by_name
from reticent.training.state import SchedulerFactory

SCHEDULES = ("constant", "linear", "cosine")

TrainOne = Callable[[nn.Module, Any, int], nn.Module]


@dataclass(frozen=True)
class ShadowPlan:
    """How shadow models are trained: by `DPSGD`, by default without clipping and noise.

    Args:
        batch: The expected number of records in a step.
        steps: How many steps; or `epochs`.
        epochs: Passes over the records that a model has on average.
        optimizer: `sgd`, `adam` or `adamw`.
        lr: Its learning rate.
        momentum: Of `sgd`.
        weight_decay: Of any.
        schedule: Of the learning rate: `constant`, `linear` or `cosine`.
        clip: The bound on one record's gradient.
        noise: The noise multiplier.
        average: Decay of an average of the weights.
        n: The nominal number of records of a model; by default its real one.
        seed: Decides the coins of all models.
    """

    batch: int
    steps: int | None = None
    epochs: float | None = None
    optimizer: str = "sgd"
    lr: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    schedule: str = "constant"
    clip: float = math.inf
    noise: float = 0.0
    average: float | None = None
    n: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise OptionError("steps", self.steps, "give either steps or epochs")
        if self.steps is not None:
            whole("steps", self.steps)
        if self.epochs is not None:
            positive("epochs", self.epochs)
        one_of("schedule", self.schedule, SCHEDULES)
        by_name(self.optimizer, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        whole("seed", self.seed, least=0)
        self.method()

    def method(self) -> DPSGD:
        """The method these numbers describe."""
        return DPSGD(batch=self.batch, clip=float(self.clip), noise=self.noise)

    def steps_for(self, members: Tensor) -> int:
        """How many steps every model makes, for these memberships [K, N]."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        records = self.n or float(members.sum()) / len(members)
        return max(round(self.epochs * records / self.batch), 1)

    def scheduler(self, steps: int) -> SchedulerFactory | None:
        """The schedule over so many steps."""
        if self.schedule == "constant":
            return None

        def make(optimizer: Optimizer) -> LRScheduler:
            if self.schedule == "cosine":
                return CosineAnnealingLR(optimizer, T_max=steps)
            return LinearLR(optimizer, start_factor=1.0, end_factor=0.01, total_iters=steps)

        return make

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON-ready data; a bound that is infinite is null."""
        clip = float(self.clip)
        return {**asdict(self), "clip": clip if math.isfinite(clip) else None}


@dataclass(frozen=True)
class OneByOne:
    """Any other training: a function, and what tells it from others.

    Args:
        train: From a fresh model, its records and its number to the trained model; for instance by
            `reticent.train` with another method.
        description: JSON-ready data. Models that were kept are found again by it, so all that
            `train` depends on belongs here.
    """

    train: TrainOne
    description: dict[str, Any]

    def __post_init__(self) -> None:
        try:
            as_json(self.description)
        except (TypeError, ValueError) as error:
            raise OptionError(
                "description", self.description, f"must be plain JSON data: {error}"
            ) from None

    def to_json(self) -> dict[str, Any]:
        """The description."""
        return dict(self.description)


def shadow_coins(seed: int, k: int) -> Coins:
    """The coins of shadow model k: the same for the same seed, whatever else is trained."""
    key = hashlib.blake2b(f"shadow model {k} of seed {seed}".encode(), digest_size=32).digest()
    return Coins(key, seeded=True)
