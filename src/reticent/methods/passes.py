"""Passes of a model over records, for methods that promise no differential privacy.

Nothing here is bounded or noisy: what comes out is as private as the records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from reticent.errors import DataError, ModelError
from reticent.gradients import synthetic_like
from reticent.gradients.batches import call
from reticent.gradients.modes import evaluated

if TYPE_CHECKING:
    from reticent.training.run import Run

#: from (outputs, targets, positions of the records) to one loss for each record
Losses = Callable[[Tensor, Any, Tensor], Tensor]


def computing(run: Run, stream: str, piece: int = 0) -> AbstractContextManager[None]:
    """The run's precision, and its secret coins for dropout and the like."""
    return run._computing(stream, 0, piece)


def gradient(run: Run, indices: Tensor, losses: Losses, stream: str = "model") -> Tensor:
    """The gradient [P] of the mean of `losses` over these records, in pieces."""
    total: Tensor | None = None
    for number, piece in enumerate(indices.split(run.microbatch)):
        inputs, targets = run.fetch(piece)
        with computing(run, stream, number), torch.enable_grad():
            each = losses(call(run.model, inputs), targets, piece)
            part = run.state.parameters.gradient_of(each.sum() / len(indices))
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


@torch.no_grad()
def answers(run: Run, indices: Tensor, stream: str) -> tuple[Tensor, Tensor]:
    """What the evaluated model says of these records: posteriors [m, classes] and labels [m]."""
    posteriors, labels = [], []
    for number, piece in enumerate(indices.split(run.microbatch)):
        inputs, targets = run.fetch(piece)
        with evaluated(run.model), computing(run, stream, number):
            posteriors.append(call(run.model, inputs).float().softmax(1))
        labels.append(targets)
    return torch.cat(posteriors), torch.cat(labels)


@torch.no_grad()
def class_count(run: Run, method: str) -> int:
    """How many classes the model tells apart; refuses what is no classification.

    The model is asked about made-up records.
    """
    inputs, targets = synthetic_like(*run.records.one(), n=2)
    with evaluated(run.model), computing(run, "number of classes"):
        outputs = call(run.model, inputs)
    if not isinstance(outputs, Tensor) or outputs.ndim != 2 or outputs.shape[1] < 2:
        shape = tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ModelError(
            f"{method} needs a score for each of two or more classes, [n, classes]; the model's "
            f"outputs have shape {shape}"
        )
    if not isinstance(targets, Tensor) or targets.ndim != 1 or targets.is_floating_point():
        kind = (
            f"{targets.dtype} of shape {tuple(targets.shape[1:])}"
            if isinstance(targets, Tensor)
            else type(targets).__name__
        )
        raise DataError(f"{method} needs one class number for each record; targets are {kind}")
    return int(outputs.shape[1])
