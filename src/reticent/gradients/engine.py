"""`clipped_sum`: from a batch to the sum of its clipped per-example gradients.

The fast path is book-keeping (Bu, Wang, Zha, Karypis 2023, "Differentially private optimization on
large model at small cost"): one forward; one backward to the layers' outputs; norms from inputs and
output gradients; one weighted contraction per layer. It never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError, OptionError, one_of, whole
from reticent.gradients.batches import (
    batch_size,
    call,
    call_with,
    part,
    tensors,
    trainable,
    unwrapped,
)
from reticent.gradients.clipping import Clipping, as_clipping, slack_for
from reticent.gradients.losses import LossFn, per_example_losses
from reticent.gradients.norms import operands, squared_norms
from reticent.gradients.recording import REENTRANT, Tape, Unit, find_units, recording
from reticent.gradients.reference import reference_gradients
from reticent.gradients.rules.base import NoFastPathError, Use
from reticent.gradients.sums import ClippedSum, accumulators, sum_dtype
from reticent.gradients.validation import validate


@dataclass(frozen=True, eq=False)
class _Plan:
    """What stays the same from one microbatch to the next."""

    model: nn.Module
    loss_fn: LossFn
    clipping: Clipping
    parameters: dict[str, Tensor]
    groups: dict[str, int]  # group number of each parameter
    bounds: list[float]
    sums: dict[str, Tensor]
    dtype: torch.dtype


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
    owners = {name: name.rpartition(".")[0] if clipping.grouped else "" for name in parameters}
    order = list(dict.fromkeys(owners.values()))
    dtype = max((sum_dtype(p) for p in parameters.values()), key=lambda d: torch.finfo(d).bits)
    device = next(iter(parameters.values())).device
    slack = max(slack_for(sum_dtype(p), p.device) for p in parameters.values())
    plan = _Plan(
        model=model,
        loss_fn=loss_fn,
        clipping=clipping,
        parameters=parameters,
        groups={name: order.index(owner) for name, owner in owners.items()},
        bounds=[bound * (1 - slack) for bound in clipping.bounds_for(order)],
        sums=accumulators(parameters, out),
        dtype=dtype,
    )
    size = batch_size(inputs, targets)
    if mask is not None and tuple(mask.shape) != (size,):
        raise OptionError("mask", tuple(mask.shape), f"must have shape ({size},)")
    if size == 0:
        empty = torch.zeros(0, dtype=dtype, device=device)
        none = torch.zeros((), dtype=torch.long, device=device)
        return ClippedSum(plan.sums, empty, clipping.sensitivity, none, empty, "empty")

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
                pieces.append(_fast(plan, units, x, y, valid))
                continue
            except NoFastPathError as error:
                reason = _refused(error, path)
                units, taken = None, "reference"
        pieces.append(_reference(plan, x, y, valid))
    norms, losses, nonfinite = (list(column) for column in zip(*pieces, strict=True))
    return ClippedSum(
        grads=plan.sums,
        norms=torch.cat(norms) if len(norms) > 1 else norms[0],
        sensitivity=clipping.sensitivity,
        nonfinite=torch.stack(nonfinite).sum() if len(nonfinite) > 1 else nonfinite[0],
        losses=torch.cat(losses) if len(losses) > 1 else losses[0],
        path=taken,
        reason=reason,
    )


def _refused(error: NoFastPathError, path: str) -> str:
    """The reason to fall back, unless the fast path was asked for by name."""
    if path == "fast":
        raise ModelError(
            f"the fast path cannot be taken. {error}. path='auto' falls back to the reference; "
            "reticent.gradients.register_rule teaches the fast path a new layer"
        ) from error
    return str(error)


def _factors(
    plan: _Plan,
    squared: list[Tensor],
    losses: Tensor,
    valid: Tensor | None,
    floors: list[Tensor] | None = None,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Factors [B] of each group (0 for examples left out), norms [B], how many are left out.

    A squared norm below its floor counts as the floor.
    """
    total = squared[0] if len(squared) == 1 else torch.stack(squared).sum(0)
    if floors is not None:
        squared = [torch.maximum(s, f) for s, f in zip(squared, floors, strict=True)]
    finite = torch.stack(squared).isfinite().all(0) & total.isfinite() & losses.isfinite()
    keep = finite if valid is None else finite & valid
    norms = torch.where(finite, total, torch.inf).sqrt()
    left_out = ~finite
    if valid is not None:
        norms, left_out = torch.where(valid, norms, 0.0), left_out & valid
    factors = [
        torch.where(keep, plan.clipping.factors(part_.sqrt(), bound), 0.0)
        for part_, bound in zip(squared, plan.bounds, strict=True)
    ]
    return factors, norms, left_out.sum()


