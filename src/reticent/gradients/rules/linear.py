"""Linear layers: y = x Wᵀ + b over any number of middle dimensions.

Example b's gradient is Σ_t g_t a_tᵀ over its T positions (activation a, output gradient g). Its
squared norm needs no gradient to be written out:

    ‖Σ_t g_t a_tᵀ‖² = Σ_{t,s} (a_t·a_s)(g_t·g_s)

(Li, Tramèr, Liang, Hashimoto 2022, "ghost clipping", eq. 2; Goodfellow 2015 for T = 1). That costs
2T² numbers and T²(in + out) multiplications per example, against in·out and T·in·out.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from reticent.gradients import kernels
from reticent.gradients.rules.base import Grads, Rule, joined, per_position, pieces, register_rule
from reticent.gradients.rules.lengths import wide_dtype


def gram_measures(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Σ_{t,s} left_ts · right_ts over the last two dimensions, never below the true value; masses.

    The terms can cancel, and what is left may be smaller than their rounding error; an example
    built that way would get through with a norm of 0. The error is at most a few units in the
    last place of Σ|left·right|, so that much is added: the norm errs to the safe side. Squares too
    small to represent are made up for in the same way (see `outer_norms`), through the traces.

    The other result, ‖a‖²‖g‖² from the traces, is the square of a bound on Σ_t ‖a_t‖‖g_t‖.
    """
    if left.ndim == 3 and kernels.usable(left, right):
        return measures_of(kernels.gram_terms(left, right), left.shape[-1])
    terms = left * right
    relative, absolute = allowances(left.dtype, left.shape[-1])
    one, other = (gram.diagonal(0, -2, -1).sum(-1) for gram in (left, right))
    norms = terms.sum((-2, -1)).clamp(min=0) + relative * terms.abs().sum((-2, -1))
    return norms + absolute * (one + other), one * other


def measures_of(terms: Tensor, positions: int) -> tuple[Tensor, Tensor]:
    """The same from the terms of a kernel's tiles."""
    return kernels.gram_measures(terms, *allowances(terms.dtype, positions))


def allowances(dtype: torch.dtype, positions: int) -> tuple[float, float]:
    """What is added to a norm for each unit of the products' sizes, and of the traces."""
    number = torch.finfo(dtype)
    return 4 * number.eps, number.tiny * positions


def outer_norms(a: Tensor, g: Tensor) -> Tensor:
    """|a|²·|g|² for [B, n] and [B, m], never below the true value.

    A record with a of 1e-23 and g of 1e19 has a gradient of 1e-4 but |a|² = 0 in single precision;
    one unit of what cannot be represented is added to each side.
    """
    tiny = torch.finfo(a.dtype).tiny
    return (a.square().sum(1) + tiny) * (g.square().sum(1) + tiny)


def writing_is_cheaper(positions: int, inner: int, outer: int) -> bool:
    """Whether to write gradients out, by memory and by multiplications (up to twice as many)."""
    if positions == 1:
        return False
    written = inner * outer
    return 2 * positions**2 >= written or positions * (inner + outer) > 2 * written


def _wide_product(rows: Tensor, inputs: Tensor) -> Tensor:
    """rowsᵀ inputs in double precision, a part of the examples at a time."""
    total: Tensor | None = None
    for a, b in pieces(inputs, rows, inputs.shape[1] + rows.shape[1]):
        part = b.double().mT @ a.double()
        total = part if total is None else total.add_(part)
    assert total is not None
    return total


class LinearRule(Rule):
    """x is [B, ..., in], g is [B, ..., out]."""

    parameters = frozenset({"weight", "bias"})
    brief = frozenset({"bias"})

    def positions(self, module: nn.Module, x: Tensor) -> tuple[int, ...]:
        """Everything between examples and features."""
        return tuple(x.shape[1:-1])

    def instantiates(self, module: nn.Module, x: Tensor, g: Tensor) -> bool:
        """Whether writing the gradients out is cheaper than the Gram matrices."""
        return writing_is_cheaper(x.shape[1:-1].numel(), x.shape[-1], g.shape[-1])

    def squared_norms(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """By Gram matrices or instantiation, whichever is smaller."""
        return self.measures(module, x, g, roles)[0]

    def measures(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> tuple[Grads, Grads]:
        """Masses come with the Gram matrices, and with the only position's norms."""
        written = self.instantiates(module, x, g)
        x, g = per_position(x), per_position(g)
        norms: Grads = {}
        masses: Grads = {}
        if "weight" in roles:
            if x.shape[1] == 1:
                norms["weight"] = masses["weight"] = outer_norms(x[:, 0], g[:, 0])
            elif written:
                parts = pieces(x, g, x.shape[-1] * g.shape[-1])
                norms["weight"] = joined([(b.mT @ a).square().sum((1, 2)) for a, b in parts])
                masses["weight"] = self.mass(module, x, g, {"weight"})["weight"].square()
            else:
                parts = pieces(x, g, 2 * x.shape[1] ** 2)
                found = [gram_measures(a @ a.mT, b @ b.mT) for a, b in parts]
                norms["weight"], masses["weight"] = (
                    joined(list(f)) for f in zip(*found, strict=True)
                )
        if "bias" in roles:
            norms["bias"] = g.sum(1).square().sum(1)
            masses["bias"] = self.mass(module, x, g, {"bias"})["bias"].square()
        return norms, masses

    def mass(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Σ_t ‖g_t‖‖a_t‖ and Σ_t ‖g_t‖."""
        heights = per_position(g).norm(dim=2)
        sizes: Grads = {"bias": heights.sum(1)} if "bias" in roles else {}
        if "weight" in roles:
            sizes["weight"] = (per_position(x).norm(dim=2) * heights).sum(1)
        return sizes

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Σ_t g_t a_tᵀ and Σ_t g_t."""
        x, g = per_position(x), per_position(g)
        grads: Grads = {}
        if "weight" in roles:
            grads["weight"] = g.mT @ x
        if "bias" in roles:
            grads["bias"] = g.sum(1, dtype=wide_dtype(g))
        return grads

    def prepared(
        self,
        module: nn.Module,
        x: Tensor,
        g: Tensor,
        factors: Tensor,
        roles: Collection[str],
        ours: bool,
    ) -> tuple[Tensor, Tensor]:
        """Of a product either operand may carry the factors: the narrower one does."""
        if "bias" in roles or x.shape[-1] >= g.shape[-1]:
            return super().prepared(module, x, g, factors, roles, ours)
        g, x = super().prepared(module, g, x, factors, roles, ours)
        return x, g

    def weighted_sum(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """The ordinary weight gradient.

        With one position for each example it is added up in double precision, which takes little
        beside the passes: batches of linear models are large, up to all records, and in single
        precision each record would round the sum of all others anew.
        """
        rows, inputs = g.flatten(0, -2), x.flatten(0, -2)
        one = len(rows) == len(g)
        grads: Grads = {}
        if "weight" in roles:
            grads["weight"] = _wide_product(rows, inputs) if one else rows.mT @ inputs
        if "bias" in roles:
            grads["bias"] = rows.sum(0, dtype=torch.float64 if one else rows.dtype)
        return grads

    def concatenate(
        self, module: nn.Module, pairs: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor] | None:
        """Several uses are one use with more positions."""
        return (
            torch.cat([per_position(x) for x, _ in pairs], 1),
            torch.cat([per_position(g) for _, g in pairs], 1),
        )


LINEAR = LinearRule()
register_rule(nn.Linear, LINEAR)
