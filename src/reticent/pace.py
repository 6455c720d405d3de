"""How long a release takes and how much memory, measured by real releases on made-up records."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import torch

from reticent import models
from reticent.errors import whole
from reticent.methods import DPSGD
from reticent.privacy import Budget
from reticent.training.loop import Training
from reticent.training.memory import BYTES_PER_PARAMETER
from reticent.training.optimizers import by_name
from reticent.training.train import pick_device, run

# What made-up records may take, and how many seconds a release of them may last before no larger
# ones are tried.
MOST_BYTES, ENOUGH_SECONDS = 1 << 26, 0.3
FIRST, RELEASES, MOST_TRIES = 8, 3, 4


@dataclass(frozen=True)
class Pace:
    """A measured release.

    Attributes:
        seconds: of the fastest release measured.
        records: how many made-up records it had.
        device: where.
        microbatch: how many went through at once.
        piece_bytes: what so many took, if that was measured.
        parameters: how many the model trains.
        record_bytes: of one record.
    """

    seconds: float
    records: int
    device: str
    microbatch: int
    piece_bytes: int | None
    parameters: int
    record_bytes: int

    def training(self, batch: int, steps: int) -> float:
        """Seconds of a training: larger batches take proportionally longer, smaller as long."""
        return steps * self.seconds * max(batch / self.records, 1.0)

    @property
    def per_record(self) -> float:
        """Seconds for each record of a large batch."""
        return self.seconds / self.records

    def memory(self, n: int) -> int:
        """Bytes of n records, one piece of them, and the vectors that parameters need."""
        return (
            n * self.record_bytes + (self.piece_bytes or 0) + self.parameters * BYTES_PER_PARAMETER
        )


def measure(
    name: str,
    *,
    input_shape: tuple[int, ...],
    classes: int,
    batch: int,
    device: str = "auto",
    model_options: dict[str, Any] | None = None,
) -> Pace:
    """Make a few releases of a model by name, on as many records as time allows, up to `batch`.

    Example:
        >>> pace = measure("linear", input_shape=(4,), classes=2, batch=20, device="cpu")
        >>> pace.records, pace.parameters
        (20, 10)
    """
    whole("batch", batch)
    card = models.describe(name)
    record_bytes = card.sample(1, input_shape).nbytes + 8
    most = max(min(batch, MOST_BYTES // record_bytes), 1)
    chosen = pick_device(device)

    def released(size: int, microbatch: int | None) -> tuple[float, Training]:
        model = models.build(name, classes=classes, input_shape=input_shape, **model_options or {})
        training = run(
            model,
            (card.sample(size, input_shape), torch.arange(size) % classes),
            # rate 1, so that each release has all of them; the budget is no limit
            method=DPSGD(batch=size, noise=1.0),
            budget=Budget(epsilon=1e4, delta=1e-5),
            steps=RELEASES,
            optimizer=by_name("sgd", lr=0.1),
            device=chosen,
            microbatch=microbatch,
        )
        return _fastest(training, chosen), training

    size = min(FIRST, most)
    seconds, first = released(size, None)
    for _ in range(MOST_TRIES - 1):
        if size >= most or seconds >= ENOUGH_SECONDS / 2:
            break
        # at least so many in that time, since a release has a part that does not grow
        size = min(max(int(size * ENOUGH_SECONDS / seconds), size + 1), most)
        seconds, _ = released(size, first.run.microbatch)
    return Pace(
        seconds=seconds,
        records=size,
        device=str(chosen),
        microbatch=first.run.microbatch,
        piece_bytes=first.piece_memory_bytes,
        parameters=first.run.state.parameters.values.numel(),
        record_bytes=record_bytes,
    )


def _fastest(training: Training, device: torch.device) -> float:
    """Seconds of the fastest release: the first ones warm up, others may share the machine."""
    best, before = math.inf, time.perf_counter()
    for _ in training:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        now = time.perf_counter()
        best, before = min(best, now - before), now
    return best