def _reference(
    plan: _Plan, inputs: Any, targets: Any, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One microbatch by the reference path: norms, losses, number left out."""
    grads, losses = reference_gradients(plan.model, plan.loss_fn, inputs, targets)
    with torch.no_grad():
        wide = {name: grads.pop(name).to(plan.dtype) for name in list(grads)}
        squared = _by_group(
            plan, {n: g.flatten(1).square().sum(1) for n, g in wide.items()}, losses
        )
        factors, norms, left_out = _factors(plan, squared, losses, valid)
        for name, grad in wide.items():
            plan.sums[name].add_(_weighted(grad, factors[plan.groups[name]]))
    return norms, losses, left_out


def _by_group(plan: _Plan, norms: dict[str, Tensor], losses: Tensor) -> list[Tensor]:
    """Squared norms [B] of each group."""
    found: list[list[Tensor]] = [[] for _ in plan.bounds]
    for name, norm in norms.items():
        found[plan.groups[name]].append(norm.to(plan.dtype))
    zero = torch.zeros(losses.shape[0], dtype=plan.dtype, device=losses.device)
    return [torch.stack(each).sum(0) if each else zero for each in found]


def _weighted(grads: Tensor, factors: Tensor) -> Tensor:
    """Σ_b factor_b grads_b; a factor of 0 silences even NaN."""
    flat = grads.flatten(1)
    muted = torch.where((factors > 0).unsqueeze(1), flat, 0.0)
    return (factors.to(flat.dtype) @ muted).view(grads.shape[1:])


def _fast(
    plan: _Plan, units: list[Unit], inputs: Any, targets: Any, valid: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """One microbatch by book-keeping: norms, losses, number left out."""
    uses, losses = _record(plan, units, inputs, targets, valid)
    kind = losses.device.type
    with torch.no_grad(), torch.autocast(kind, enabled=False):
        names = {id(p): name for name, p in plan.parameters.items()}
        squared, floors = (
            _by_group(plan, {names[key]: value for key, value in found.items()}, losses)
            for found in squared_norms(uses)
        )
        factors, norms, left_out = _factors(plan, squared, losses, valid, floors)
        while uses:
            _add(plan, uses.pop(), factors, names)
    return norms, losses, left_out


def _record(
    plan: _Plan, units: list[Unit], inputs: Any, targets: Any, valid: Tensor | None
) -> tuple[list[Use], Tensor]:
    """Forward and backward; the uses with their output gradients, and the losses."""
    size = batch_size(inputs, targets)
    tape = Tape(size)
    model = unwrapped(plan.model)
    parameters = list(plan.parameters.values())
    with torch.enable_grad(), recording(units, tape):
        outputs = call(model, inputs)
        ambiguous = _ambiguous(size, tape, outputs)
        losses = per_example_losses(plan.loss_fn, outputs, targets)
        counted = losses if valid is None else torch.where(valid, losses, 0.0)
        edges = [edge for use in tape.uses for edge in use.edges]
        places: list[Any] = [*edges, *parameters]
        grads: list[Tensor | None] = [None] * len(places)
        tape.check_unchanged()
        if counted.requires_grad:
            tape.backward = True
            try:
                grads = list(torch.autograd.grad(counted.sum(), places, allow_unused=True))
            except RuntimeError as error:
                if "use_reentrant" in str(error):
                    where = ", ".join(sorted(tape.asleep)) or "a module"
                    raise ModelError(REENTRANT.format(where)) from error
                raise
    if ambiguous:
        _probe(model, units, inputs, len(tape.uses))
    for name, grad in zip(plan.parameters, grads[len(edges) :], strict=True):
        if grad is not None:
            raise NoFastPathError(
                f"parameter {name!r} is also used outside the module that owns it"
            )
    uses: list[Use] = []
    rest = iter(grads)
    for use in tape.uses:
        mine = [next(rest) for _ in use.edges]
        if all(grad is None for grad in mine):
            continue
        if len(mine) == 1:
            use.g = mine[0]
        else:
            like = next(grad for grad in mine if grad is not None)
            use.g = torch.stack([torch.zeros_like(like) if g is None else g for g in mine], 1)
        use.edges = ()
        uses.append(use)
    return uses, losses.detach()


def _ambiguous(size: int, tape: Tape, outputs: Any) -> bool:
    """Whether another dimension could be taken for the batch, as when time and batch are equal."""
    others = [n for sizes in tape.sizes for n in sizes]
    others += [n for leaf in tensors(outputs) for n in leaf.shape[1:]]
    return size > 1 and any(n % size == 0 for n in others)


def _probe(model: nn.Module, units: list[Unit], inputs: Any, uses: int) -> None:
    """Run one example alone: dimension 0 must follow wherever it is recorded.

    A layer fed [time, batch, width] looks right on the day both are 32. Poisson batches have
    every size sooner or later, so this is checked whenever it could happen.
    """
    tape = Tape(1)
    buffers = {b: b.detach().clone() for b in model.buffers()}
    with torch.enable_grad(), recording(units, tape):
        outputs = call(
            lambda *args, **kwargs: call_with(model, buffers, args, kwargs),
            part(inputs, 0, 1),
        )
    if len(tape.uses) != uses or any(t.ndim == 0 or t.shape[0] != 1 for t in tensors(outputs)):
        raise NoFastPathError("the model does not keep the examples along dimension 0")


def _add(plan: _Plan, use: Use, factors: list[Tensor], names: dict[int, str]) -> None:
    """Add one use's clipped gradients to the sums."""
    groups: dict[int, list[str]] = {}
    for role, target in use.targets.items():
        name = names[id(target.parameter)]
        if role in use.kept:
            total = _weighted(use.kept.pop(role), factors[plan.groups[name]])
            target.of(plan.sums[name]).add_(total)
        else:
            groups.setdefault(plan.groups[name], []).append(role)
    for group, roles in groups.items():
        x, g = operands(use)
        factor = factors[group].to(g.dtype)
        keep = factor > 0
        # multiplying by a factor of 0 would leave NaN; both operands of the product are cleaned
        g = torch.where(_as(keep, g), g * _as(factor, g), 0.0)
        if x.is_floating_point():
            x = torch.where(_as(keep, x), x, 0.0)
        totals = use.rule.weighted_sum(use.module, x, g, roles)
        for role in roles:
            target = use.targets[role]
            target.of(plan.sums[names[id(target.parameter)]]).add_(totals[role])


def _as(values: Tensor, like: Tensor) -> Tensor:
    """[B] as [B, 1, ..., 1]."""
    return values.view(-1, *(1 for _ in like.shape[1:]))
