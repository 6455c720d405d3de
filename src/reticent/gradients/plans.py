"""What one call of the engine works with, and the steps that both of its paths share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from reticent.gradients import kernels
from reticent.gradients.clipping import Clipping
from reticent.gradients.losses import LossFn
from reticent.gradients.rules.base import all_known
from reticent.gradients.rules.lengths import in_memory

# Rows of so many numbers are added up in double precision; of longer ones so many at once.
SHORT, FEW = 1024, 16


@dataclass(frozen=True, eq=False)
class Plan:
    """What stays the same from one microbatch to the next."""

    model: nn.Module
    loss_fn: LossFn
    clipping: Clipping
    parameters: dict[str, Tensor]
    groups: dict[str, int]  # group number of each parameter
    bounds: Sequence[float | Tensor]  # of each group, with room for rounding
    sums: list[dict[str, Tensor]]  # of each part
    ends: list[int]  # where the parts of the batch end
    dtype: torch.dtype
    least: Tensor | None = None  # [B] norms that examples must reach to take part

    def least_from(self, start: int, size: int) -> Tensor | None:
        """Those of `size` examples from `start` on."""
        return None if self.least is None else self.least[start : start + size]

    def parts(self, start: int, size: int) -> Iterator[tuple[dict[str, Tensor], slice]]:
        """The sums that examples from `start` on belong to, and which of these examples do."""
        begin = 0
        for sums, end in zip(self.sums, self.ends, strict=True):
            low, high = max(begin - start, 0), min(end - start, size)
            if low < high:
                yield sums, slice(low, high)
            begin = end


def clip_factors(
    plan: Plan,
    squared: list[Tensor],
    losses: Tensor,
    valid: Tensor | None,
    floors: list[Tensor] | None = None,
    least: Tensor | None = None,
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Factors [B] of each group (0 for examples left out), norms [B], which are left out.

    A squared norm below its floor counts as the floor. Examples whose norm does not reach `least`
    have a factor of 0 too.
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
    if least is not None:
        keep = keep & (norms >= least)
    factors = [
        torch.where(keep, plan.clipping.factors(part_.sqrt(), bound), 0.0)
        for part_, bound in zip(squared, plan.bounds, strict=True)
    ]
    return factors, norms, left_out


def by_group(plan: Plan, norms: dict[str, Tensor], losses: Tensor) -> list[Tensor]:
    """Squared norms [B] of each group."""
    found: list[list[Tensor]] = [[] for _ in plan.bounds]
    for name, norm in norms.items():
        found[plan.groups[name]].append(norm.to(plan.dtype))
    zero = torch.zeros(losses.shape[0], dtype=plan.dtype, device=losses.device)
    return [torch.stack(each).sum(0) if each else zero for each in found]


def added_up(factors: Tensor, rows: Tensor) -> Tensor:
    """Σ_b factors_b rows_b of [..., B] and [..., B, P], so that rounding hardly grows with B.

    A record more rounds the sum of all others anew, and no clip bounds that: short rows are added
    up in double precision, long ones on a CPU by few in single precision and then in double.
    """
    if rows.shape[-1] <= SHORT:
        return (factors.double().unsqueeze(-2) @ rows.double()).squeeze(-2)
    if rows.device.type != "cpu" or rows.shape[-2] <= FEW:
        return (factors.unsqueeze(-2) @ rows).squeeze(-2)
    even = rows.shape[-2] - rows.shape[-2] % FEW
    some = factors[..., :even].unflatten(-1, (-1, 1, FEW))
    parts = some @ rows[..., :even, :].unflatten(-2, (-1, FEW))
    total = parts.sum((-3, -2), dtype=torch.float64)
    return total + added_up(factors[..., even:], rows[..., even:, :])


def weighted(grads: Tensor, factors: Tensor) -> Tensor:
    """Σ_b factor_b grads_b; a factor of 0 silences even NaN. Not needed any more: `grads`."""
    turned = in_memory(grads)
    flat = turned.flatten(1)
    factors = factors.to(flat.dtype)
    keep = factors > 0
    if kernels.usable(flat) and flat.is_contiguous() and factors.is_contiguous():
        kernels.zero_rows(flat, factors)
    elif not all_known(keep):
        flat = torch.where(keep.unsqueeze(1), flat, 0.0)
    total = added_up(factors, flat).view(turned.shape[1:])
    if turned is grads:
        return total
    order = sorted(range(1, grads.ndim), key=lambda d: grads.stride(d), reverse=True)
    return total.permute([order.index(d) for d in range(1, grads.ndim)])
