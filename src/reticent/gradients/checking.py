"""Is it right for *this* model? Both paths against plain autograd, one example at a time.

`check` is for a user's own model and layers. It needs no real records: see `synthetic_like`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from reticent.errors import ModelError, OptionError
from reticent.gradients import rounding
from reticent.gradients.batches import (
    batch_size,
    call,
    part,
    tensors,
    trainable,
    unwrapped,
)
from reticent.gradients.engine import clipped_sum
from reticent.gradients.isolating import as_found, device_of, isolation_problems
from reticent.gradients.losses import LossFn
from reticent.gradients.validation import validate


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
    inner = unwrapped(model)
    with as_found(model), rounding.forbidden(device_of(model)):
        with torch.no_grad():
            first, second = tensors(call(inner, inputs)), tensors(call(inner, inputs))
        if not all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
            model.eval()
        yield


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
    wrong += isolation_problems(model, loss_fn, inputs, targets, rtol, atol)
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
