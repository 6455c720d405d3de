"""Embeddings: rows of a table picked by token.

A token that occurs several times in one example has one gradient, the sum over its occurrences, so
occurrences are summed before squaring: tokens are sorted within each example and equal neighbours
share a segment. No tensor of size examples × vocabulary is made, and no shape depends on the data.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn

from reticent.gradients.rules.base import Grads, Rule, register_rule


def tokens_and_grads(module: nn.Module, x: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [B, T] and gradients [B, T, D], those of the padding token zeroed."""
    tokens = x.reshape(x.shape[0], -1)
    grads = g.reshape(*tokens.shape, g.shape[-1])
    padding = cast(nn.Embedding, module).padding_idx
    if padding is not None:
        grads = torch.where((tokens == padding).unsqueeze(-1), 0.0, grads)
    return tokens, grads


def table_squares(tokens: Tensor, grads: Tensor) -> Tensor:
    """Squared norms [B] of the tables Σ_t e(token_t) grad_tᵀ; tokens [B, T], grads [B, T, D]."""
    batch, length = tokens.shape
    if length == 1:
        return grads.square().sum((1, 2))
    ordered, order = tokens.sort(1)
    fresh = torch.zeros_like(ordered)
    fresh[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    first = torch.arange(batch, device=tokens.device).unsqueeze(1) * length
    segment = torch.empty_like(order).scatter_(1, order, fresh.cumsum(1) + first)
    sums = grads.new_zeros(batch * length, grads.shape[-1])
    sums.index_add_(0, segment.reshape(-1), grads.reshape(-1, grads.shape[-1]))
    return sums.view(batch, -1).square().sum(1)


class EmbeddingRule(Rule):
    """x is [B, ...] of token numbers, g is [B, ..., D]."""

    parameters = frozenset({"weight"})

    def refuse(self, module: nn.Module) -> str | None:
        """Options that look at the whole batch."""
        embedding = cast(nn.Embedding, module)
        if embedding.max_norm is not None or embedding.scale_grad_by_freq:
            return "max_norm and scale_grad_by_freq mix examples"
        return None

    def squared_norms(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """Segment sums of equal tokens, squared."""
        return {"weight": table_squares(*tokens_and_grads(module, x, g))}

    def mass(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Σ_t ‖g_t‖."""
        return {"weight": tokens_and_grads(module, x, g)[1].norm(dim=2).sum(1)}

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """[B, V, D]: only for tables shared with a layer of another kind."""
        tokens, grads = tokens_and_grads(module, x, g)
        rows, width = cast(nn.Embedding, module).weight.shape
        first = torch.arange(x.shape[0], device=x.device).unsqueeze(1) * rows
        table = grads.new_zeros(x.shape[0] * rows, width)
        table.index_add_(0, (tokens + first).reshape(-1), grads.reshape(-1, width))
        return {"weight": table.view(x.shape[0], rows, width)}

    def weighted_sum(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """The ordinary gradient of the table, dense."""
        tokens, grads = tokens_and_grads(module, x, g)
        rows = cast(nn.Embedding, module).num_embeddings
        return {"weight": torch.ops.aten.embedding_dense_backward(grads, tokens, rows, -1, False)}

    def concatenate(
        self, module: nn.Module, pairs: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor] | None:
        """Several uses are one use with more tokens."""
        flat = [
            (x.reshape(x.shape[0], -1), g.reshape(x.shape[0], -1, g.shape[-1])) for x, g in pairs
        ]
        return torch.cat([x for x, _ in flat], 1), torch.cat([g for _, g in flat], 1)


EMBEDDING = EmbeddingRule()
register_rule(nn.Embedding, EMBEDDING)
