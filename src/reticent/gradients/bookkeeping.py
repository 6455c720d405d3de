"""The fast path: book-keeping (Bu, Wang, Zha, Karypis 2023).

One forward; one backward to the layers' outputs; norms from inputs and output gradients; one
weighted contraction per layer and part of the batch. It never waits for the device.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError
from reticent.gradients.batches import batch_size, call, call_with, part, tensors, unwrapped
from reticent.gradients.losses import per_example_losses
from reticent.gradients.norms import squared_norms
from reticent.gradients.plans import Plan, by_group, clip_factors, weighted
from reticent.gradients.recording import REENTRANT, Tape, Unit, recording
from reticent.gradients.rules.base import NoFastPathError, Target, Use
from reticent.gradients.rules.lengths import squares

# Written-out gradients of up to so many numbers are handled together.
SMALL = 1024


def bookkeeping(
    plan: Plan, units: list[Unit], inputs: Any, targets: Any, valid: Tensor | None, start: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One microbatch by book-keeping: norms, losses, which are left out."""
    uses, losses = _record(plan, units, inputs, targets, valid)
    kind = losses.device.type
    with torch.no_grad(), torch.autocast(kind, enabled=False):
        names = {id(p): name for name, p in plan.parameters.items()}
        joined = _joined(plan, uses, names)
        squared, floors = (
            by_group(plan, {names[key]: value for key, value in found.items()}, losses)
            for found in squared_norms(uses)
        )
        for group, (rows, _) in joined.items():
            squared[group] = squared[group] + squares(rows).to(plan.dtype)
        least = plan.least_from(start, len(losses))
        factors, norms, left_out = clip_factors(plan, squared, losses, valid, floors, least)
        _add_joined(plan, joined, factors, start)
        theirs = _storages(plan, inputs, targets)
        while uses:
            _add(plan, uses.pop(), factors, names, theirs, start)
    return norms, losses, left_out


def _record(
    plan: Plan, units: list[Unit], inputs: Any, targets: Any, valid: Tensor | None
) -> tuple[list[Use], Tensor]:
    """Forward and backward; the uses with their output gradients, and the losses."""
    size = batch_size(inputs, targets)
    tape = Tape(size)
    model = unwrapped(plan.model)
    with torch.enable_grad(), recording(units, tape):
        outputs = call(model, inputs)
        ambiguous = _ambiguous(size, tape, outputs)
        losses = per_example_losses(plan.loss_fn, outputs, targets)
        counted = losses if valid is None else torch.where(valid, losses, 0.0)
        stray: list[str] = []
        tape.check_unchanged()
        if counted.requires_grad:
            tape.begin_backward()
            leaves = _leaves(counted)
            stray = [n for n, p in plan.parameters.items() if id(p) in leaves]
            try:
                torch.autograd.grad(counted.sum(), list(leaves.values()), allow_unused=True)
            except RuntimeError as error:
                if "use_reentrant" in str(error):
                    where = ", ".join(sorted(tape.asleep)) or "a module"
                    raise ModelError(REENTRANT.format(where)) from error
                raise
    if ambiguous:
        _probe(model, units, inputs, len(tape.uses))
    for name in stray:
        raise NoFastPathError(f"parameter {name!r} is also used outside the module that owns it")
    for use in tape.uses:
        if use.parts:
            like = next(iter(use.parts.values()))
            found = [use.parts.get(number) for number in range(use.places)]
            use.g = torch.stack([torch.zeros_like(like) if g is None else g for g in found], 1)
            use.parts = {}
    return [use for use in tape.uses if use.g is not None], losses.detach()


def _leaves(losses: Tensor) -> dict[int, Tensor]:
    """What the backward pass must go back to, so that it passes every layer on the way, by `id`.

    Not parameters alone: these are hidden. A layer's output depends on the tape's seeds, or on a
    tensor that requires grad and is no parameter.
    """
    leaves: dict[int, Tensor] = {}
    seen: set[Any] = set()
    ahead: list[Any] = [losses.grad_fn]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None:
            leaves[id(leaf)] = leaf
        ahead.extend(before for before, _ in node.next_functions)
    return leaves


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


def _joined(
    plan: Plan, uses: list[Use], names: dict[int, str]
) -> dict[int, tuple[Tensor, list[tuple[str, Target]]]]:
    """Small written-out gradients of a group side by side, [B, numbers]: one thing, not dozens."""
    found: dict[int, list[tuple[str, Target, Tensor]]] = defaultdict(list)
    for use in uses:
        for role in [r for r in use.kept if use.alone and use.numel(r) <= SMALL]:
            name = names[id(use.targets[role].parameter)]
            grad = use.kept.pop(role).flatten(1)
            found[plan.groups[name]].append((name, use.targets.pop(role), grad))
    return {
        group: (torch.cat([grad for *_, grad in each], 1), [(n, t) for n, t, _ in each])
        for group, each in found.items()
    }


def _add_joined(
    plan: Plan,
    joined: dict[int, tuple[Tensor, list[tuple[str, Target]]]],
    factors: list[Tensor],
    start: int,
) -> None:
    """Add their clipped sums."""
    for group, (rows, owners) in joined.items():
        for sums, these in plan.parts(start, len(rows)):
            total = weighted(rows[these], factors[group][these])
            places = [target.of(sums[name]) for name, target in owners]
            parts = total.split([place.numel() for place in places])
            shaped = [part.view(place.shape) for part, place in zip(parts, places, strict=True)]
            torch._foreach_add_(places, shaped)


def _add(
    plan: Plan,
    use: Use,
    factors: list[Tensor],
    names: dict[int, str],
    theirs: set[int],
    start: int,
) -> None:
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
        x, g = use.operands()
        ours = not {x.untyped_storage().data_ptr(), g.untyped_storage().data_ptr()} & theirs
        x, g = use.rule.prepared(use.module, x, g, factors[group].to(g.dtype), roles, ours)
        for sums, these in parts:
            totals = use.rule.weighted_sum(use.module, x[these], g[these], roles)
            for role in roles:
                target = use.targets[role]
                target.of(sums[names[id(target.parameter)]]).add_(totals[role])


def _storages(plan: Plan, inputs: Any, targets: Any) -> set[int]:
    """Memory that is not ours to write to."""
    held = [*plan.model.parameters(), *plan.model.buffers()]
    return {t.untyped_storage().data_ptr() for t in (*held, *tensors((inputs, targets)))}
