"""Refuse, before anything is spent, what cannot be trained privately.

The model is tried on made-up inputs of the records' shape and type, never on the records: whether
the probe passes says nothing about them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reticent import gradients
from reticent.data.records import Records, TensorRecords
from reticent.errors import DataError, ModelError, ReticentError
from reticent.gradients import rounding
from reticent.gradients.batches import call

# Few, and again more than a handful: some couplings start at a size.
PROBE_EXAMPLES = (3, 17)


def probe(
    model: nn.Module,
    loss_fn: Any,
    records: Records,
    path: str = "auto",
    *,
    evaluated: bool = False,
    precision: str | None = None,
) -> None:
    """Check that examples do not interact, that shapes fit and that labels name classes.

    Where the method also evaluates the model on records (`evaluated`), that must leave no trace.
    """
    gradients.validate(model)
    one = records.one()
    inputs, targets = gradients.synthetic_like(*one, n=PROBE_EXAMPLES[0])
    shapes = f"records of shape {_shape(inputs)}"
    with _explained(f"{type(model).__name__} cannot take {shapes}"), torch.no_grad():
        outputs = call(model, inputs)
    _check_labels(outputs, loss_fn, records)
    name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
    kinds = f"outputs of shape {_shape(outputs)} and targets of shape {_shape(targets)}"
    with _explained(f"{name} cannot take {kinds}"):
        for count in PROBE_EXAMPLES:
            made_up = gradients.synthetic_like(*one, n=count)
            gradients.isolation(model, loss_fn, *made_up)
        with rounding.precision(precision, gradients.isolating.device_of(model)):
            gradients.clipped_sum(model, loss_fn, inputs, targets, 1.0, path=path)
    kept = gradients.isolating.changed_by(model, inputs, evaluated=True) if evaluated else []
    if kept:
        raise ModelError(
            f"{kept[0]!r} changes in a forward pass of the evaluated model: the method evaluates "
            "it on records, which no noise would reach there"
        )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except ReticentError:
        raise
    except Exception as error:
        raise ModelError(f"{what}: {error}") from error


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape[1:])} ({str(value.dtype).removeprefix('torch.')})"
    return type(value).__name__


def _check_labels(outputs: Any, loss_fn: Any, records: Records) -> None:
    if not isinstance(loss_fn, (nn.CrossEntropyLoss, nn.NLLLoss)):
        return
    if not isinstance(outputs, torch.Tensor) or not isinstance(records, TensorRecords):
        return
    labels = records.targets
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return
    classes = outputs.shape[1]
    outside = ((labels < 0) | (labels >= classes)) & (labels != loss_fn.ignore_index)
    if bool(outside.any()):
        where = int(outside.reshape(len(labels), -1).any(1).nonzero()[0])
        label = labels.reshape(len(labels), -1)[where][outside.reshape(len(labels), -1)[where]][0]
        raise DataError(
            f"label {int(label)} (record {where}) is outside the model's classes 0..{classes - 1}"
        )
