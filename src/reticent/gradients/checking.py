"""Is it right for *this* model? Both paths against plain autograd, one example at a time.

`check` is for a user's own model and layers; `isolation` asks whether examples influence each
other, which no look at the layers can tell. Neither needs real records: see `synthetic_like`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from reticent.errors import ModelError, OptionError
from reticent.gradients import rounding
from reticent.gradients.batches import (
    batch_size,
    call,
    part,
    synthetic_like,
    tensors,
    trainable,
    unwrapped,
)
from reticent.gradients.engine import clipped_sum
from reticent.gradients.losses import LossFn
from reticent.gradients.validation import problems, validate

# not a seed anyone uses for their own data: the replacement must differ from what it replaces
PERTURBATION = 0x5E1F_1E55


@dataclass(frozen=True)
class Check:
    """What was found; `raise_if_wrong` turns it into an error."""

    path: str
    """The path that `path="auto"` takes for this model."""
    reason: str
    """Why that is not the fast path, if it is not."""
    largest_error: float
    """Largest difference from plain autograd, relative to the parameter's largest gradient."""
    wrong: tuple[str, ...] = field(default=())
    """One line per disagreement, the first one first."""

    @property
    def ok(self) -> bool:
        """Whether nothing disagreed."""
        return not self.wrong

    def raise_if_wrong(self) -> Check:
        """Raise `ModelError` with every disagreement, or return the report."""
        if self.wrong:
            raise ModelError(
                "per-example gradients are wrong for this model:\n"
                + "\n".join(f"- {line}" for line in self.wrong)
            )
        return self


def one_at_a_time(
    model: nn.Module, loss_fn: LossFn, inputs: Any, targets: Any
) -> tuple[dict[str, Tensor], Tensor]:
    """Per-example gradients {name: [B, *shape]} and losses by plain autograd: slow and certain."""
    parameters = trainable(model)
    rows: dict[str, list[Tensor]] = {name: [] for name in parameters}
    losses: list[Tensor] = []
    inner = unwrapped(model)
    with torch.enable_grad():
        for i in range(batch_size(inputs, targets)):
            output = call(inner, part(inputs, i, i + 1))
            loss = loss_fn(output, part(targets, i, i + 1)).sum()
            grads: tuple[Tensor | None, ...] = (None,) * len(parameters)
            if loss.requires_grad:
                grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            losses.append(loss.detach())
            for (name, parameter), grad in zip(parameters.items(), grads, strict=True):
                if grad is not None and grad.is_sparse:
                    grad = grad.to_dense()
                rows[name].append(torch.zeros_like(parameter) if grad is None else grad.detach())
    return {name: torch.stack(each) for name, each in rows.items()}, torch.stack(losses)


@contextmanager
def _steady(model: nn.Module, inputs: Any) -> Iterator[None]:
    """Runs that can be compared: full float32, evaluation mode if the output is random."""
    modes = {module: module.training for module in model.modules()}
    buffers = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    inner = unwrapped(model)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    try:
        with rounding.forbidden(device):
            with torch.no_grad():
                first, second = tensors(call(inner, inputs)), tensors(call(inner, inputs))
            if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
                model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        _restore(buffers)


def _restore(buffers: dict[Tensor, Tensor]) -> None:
    for buffer, value in buffers.items():
        buffer.detach().copy_(value)


def _learned_buffers(model: nn.Module, inputs: Any, others: Any) -> list[str]:
    """Buffers that the forward pass fills with something that depends on the records."""
    before = {buffer: buffer.detach().clone() for buffer in model.buffers()}
    after: list[dict[str, Tensor]] = []
    for batch in (inputs, others):
        with torch.no_grad():
            call(unwrapped(model), batch)
        after.append({name: b.detach().clone() for name, b in model.named_buffers()})
        _restore(before)
    return [
        f"buffer {name!r} takes up the records in the forward pass, outside the gradient, where "
        "no noise reaches it"
        for name, value in after[0].items()
        if not torch.allclose(value.double(), after[1][name].double(), equal_nan=True)
    ]


