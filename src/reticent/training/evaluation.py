"""How good the model is on records that were held out.

Held-out records are not protected by ε: they are taken as public, or at least as not released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reticent.data.records import Records, as_records
from reticent.gradients.batches import call
from reticent.gradients.modes import evaluated
from reticent.training.explaining import explained, other_precision, shape_of
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
    loss_sum, right, classified = 0.0, 0.0, True
    with evaluated(model), torch.no_grad():
        for indices in torch.arange(records.n).split(CHUNK):
            inputs, targets = records.fetch(indices)
            what = f"records of shape {shape_of(inputs)} and targets of shape {shape_of(targets)}"
            who = f"{type(model).__name__} or its loss cannot take"
            with explained(f"{who} {what}", other_precision(model, inputs)):
                outputs = call(model, inputs)
                loss = loss_fn(outputs, targets)
            mean_reduced = loss.dim() == 0 and getattr(loss_fn, "reduction", "mean") == "mean"
            loss_sum += float(loss) * len(indices) if mean_reduced else float(loss.sum())
            if _are_class_scores(outputs, targets):
                right += float((outputs.argmax(1) == targets).sum())
            else:
                classified = False
    metrics = {"loss": loss_sum / records.n}
    return {"accuracy": right / records.n, **metrics} if classified else metrics


def class_counts(
    model: nn.Module,
    data: Any,
    classes: Sequence[str] = (),
    *,
    device: torch.device | str = "cpu",
) -> dict[str, Any] | None:
    """How often records of each class were given each class, in all records of `data`.

    The counts are exact: whoever sees them learns about these records, most about rare classes.

    >>> data = (torch.tensor([[2.0, 1.0], [0.0, 1.0], [3.0, 1.0]]), torch.tensor([0, 1, 1]))
    >>> class_counts(nn.Identity(), data, ["no", "yes"])
    {'classes': ['no', 'yes'], 'confusion': [[1, 0], [1, 1]]}

    Args:
        model: Gives scores [n, classes].
        data: Held-out records, as for `evaluate`.
        classes: Their names, in the order of the labels; numbers where they do not fit.
        device: Where the model is.

    Returns:
        Names and counts, rows by true class; None where the outputs are no class scores.
    """
    records: Records = as_records(data, device)
    counts, size = torch.zeros(0, dtype=torch.long), 0
    with evaluated(model), torch.no_grad():
        for indices in torch.arange(records.n).split(CHUNK):
            inputs, targets = records.fetch(indices)
            outputs = call(model, inputs)
            if not _are_class_scores(outputs, targets):
                return None
            if not size:
                size = outputs.shape[1]
                counts = torch.zeros(size * size, dtype=torch.long, device=outputs.device)
            counts += torch.bincount(targets * size + outputs.argmax(1), minlength=size * size)
    names = list(classes) if len(classes) == size else [str(k) for k in range(size)]
    return {"classes": names, "confusion": counts.view(size, size).tolist()}


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
