"""The loss of each example: what `loss_fn` says of a batch that holds only that example.

For a mean-reduced loss this is the mean over the example's own elements, so `mean` and `sum` agree
wherever an example has one target. The usual losses are computed for the whole batch at once with
reduction "none"; any other is mapped over the examples with `torch.vmap`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss

from reticent.errors import ModelError, ReticentError
from reticent.gradients.batches import as_one, part, tensors, vmapped
from reticent.gradients.rules.base import NoFastPathError

LossFn = Callable[[Any, Any], Tensor]

_ELEMENTWISE: dict[Any, Callable[..., Tensor]] = {
    F.mse_loss: F.mse_loss,
    F.l1_loss: F.l1_loss,
    F.smooth_l1_loss: F.smooth_l1_loss,
    F.huber_loss: F.huber_loss,
    F.binary_cross_entropy: F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits: F.binary_cross_entropy_with_logits,
}


def per_example_losses(loss_fn: LossFn, outputs: Any, targets: Any) -> Tensor:
    """Losses [B] with their graph: `loss_fn(outputs[i:i+1], targets[i:i+1])`, summed, per i."""
    if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
        known = _known(loss_fn, outputs, targets)
        if known is not None:
            return known
    for leaf in tensors(outputs):
        if leaf.ndim == 0:
            raise ModelError(
                "the model returns a number without a batch dimension: return one output per "
                "example and leave the reduction to loss_fn"
            )

    def one(output: Any, target: Any) -> Tensor:
        return loss_fn(as_one(output), as_one(target)).sum()

    try:
        losses = vmapped(one, outputs, targets, randomness="different")
    except (NoFastPathError, ReticentError):
        raise
    except Exception as error:
        raise ModelError(_why_not(loss_fn, outputs, targets, error)) from error
    assert isinstance(losses, Tensor)
    return losses


def _why_not(loss_fn: LossFn, outputs: Any, targets: Any, mapped: Exception) -> str:
    """Why a loss cannot be computed example by example: for itself, or for being mapped."""
    try:
        loss_fn(part(outputs, 0, 1), part(targets, 0, 1))
    except Exception as error:
        hint = other_targets(loss_fn, outputs, targets)
        kinds = " and ".join(
            ", ".join(f"{tuple(leaf.shape[1:])} ({leaf.dtype})" for leaf in tensors(tree))
            for tree in (outputs, targets)
        )
        return (
            f"loss_fn {_name(loss_fn)} cannot take outputs and targets of shapes {kinds}: "
            f"{type(error).__name__}: {error}{hint and f'; {hint}'}"
        )
    return (
        f"loss_fn {_name(loss_fn)} cannot be computed example by example with torch.vmap "
        f"({type(mapped).__name__}: {mapped}). Use a loss without data-dependent control flow, "
        ".item() or writes to outside tensors, such as torch.nn.CrossEntropyLoss()."
    )


def of_torch(loss_fn: Any) -> bool:
    """Whether a loss is one of PyTorch's own, of outputs that are one tensor."""
    return isinstance(loss_fn, _Loss) or getattr(loss_fn, "__module__", "") == F.__name__


def other_targets(loss_fn: Any, outputs: Any, targets: Any) -> str:
    """What to do where a loss of PyTorch is given targets of another kind."""
    if not isinstance(targets, Tensor) or not isinstance(outputs, Tensor):
        return ""
    of_classes = (nn.CrossEntropyLoss, nn.NLLLoss)
    if isinstance(loss_fn, of_classes) or loss_fn in (F.cross_entropy, F.nll_loss):
        if targets.is_floating_point():
            return "it takes the number of a class, by .long(); torch.nn.MSELoss() takes quantities"
        return "" if targets.dtype == torch.long else "it takes numbers of classes as .long()"
    if of_torch(loss_fn) and not targets.is_floating_point():
        return "it takes targets of the outputs' type: .float()"
    if of_torch(loss_fn) and targets.shape != outputs.shape:
        return f"give each target the outputs' shape {tuple(outputs.shape[1:])}"
    return ""


def _name(loss_fn: LossFn) -> str:
    return getattr(loss_fn, "__name__", type(loss_fn).__name__)


