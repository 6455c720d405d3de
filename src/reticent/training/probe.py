"""Refuse, before anything is spent, what cannot be trained privately.

The model is tried on made-up inputs of the records' shape and type, never on the records: whether
the probe passes says nothing about them.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reticent import gradients
from reticent.data.records import Records, TensorRecords
from reticent.errors import DataError, ModelError, OptionError, ProbeWarning
from reticent.gradients import rounding
from reticent.gradients.batches import call
from reticent.gradients.isolating import as_found, draws_apart
from reticent.gradients.losses import of_torch, other_targets, per_example_losses
from reticent.training.explaining import explained, other_precision, shape_of

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
    Warns of what would buy nothing: a loss that is not finite, or that parameters do not move.
    """
    _check_loss(loss_fn)
    gradients.validate(model)
    one = records.one()
    inputs, targets = gradients.synthetic_like(*one, n=PROBE_EXAMPLES[0])
    what = f"{type(model).__name__} cannot take records of shape {shape_of(inputs)}"
    with explained(what, other_precision(model, inputs)), torch.no_grad():
        outputs = call(model, inputs)
    _check_outputs(outputs, loss_fn)
    _check_labels(outputs, loss_fn, records)
    kinds = f"outputs of shape {shape_of(outputs)} and targets of shape {shape_of(targets)}"
    with explained(
        f"{_name(loss_fn)} cannot take {kinds}", other_targets(loss_fn, outputs, targets)
    ):
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
    _warn_of_nothing(model, loss_fn, inputs, targets)


def check_model(model: Any) -> None:
    """Refuse what is no module, such as the class of one."""
    if not isinstance(model, nn.Module):
        works = (
            f"is a class: make one of it, {model.__name__}(...)"
            if isinstance(model, type)
            else "must be a torch.nn.Module"
        )
        raise OptionError("model", model, works)


def _check_loss(loss_fn: Any) -> None:
    works = "must be a function of (outputs, targets), such as torch.nn.CrossEntropyLoss()"
    if isinstance(loss_fn, type):
        works = f"is a class: make one of it, {loss_fn.__name__}()"
    if isinstance(loss_fn, type) or not callable(loss_fn):
        raise OptionError("loss_fn", loss_fn, works)


def _check_outputs(outputs: Any, loss_fn: Any) -> None:
    """What PyTorch's own losses cannot learn from."""
    if not isinstance(outputs, Tensor):
        if of_torch(loss_fn):
            kind = type(outputs).__name__
            raise ModelError(
                f"the model returns a {kind}, which {_name(loss_fn)} cannot take: return the "
                "tensor of scores alone, such as its 'logits', or give a loss_fn that takes it"
            )
        return
    of_classes = isinstance(loss_fn, nn.CrossEntropyLoss) or loss_fn is F.cross_entropy
    if of_classes and outputs.ndim > 1 and outputs.shape[1] == 1:
        raise ModelError(
            "the model has one output, of which cross-entropy is 0 whatever it says: nothing would "
            "be learned. Give it an output for each class, loss_fn=torch.nn.BCEWithLogitsLoss() "
            "for two classes, or loss_fn=torch.nn.MSELoss() for a quantity"
        )


def _warn_of_nothing(model: nn.Module, loss_fn: Any, inputs: Any, targets: Any) -> None:
    """Whatever made-up records show of a budget that would buy nothing."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not named:  # said where the parameters are counted
        return
    with as_found(model), draws_apart(model), torch.enable_grad():
        losses = per_example_losses(loss_fn, call(model, inputs), targets)
        if not losses.requires_grad:
            raise ModelError(
                f"the loss ({_name(loss_fn)}) does not depend on what the model says: nothing "
                "would be learned"
            )
        found = torch.autograd.grad(losses.sum(), list(named.values()), allow_unused=True)
    unused = [name for name, grad in zip(named, found, strict=True) if grad is None]
    said = []
    if not bool(losses.isfinite().any()):
        said.append("the loss is not finite: records of which that is so are left out")
    elif not any(_moves(grad) for grad in found if grad is not None):
        said.append("no gradient is other than 0")
    if unused:
        said.append(
            f"the loss does not depend on {', '.join(map(repr, unused[:3]))}"
            f"{' and others' if len(unused) > 3 else ''}, which noise alone would move: switch "
            "requires_grad off, or use it"
        )
    if said:
        warnings.warn(f"on made-up records, {'; '.join(said)}", ProbeWarning, stacklevel=4)


def _moves(grad: Tensor) -> bool:
    """Whether a gradient is other than 0; that of an embedding may be sparse."""
    values = grad.coalesce().values() if grad.is_sparse else grad
    return bool(values.count_nonzero())


def _name(loss_fn: Any) -> str:
    return str(getattr(loss_fn, "__name__", type(loss_fn).__name__))


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