def check(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-6,
) -> Check:
    """Compare both paths with plain autograd on your model, and test that examples stay apart.

    Clipped sums are compared for a bound that clips about half the examples. `rtol` is relative to
    a parameter's largest gradient entry; the defaults suit float32. A model with dropout is
    compared in evaluation mode. Takes a few examples: the cost is one backward pass each.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> x, y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    >>> check(model, torch.nn.CrossEntropyLoss(), x, y).raise_if_wrong().path
    'fast'
    """
    validate(model)
    if batch_size(inputs, targets) < 2:
        raise OptionError("inputs", "fewer than 2 examples", "give at least 2")
    wrong: list[str] = []
    worst = 0.0
    with _steady(model, inputs):
        rows, _ = one_at_a_time(model, loss_fn, inputs, targets)
        norms = torch.stack([g.double().flatten(1).square().sum(1) for g in rows.values()])
        norms = norms.sum(0).sqrt()
        usable = norms[norms.isfinite() & (norms > 0)]
        bound = float(usable.median()) if usable.numel() else 1.0
        factors = torch.where(norms.isfinite(), (bound / norms).clamp(max=1.0), 0.0)
        auto = clipped_sum(model, loss_fn, inputs, targets, bound)
        results = [auto]
        if auto.path == "fast":
            results.append(clipped_sum(model, loss_fn, inputs, targets, bound, path="reference"))
        for result in results:
            expected_norms = torch.where(norms.isfinite(), norms, torch.inf)
            off = _difference(result.norms.double(), expected_norms)
            if off > atol + rtol * float(usable.max() if usable.numel() else 0.0):
                wrong.append(f"{result.path} path: norms differ by {off:.3g}")
            for name, grads in rows.items():
                kept = torch.where(
                    factors.view(-1, *(1 for _ in grads.shape[1:])) > 0, grads.double(), 0.0
                )
                expected = torch.tensordot(factors, kept, 1)
                scale = float(kept.abs().max())
                off = _difference(result.grads[name].double(), expected)
                worst = max(worst, off / scale if scale > 0 else off)
                if not off <= atol + rtol * scale * len(factors):
                    wrong.append(
                        f"{result.path} path: parameter {name!r} of {_owner(model, name)} differs "
                        f"by {off:.3g} (its largest entry is {scale:.3g})"
                    )
    wrong += _isolation_problems(model, loss_fn, inputs, targets, rtol, atol)
    return Check(auto.path, auto.reason, worst, tuple(wrong))


def _difference(a: Tensor, b: Tensor) -> float:
    """Largest absolute difference, infinities of the same sign being equal."""
    if a.numel() == 0:
        return 0.0
    return float(torch.where(a == b, 0.0, (a - b).abs()).nan_to_num(torch.inf, torch.inf).max())


def _owner(model: nn.Module, parameter: str) -> str:
    name = parameter.rpartition(".")[0]
    kind = type(model.get_submodule(name)).__name__
    return f"module {name!r} ({kind})" if name else f"the model itself ({kind})"


def isolation(
    model: nn.Module,
    loss_fn: LossFn,
    inputs: Any,
    targets: Any,
    *,
    rtol: float = 1e-3,
    atol: float = 1e-5,
) -> None:
    """Test that no example influences another; raises `ModelError` if one does.

    One example is replaced at a time: the outputs, losses and gradient norms of the others must not
    move, and every example alone must give what it gave in the batch. Finds what no list of layer
    types can: a module that subtracts the batch mean, or a layer that takes time for batch.

    >>> import torch
    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    >>> isolation(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), x, y)
    """
    found = problems(model) or _isolation_problems(model, loss_fn, inputs, targets, rtol, atol)
    if found:
        raise ModelError(
            "examples of a batch influence each other:\n" + "\n".join(f"- {line}" for line in found)
        )


def _isolation_problems(
    model: nn.Module, loss_fn: LossFn, inputs: Any, targets: Any, rtol: float, atol: float
) -> list[str]:
    size = batch_size(inputs, targets)
    if size < 2:
        raise OptionError("inputs", f"{size} examples", "give at least 2 to compare")
    inner = unwrapped(model)

    def outputs(x: Any) -> list[Tensor]:
        with torch.no_grad():
            return [leaf.detach() for leaf in tensors(call(inner, x))]

    def same(a: Tensor, b: Tensor) -> bool:
        return torch.allclose(a, b, rtol=rtol, atol=atol, equal_nan=True)

    others_x, others_y = synthetic_like(inputs, targets, size, seed=PERTURBATION)
    learned = _learned_buffers(model, inputs, others_x)
    if learned:
        return learned
    with _steady(model, inputs):
        base = outputs(inputs)
        for leaf in base:
            if leaf.ndim == 0 or leaf.shape[0] != size:
                return [
                    f"the model's output has shape {tuple(leaf.shape)}: its dimension 0 is not the "
                    f"{size} examples"
                ]
        for i in range(size):
            for whole, alone in zip(base, outputs(part(inputs, i, i + 1)), strict=True):
                if alone.shape[0] != 1 or not same(whole[i : i + 1], alone):
                    return [f"the output for example {i} is not what it is for that example alone"]
        norms = clipped_sum(model, loss_fn, inputs, targets, torch.inf)
        for j in range(min(size, 3)):
            changed_x = _with(inputs, others_x, j)
            changed_y = _with(targets, others_y, j)
            rest = [i for i in range(size) if i != j]
            for before, after in zip(base, outputs(changed_x), strict=True):
                if not same(before[rest], after[rest]):
                    return [f"changing example {j} changes the output for other examples"]
            moved = clipped_sum(model, loss_fn, changed_x, changed_y, torch.inf)
            if not same(norms.losses[rest], moved.losses[rest]):
                return [f"changing example {j} changes the losses of other examples"]
            if not same(norms.norms[rest], moved.norms[rest]):
                return [f"changing example {j} changes the gradients of other examples"]
    return []


def _with(tree: Any, others: Any, j: int) -> Any:
    """`tree` with example j replaced; integers go to their complement in {0, 1}."""

    def swap(leaf: Any, other: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        changed = leaf.clone()
        changed[j] = other[j] if leaf.is_floating_point() else (leaf[j] == 0).to(leaf.dtype)
        return changed

    return tree_map(swap, tree, others)
