"""The one thing a mechanism may add noise to: a sum of clipped per-example gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from reticent.errors import OptionError


@dataclass(frozen=True, eq=False)
class ClippedSum:
    """A sum of clipped gradients, and how far one record can move it.

    Formal guarantee: adding or removing one record changes `grads`, taken as one vector, by at most
    `sensitivity` in L2. Nothing else here has bounded sensitivity: `norms`, `losses` and
    `nonfinite` are private diagnostics and must not be released as they are.
    """

    grads: dict[str, Tensor]
    norms: Tensor
    """[B] norms before clipping; inf where the gradient or the loss is not finite."""
    sensitivity: float
    nonfinite: Tensor
    """How many examples were left out because a gradient or loss is not finite (a 0-d tensor)."""
    losses: Tensor
    """[B] losses, detached."""
    path: str
    """The path taken: "fast", "reference", or "empty" for no examples."""
    reason: str = ""
    """Why the fast path was not taken, where it was not."""
    buffer: Tensor | None = None
    """All of `grads` as one vector, where they are views into one."""

    def flat(self, order: Iterable[str] | None = None) -> Tensor:
        """All gradients as one vector, in the order of `grads` or of the given names."""
        if order is None and self.buffer is not None:
            return self.buffer
        names = list(self.grads if order is None else order)
        if sorted(names) != sorted(self.grads):
            raise OptionError("order", names, f"must name each of {', '.join(self.grads)} once")
        if not names:
            return self.norms.new_zeros(0)
        return torch.cat([self.grads[name].reshape(-1) for name in names])


def sum_dtype(parameter: Tensor) -> torch.dtype:
    """Sums are kept in single precision or wider."""
    half = parameter.dtype in (torch.float16, torch.bfloat16)
    return torch.float32 if half else parameter.dtype


def wide_room(parameters: dict[str, Tensor]) -> Tensor:
    """A flat buffer for a sum in double precision."""
    count = sum(p.numel() for p in parameters.values())
    device = next((p.device for p in parameters.values()), None)
    return torch.zeros(count, dtype=torch.float64, device=device)


def accumulators(parameters: dict[str, Tensor], out: Tensor | None) -> dict[str, Tensor]:
    """Where the sums go: fresh zeros, or views into the flat buffer `out`."""
    if out is None:
        return {n: torch.zeros_like(p, dtype=sum_dtype(p)) for n, p in parameters.items()}
    total = sum(p.numel() for p in parameters.values())
    if out.ndim != 1 or out.numel() != total or not out.is_contiguous():
        raise OptionError(
            "out", tuple(out.shape), f"must be a contiguous vector of {total} numbers"
        )
    if out.requires_grad or any(
        torch.promote_types(out.dtype, dtype) != out.dtype
        for dtype in {sum_dtype(p) for p in parameters.values()}
    ):
        raise OptionError(
            "out", out.dtype, "must not require grad and be at least as wide as the parameters"
        )
    parts = out.split([p.numel() for p in parameters.values()])
    return {
        name: part.view(parameter.shape)
        for part, (name, parameter) in zip(parts, parameters.items(), strict=True)
    }
