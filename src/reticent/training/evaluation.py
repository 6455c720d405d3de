"""How good the model is on records that were held out.

Held-out records are not protected by ε: they are taken as public, or at least as not released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reticent.data.records import Records, as_records
from reticent.gradients.batches import call
from reticent.training.state import State

Metrics = dict[str, float]
Evaluation = Callable[[nn.Module], Metrics]

CHUNK = 1024


def evaluate(
    model: nn.Module,
    data: Any,
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    *,
    device: torch.device | str = "cpu",
) -> Metrics:
    """Mean loss, and accuracy where the outputs are class scores, over all records of `data`."""
    records: Records = as_records(data, device)
    loss_fn = nn.CrossEntropyLoss() if loss_fn is None else loss_fn
    was_training = model.training
    model.eval()
    loss_sum, right, classified = 0.0, 0.0, True
    try:
        with torch.no_grad():
            for indices in torch.arange(records.n).split(CHUNK):
                inputs, targets = records.fetch(indices)
                outputs = call(model, inputs)
                loss = loss_fn(outputs, targets)
                mean_reduced = loss.dim() == 0 and getattr(loss_fn, "reduction", "mean") == "mean"
                loss_sum += float(loss) * len(indices) if mean_reduced else float(loss.sum())
                if _are_class_scores(outputs, targets):
                    right += float((outputs.argmax(1) == targets).sum())
                else:
                    classified = False
    finally:
        model.train(was_training)
    metrics = {"loss": loss_sum / records.n}
    return {"accuracy": right / records.n, **metrics} if classified else metrics


def _are_class_scores(outputs: Any, targets: Any) -> bool:
    return (
        isinstance(outputs, torch.Tensor)
        and isinstance(targets, torch.Tensor)
        and outputs.dim() == 2
        and targets.dim() == 1
        and not targets.is_floating_point()
    )


@contextmanager
def averaged_weights(state: State) -> Iterator[None]:
    """The model with its averaged weights, where the run keeps an average."""
    if state.average is None or state.average.count == 0:
        yield
        return
    current = state.parameters.values.clone()
    state.parameters.values.copy_(state.average.values)
    try:
        yield
    finally:
        state.parameters.values.copy_(current)
