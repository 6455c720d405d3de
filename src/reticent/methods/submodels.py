"""Several models of one architecture, as rows of one tensor: their gradients and posteriors.

For methods without a guarantee that train helpers of the model that is released. The helpers are as
private as the records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from reticent.gradients import synthetic_like
from reticent.gradients.batches import arguments, call_with, unwrapped
from reticent.gradients.losses import per_example_losses
from reticent.gradients.modes import evaluated
from reticent.methods.passes import computing

if TYPE_CHECKING:
    from reticent.training.run import Run

# Up to which share of a gradient's length two ways of computing it may differ by rounding.
TOLERANCE = 1e-3


def _by_name(run: Run, values: Tensor) -> dict[str, Tensor]:
    """Rows [K, P], or one of them [P], as {name: [K, *shape]}, views."""
    parameters = run.state.parameters
    return {
        name: values[..., span].view(*values.shape[:-1], *parameters.named[name].shape)
        for name, span in parameters.spans.items()
    }


def _call(run: Run, values: dict[str, Tensor], inputs: Any) -> Any:
    """The model with one row's values for its parameters."""
    named = run.state.parameters.named
    placed: dict[Tensor, Tensor] = {named[name]: value for name, value in values.items()}
    return call_with(unwrapped(run.model), placed, *arguments(inputs))


def _row_gradient(run: Run) -> Callable[..., dict[str, Tensor]]:
    """The gradient of one row's summed loss, by name."""

    def total(values: dict[str, Tensor], inputs: Any, targets: Any) -> Tensor:
        return per_example_losses(run.loss_fn, _call(run, values, inputs), targets).sum()

    found: Callable[..., dict[str, Tensor]] = grad(total)
    return found


def _gradients(run: Run, rows: Tensor, inputs: Any, targets: Any, mapped: bool) -> Tensor:
    """Sums of gradients [K, P], each row's over its own examples [K, M, ...]."""
    one = _row_gradient(run)
    if mapped:
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no batching rule
            each = torch.vmap(one, randomness="different")(_by_name(run, rows), inputs, targets)
        return torch.cat([part.reshape(len(rows), -1) for part in each.values()], 1)
    found = []
    for k, row in enumerate(rows):
        x, y = tree_map(lambda leaf, k=k: leaf[k], (inputs, targets))
        parts = one(_by_name(run, row), x, y)
        found.append(torch.cat([part.reshape(-1) for part in parts.values()]))
    return torch.stack(found)


def mean_gradients(
    run: Run, rows: Tensor, batches: Tensor, *, mapped: bool, stream: str = "model"
) -> Tensor:
    """The gradients [K, P] of each row's mean loss over its own records, in pieces.

    Args:
        run: The training whose model, loss and records are meant.
        rows: Parameters [K, P], laid out as the model's own.
        batches: Positions of the records [K, B].
        mapped: All rows at once, a piece having `microbatch` records of all of them together; or
            one after the other. See `can_be_mapped`.
        stream: Which coins dropout draws from.
    """
    piece = max(run.microbatch // len(rows), 1) if mapped else run.microbatch
    total = torch.zeros_like(rows)
    for number, some in enumerate(batches.split(piece, 1)):
        inputs, targets = tree_map(
            lambda leaf, some=some: leaf.unflatten(0, some.shape), run.fetch(some.reshape(-1))
        )
        with computing(run, stream, number):
            total += _gradients(run, rows, inputs, targets, mapped)
    return total / batches.shape[1]


def can_be_mapped(run: Run, rows: Tensor) -> bool:
    """Whether the model computes the same when it is mapped over rows; tried on made-up records.

    Recurrent layers are not asked: mapped, they fail or go one by one anyway, with warnings.
    """
    if any(isinstance(module, nn.RNNBase) for module in run.model.modules()):
        return False
    made_up = synthetic_like(*run.records.one(), n=3)
    few = rows[:2]
    x, y = tree_map(lambda leaf: leaf.unsqueeze(0).expand(len(few), *leaf.shape), made_up)
    with evaluated(run.model), computing(run, "whether models can be mapped"):
        apart = _gradients(run, few, x, y, False)
        try:
            at_once = _gradients(run, few, x, y, True)
        except Exception:  # what vmap cannot do; a model that is at fault failed above
            return False
    return bool((at_once - apart).norm() <= TOLERANCE * apart.norm())


@torch.no_grad()
def row_posteriors(run: Run, row: Tensor, indices: Tensor, classes: int, stream: str) -> Tensor:
    """What the evaluated model with one row's parameters says of these records, [m, classes]."""
    values = _by_name(run, row)
    found = [torch.zeros((0, classes), device=run.device)]
    for number, piece in enumerate(indices.split(run.microbatch) if len(indices) else ()):
        inputs, _ = run.fetch(piece)
        with evaluated(run.model), computing(run, stream, number):
            found.append(_call(run, values, inputs).float().softmax(1))
    return torch.cat(found)
