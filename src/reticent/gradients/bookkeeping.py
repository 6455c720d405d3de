"""The fast path: book-keeping (Bu, Wang, Zha, Karypis 2023).

One forward; one backward to the layers' outputs; norms from inputs and output gradients; one
weighted contraction per layer and part of the batch. It never waits for the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError
from reticent.gradients.batches import batch_size, call, call_with, part, tensors, unwrapped
from reticent.gradients.losses import per_example_losses
from reticent.gradients.norms import operands, squared_norms
from reticent.gradients.plans import Plan, by_group, clip_factors, weighted
from reticent.gradients.recording import REENTRANT, Tape, Unit, recording
from reticent.gradients.rules.base import NoFastPathError, Use


def bookkeeping(
    plan: Plan, units: list[Unit], inputs: Any, targets: Any, valid: Tensor | None, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One microbatch by book-keeping: norms, losses, which are left out."""
    uses, losses = _record(plan, units, inputs, targets, valid)
    kind = losses.device.type
    with torch.no_grad(), torch.autocast(kind, enabled=False):
        names = {id(p): name for name, p in plan.parameters.items()}
        squared, floors = (
            by_group(plan, {names[key]: value for key, value in found.items()}, losses)
            for found in squared_norms(uses)
        )
        factors, norms, left_out = clip_factors(plan, squared, losses, valid, floors)
        while uses:
            _add(plan, uses.pop(), factors, names, start)
    return norms, losses, left_out


def _record(
    plan: Plan, units: list[Unit], inputs: Any, targets: Any, valid: Tensor | None
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


def _add(plan: Plan, use: Use, factors: list[Tensor], names: dict[int, str], start: int) -> None:
    """Add one use's clipped gradients to the sums."""
    groups: dict[int, list[str]] = {}
    parts = list(plan.parts(start, len(factors[0])))
    for role, target in use.targets.items():
        name = names[id(target.parameter)]
        if role in use.kept:
            kept = use.kept.pop(role)
            for sums, these in parts:
                total = weighted(kept[these], factors[plan.groups[name]][these])
                target.of(sums[name]).add_(total)
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
        for sums, these in parts:
            totals = use.rule.weighted_sum(use.module, x[these], g[these], roles)
            for role in roles:
                target = use.targets[role]
                target.of(sums[names[id(target.parameter)]]).add_(totals[role])


def _as(values: Tensor, like: Tensor) -> Tensor:
    """[B] as [B, 1, ..., 1]."""
    return values.view(-1, *(1 for _ in like.shape[1:]))