def _known(loss_fn: LossFn, outputs: Tensor, targets: Tensor) -> Tensor | None:
    """Losses of the usual loss functions, or None."""
    kind = type(loss_fn)
    if isinstance(loss_fn, nn.CrossEntropyLoss) and kind is nn.CrossEntropyLoss:
        if targets.is_floating_point() or outputs.ndim < 2:
            if outputs.ndim < 2 or targets.shape != outputs.shape:
                return None
            each = F.cross_entropy(
                outputs,
                targets,
                loss_fn.weight,
                reduction="none",
                label_smoothing=loss_fn.label_smoothing,
            )
            return _reduced(each, loss_fn.reduction)
        each = F.cross_entropy(
            outputs,
            targets,
            loss_fn.weight,
            ignore_index=loss_fn.ignore_index,
            reduction="none",
            label_smoothing=loss_fn.label_smoothing,
        )
        return _by_class(each, targets, loss_fn.weight, loss_fn.ignore_index, loss_fn.reduction)
    if isinstance(loss_fn, nn.NLLLoss) and kind is nn.NLLLoss:
        if outputs.ndim < 2:
            return None
        each = F.nll_loss(
            outputs, targets, loss_fn.weight, ignore_index=loss_fn.ignore_index, reduction="none"
        )
        return _by_class(each, targets, loss_fn.weight, loss_fn.ignore_index, loss_fn.reduction)
    if loss_fn is F.cross_entropy or loss_fn is F.nll_loss:
        if outputs.ndim < 2 or targets.is_floating_point():
            return None
        each = loss_fn(outputs, targets, reduction="none")
        return _by_class(each, targets, None, -100, "mean")
    # Broadcasting outputs [B, 1] against targets [B] would pair every example with every other.
    if outputs.shape != targets.shape:
        return None
    each_of = _elementwise(loss_fn)
    if each_of is None:
        return None
    reduction = loss_fn.reduction if isinstance(loss_fn, nn.Module) else "mean"
    return _reduced(each_of(outputs, targets, reduction="none"), str(reduction))


def _elementwise(loss_fn: LossFn) -> Callable[..., Tensor] | None:
    """The function with a `reduction` argument behind an elementwise loss, or None."""
    kind = type(loss_fn)
    if kind is nn.MSELoss:
        return F.mse_loss
    if kind is nn.L1Loss:
        return F.l1_loss
    if isinstance(loss_fn, nn.SmoothL1Loss) and kind is nn.SmoothL1Loss:
        beta = loss_fn.beta
        return lambda o, t, reduction: F.smooth_l1_loss(o, t, reduction=reduction, beta=beta)
    if isinstance(loss_fn, nn.HuberLoss) and kind is nn.HuberLoss:
        delta = loss_fn.delta
        return lambda o, t, reduction: F.huber_loss(o, t, reduction=reduction, delta=delta)
    # weights may be shaped by batch or by feature: only the mapped loss knows which
    if isinstance(loss_fn, nn.BCELoss) and kind is nn.BCELoss and loss_fn.weight is None:
        return F.binary_cross_entropy
    if (
        isinstance(loss_fn, nn.BCEWithLogitsLoss)
        and kind is nn.BCEWithLogitsLoss
        and loss_fn.weight is None
        and loss_fn.pos_weight is None
    ):
        return F.binary_cross_entropy_with_logits
    try:
        return _ELEMENTWISE.get(loss_fn)
    except TypeError:  # an unhashable callable
        return None


def _reduced(each: Tensor, reduction: str) -> Tensor:
    """Mean or sum over each example's own elements."""
    if each.ndim == 1:
        return each
    flat = each.flatten(1)
    return flat.mean(1) if reduction == "mean" else flat.sum(1)


def _by_class(
    each: Tensor, targets: Tensor, weight: Tensor | None, ignored: int, reduction: str
) -> Tensor:
    """A mean over classes divides by the weights of the targets that count."""
    total = each.flatten(1).sum(1) if each.ndim > 1 else each
    if reduction != "mean":
        return total
    counted = targets != ignored
    if weight is None:
        share = counted.to(each.dtype)
    else:
        share = torch.where(counted, weight[torch.where(counted, targets, 0)], 0.0)
    return total / (share.flatten(1).sum(1) if share.ndim > 1 else share)
