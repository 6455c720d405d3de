"""Plain autograd, one example at a time: what everything else is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reticent.gradients import Clipping, Flat, clipped_sum

# For the tight comparison and for the precision people train in.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 3e-4}


def pick(tree: Any, i: int) -> Any:
    if isinstance(tree, Mapping):
        return {k: pick(v, i) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        return tuple(pick(v, i) for v in tree)
    return tree[i : i + 1]


def run(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def gradients(model: nn.Module, loss_fn: Any, inputs: Any, targets: Any) -> dict[str, Tensor]:
    """{name: [B, *shape]}."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    first = inputs
    while not isinstance(first, Tensor):
        first = next(iter(first.values() if isinstance(first, Mapping) else first))
    rows: dict[str, list[Tensor]] = {n: [] for n in parameters}
    for i in range(first.shape[0]):
        loss = loss_fn(run(model, pick(inputs, i)), pick(targets, i)).sum()
        grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        for (name, p), grad in zip(parameters.items(), grads, strict=True):
            rows[name].append(torch.zeros_like(p) if grad is None else grad)
    return {
        n: torch.stack(each) if each else parameters[n].new_zeros(0, *parameters[n].shape)
        for n, each in rows.items()
    }


def norms_of(rows: Mapping[str, Tensor]) -> Tensor:
    return torch.stack([g.double().flatten(1).square().sum(1) for g in rows.values()]).sum(0).sqrt()


def flat_sum(rows: Mapping[str, Tensor], bound: float) -> dict[str, Tensor]:
    """Clip the whole gradient of each example and add up, in double precision."""
    factors = (bound / norms_of(rows)).clamp(max=1.0)
    return {n: torch.tensordot(factors, g.double(), 1) for n, g in rows.items()}


def close(actual: Tensor, expected: Tensor, tolerance: float, what: str = "") -> None:
    assert actual.shape == expected.shape, f"{what}: {actual.shape} is not {expected.shape}"
    if actual.numel() == 0:
        return
    scale = float(expected.abs().max())
    error = float((actual.double() - expected.double()).abs().max())
    # what is left when terms of size 1 cancel is rounding, not signal
    assert error <= tolerance * scale + 1e-6 * tolerance, (
        f"{what}: off by {error:.3g}, scale {scale:.3g}"
    )


def agrees(
    model: nn.Module,
    loss_fn: Any,
    inputs: Any,
    targets: Any,
    *,
    bound: float | None = None,
    paths: tuple[str, ...] = ("fast", "reference"),
    tolerance: float | None = None,
    **options: Any,
) -> None:
    """Both paths give the oracle's norms and clipped sum, and leave the model as it was."""
    dtype = next(p.dtype for p in model.parameters())
    tolerance = tolerance or TOLERANCE[dtype]
    rows = gradients(model, loss_fn, inputs, targets)
    norms = norms_of(rows)
    if bound is None:
        bound = float(norms.median()) if norms.numel() else 1.0
        bound = bound or 1.0
    expected = flat_sum(rows, bound)
    before = snapshot(model)
    for path in paths:
        result = clipped_sum(model, loss_fn, inputs, targets, bound, path=path, **options)
        assert result.path in (path, "empty")
        assert result.sensitivity == bound
        assert list(result.grads) == list(rows)
        close(result.norms, norms, tolerance, f"{path} norms")
        for name, value in expected.items():
            close(result.grads[name], value, tolerance, f"{path} {name}")
        assert int(result.nonfinite) == 0
    unchanged(model, before)


def snapshot(model: nn.Module) -> list[Any]:
    return [
        [(n, p, p.requires_grad, p.grad, p.detach().clone()) for n, p in model.named_parameters()],
        [(n, b) for n, b in model.named_buffers()],
        [(m, m.training, sorted(vars(m)), len(m._forward_hooks)) for m in model.modules()],
    ]


def unchanged(model: nn.Module, before: list[Any]) -> None:
    """Flags, gradients, values, modes and attributes are exactly as found."""
    after = snapshot(model)
    for old, new in zip(before[0], after[0], strict=True):
        assert old[0] == new[0]
        assert old[1] is new[1], f"{old[0]} is another tensor than before"
        assert type(new[1]) is nn.Parameter
        assert old[2] == new[2]
        assert old[3] is new[3]
        assert torch.equal(old[4], new[4])
    for (_, old), (_, new) in zip(before[1], after[1], strict=True):
        assert old is new
    assert before[2] == after[2]


def contribution(
    model: nn.Module, loss_fn: Any, inputs: Any, targets: Any, clip: float | Clipping, i: int
) -> float:
    """Exact length of what example i adds, from the float32 sum of it alone."""
    style = clip if isinstance(clip, Clipping) else Flat(clip)
    result = clipped_sum(model, loss_fn, pick(inputs, i), pick(targets, i), style)
    return float(result.flat().double().norm())
