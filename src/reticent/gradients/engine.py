"""`clipped_sum`: from a batch to the sum of its clipped per-example gradients.

The fast path is book-keeping (Bu, Wang, Zha, Karypis 2023, "Differentially private optimization on
large model at small cost"), in `bookkeeping.py`; the reference is `torch.func`, in `reference.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError, OptionError, one_of, whole
from reticent.gradients.batches import batch_size, part, trainable, unwrapped
from reticent.gradients.bookkeeping import bookkeeping
from reticent.gradients.clipping import Clipping, as_clipping, slack_for
from reticent.gradients.losses import LossFn
from reticent.gradients.plans import Plan, by_group, clip_factors, weighted
from reticent.gradients.recording import Unit, find_units
from reticent.gradients.reference import reference_gradients
from reticent.gradients.rules.base import NoFastPathError
from reticent.gradients.sums import ClippedSum, accumulators, sum_dtype, wide_room
from reticent.gradients.validation import validate


def clipped_sum(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    clip: float | Clipping,
    *,
    path: str = "auto",
    microbatch: int | None = None,
    mask: Tensor | None = None,
    least: Tensor | None = None,
    out: Tensor | None = None,
) -> ClippedSum:
    """Sum of the clipped per-example gradients of a batch.

    An example's gradient is that of `loss_fn(model(x[None]), y[None])`, summed if it is not a
    number; whether the loss averages or sums over a batch therefore makes no difference.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    >>> total = clipped_sum(model, torch.nn.CrossEntropyLoss(), x, y, clip=0.1)
    >>> total.sensitivity, total.path, bool(total.flat().norm() <= 0.4)
    (0.1, 'fast', True)

    Args:
        model: Called as `model(inputs)`, with `*inputs` for a tuple, `**inputs` for a dict.
        loss_fn: `loss_fn(outputs, targets)`.
        inputs: Tensors with the examples along dimension 0.
        targets: Likewise; anything `loss_fn` takes.
        clip: A bound, or a clipping style such as `PerLayer(1.0)`.
        path: "auto" takes the fast path where it can and the reference otherwise, and says so in
            `.path` and `.reason`; "fast" raises instead; "reference" uses `torch.func` throughout.
        microbatch: Largest number of examples handled at once; the result is the same.
        mask: [B]; 0 marks padding, which contributes nothing and is not counted.
        least: [B]; an example whose norm does not reach its number contributes nothing.
        out: A flat buffer, laid out like `model.named_parameters()`, to add the sums to; `.grads`
            are then views into it.

    Formal guarantees: each example contributes a vector of norm at most `.sensitivity` in the
    arithmetic used; an example whose loss or gradient is not finite contributes exactly zero; no
    trainable parameter is left out; the model's gradients, flags and mode are as before.

    | case                     | result                                               |
    |--------------------------|------------------------------------------------------|
    | no examples              | zeros, norms of shape [0], the model is not called   |
    | a parameter not used     | zeros                                                |
    | frozen parameters        | not in `.grads`                                      |
    | layers that mix examples | `ModelError` (see `validate`)                        |
    """
    return _clipped(
        model,
        loss_fn,
        inputs,
        targets,
        clip,
        path=path,
        microbatch=microbatch,
        mask=mask,
        out=[out],
        sizes=None,
        least=least,
    )[0]


def summed(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    clipping: Clipping,
    *,
    path: str,
    mask: Tensor,
    out: Tensor,
    bounds: Tensor,
    least: Tensor | None = None,
) -> ClippedSum:
    """`clipped_sum` with the bounds, slack taken off, as a tensor: for graphs that are replayed."""
    return _clipped(
        model,
        loss_fn,
        inputs,
        targets,
        clipping,
        path=path,
        microbatch=None,
        mask=mask,
        out=[out],
        sizes=None,
        bounds=bounds,
        least=least,
    )[0]


def clipped_sums(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    clip: float | Clipping,
    sizes: Sequence[int],
    *,
    path: str = "auto",
    microbatch: int | None = None,
    wide: bool = False,
) -> list[ClippedSum]:
    """Several sums from one pass: of the first `sizes[0]` examples, of the next `sizes[1]`, ...

    Each is what `clipped_sum` gives for its part, up to rounding: an example's gradient does not
    depend on what else is in the batch. Small models take about as long for all as for one. With
    `wide` they are in double precision.
    """
    if sum(sizes) != batch_size(inputs, targets):
        raise OptionError("sizes", list(sizes), f"must add up to {batch_size(inputs, targets)}")
    return _clipped(
        model,
        loss_fn,
        inputs,
        targets,
        clip,
        path=path,
        microbatch=microbatch,
        mask=None,
        out=[wide_room(trainable(model)) if wide else None for _ in sizes],
        sizes=list(sizes),
    )


def _clipped(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    clip: float | Clipping,
    *,
    path: str,
    microbatch: int | None,
    mask: Tensor | None,
    out: list[Tensor | None],
    sizes: list[int] | None,
    bounds: Tensor | None = None,
    least: Tensor | None = None,
) -> list[ClippedSum]:
    """The sums of consecutive parts of a batch, by default of all of it."""
    clipping = as_clipping(clip)
    one_of("path", path, ("auto", "fast", "reference"))
    if microbatch is not None:
        microbatch = whole("microbatch", microbatch)
    validate(model)
    parameters = trainable(model)
    if not parameters:
        raise ModelError("the model has no trainable parameters (requires_grad is False for all)")
    odd = [name for name, p in parameters.items() if not p.is_floating_point()]
    if odd:
        raise ModelError(f"parameter {odd[0]!r} is not a real floating-point number")
    owners = _owners(clipping, parameters)
    order = list(dict.fromkeys(owners.values()))
    numbers, dtype = bounds_of(clipping, parameters)
    device = next(iter(parameters.values())).device
    size = batch_size(inputs, targets)
    sizes = [size] if sizes is None else sizes
    plan = Plan(
        model=model,
        loss_fn=loss_fn,
        clipping=clipping,
        parameters=parameters,
        groups={name: order.index(owner) for name, owner in owners.items()},
        bounds=numbers if bounds is None else list(bounds.unbind()),
        sums=[accumulators(parameters, each) for each in out],
        ends=list(accumulate(sizes)),
        dtype=dtype,
        least=least,
    )
    for option, given in (("mask", mask), ("least", least)):
        if given is not None and tuple(given.shape) != (size,):
            raise OptionError(option, tuple(given.shape), f"must have shape ({size},)")
    if size == 0:
        empty = torch.zeros(0, dtype=dtype, device=device)
        none = torch.zeros((), dtype=torch.long, device=device)
        return [
            ClippedSum(sums, empty, clipping.sensitivity, none, empty, "empty")
            for sums in plan.sums
        ]

    units: list[Unit] | None = None
    taken, reason = "reference", ""
    if path != "reference":
        try:
            units, taken = find_units(unwrapped(model)), "fast"
        except NoFastPathError as error:
            reason = _refused(error, path)
    step = microbatch or size
    pieces: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, size, step):
        x, y = part(inputs, start, start + step), part(targets, start, start + step)
        valid = None if mask is None else mask[start : start + step] != 0
        if units is not None:
            try:
                pieces.append(bookkeeping(plan, units, x, y, valid, start))
                continue
            except NoFastPathError as error:
                reason = _refused(error, path)
                units, taken = None, "reference"
        pieces.append(_reference(plan, x, y, valid, start))
    norms, losses, left_out = (
        torch.cat(column) if len(column) > 1 else column[0] for column in zip(*pieces, strict=True)
    )
    return [
        ClippedSum(sums, n, clipping.sensitivity, lost.sum(), loss, taken, reason)
        for sums, n, loss, lost in zip(
            plan.sums, norms.split(sizes), losses.split(sizes), left_out.split(sizes), strict=True
        )
    ]


def _owners(clipping: Clipping, parameters: dict[str, Tensor]) -> dict[str, str]:
    """The group each parameter is clipped with, by the name of a module."""
    return {name: name.rpartition(".")[0] if clipping.grouped else "" for name in parameters}


def bounds_of(clipping: Clipping, parameters: dict[str, Tensor]) -> tuple[list[float], torch.dtype]:
    """The bounds of the groups, with room for rounding, and the type norms are computed in."""
    order = list(dict.fromkeys(_owners(clipping, parameters).values()))
    kinds = {(sum_dtype(p), p.device) for p in parameters.values()}
    dtype = max((dtype for dtype, _ in kinds), key=lambda d: torch.finfo(d).bits)
    slack = max(slack_for(dtype, device) for dtype, device in kinds)
    return [bound * (1 - slack) for bound in clipping.bounds_for(order)], dtype


def _refused(error: NoFastPathError, path: str) -> str:
    """The reason to fall back, unless the fast path was asked for by name."""
    if path == "fast":
        raise ModelError(
            f"the fast path cannot be taken. {error}. path='auto' falls back to the reference; "
            "reticent.gradients.register_rule teaches the fast path a new layer"
        ) from error
    return str(error)


def _reference(
    plan: Plan, inputs: Any, targets: Any, valid: Tensor | None, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One microbatch by the reference path: norms, losses, which are left out."""
    grads, losses = reference_gradients(plan.model, plan.loss_fn, inputs, targets)
    # what layers may be rounded to, norms and sums must not be
    with torch.no_grad(), torch.autocast(losses.device.type, enabled=False):
        wide = {name: grads.pop(name).to(plan.dtype) for name in list(grads)}
        rows = {name: grad.reshape(len(grad), -1) for name, grad in wide.items()}
        squared = by_group(plan, {n: row.square().sum(1) for n, row in rows.items()}, losses)
        least = plan.least_from(start, len(losses))
        factors, norms, left_out = clip_factors(plan, squared, losses, valid, least=least)
        for sums, these in plan.parts(start, len(losses)):
            for name, row in rows.items():
                total = weighted(row[these], factors[plan.groups[name]][these])
                sums[name].add_(total.view(sums[name].shape))
    return norms, losses, left_out
