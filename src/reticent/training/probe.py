"""Refuse, before anything is spent, what cannot be trained privately.

The model is tried on made-up inputs of the records' shape and type, never on the records: whether
the probe passes says nothing about them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from reticent import gradients
from reticent.data.records import Records, TensorRecords
from reticent.errors import DataError, ModelError, ReticentError
from reticent.gradients.batches import call

PROBE_EXAMPLES = 3


def probe(model: nn.Module, loss_fn: Any, records: Records, path: str = "auto") -> None:
    """Check that examples do not interact, that shapes fit and that labels name classes."""
    gradients.validate(model)
    inputs, targets = gradients.synthetic_like(*records.one(), n=PROBE_EXAMPLES)
    try:
        with torch.no_grad():
            outputs = call(model, inputs)
    except ReticentError:
        raise
    except Exception as error:
        shape = tuple(inputs.shape[1:]) if isinstance(inputs, torch.Tensor) else type(inputs)
        raise ModelError(
            f"{type(model).__name__} cannot take records of shape {shape}: {error}"
        ) from error
    _check_labels(outputs, loss_fn, records)
    gradients.isolation(model, loss_fn, inputs, targets)
    gradients.clipped_sum(model, loss_fn, inputs, targets, 1.0, path=path)


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
