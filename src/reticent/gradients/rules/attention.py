"""Multi-head attention (`nn.MultiheadAttention`), from four linear maps and a softmax.

The module's own forward multiplies by its weights behind the scenes and never calls `out_proj`, so
the layer is computed here, following `F.multi_head_attention_forward` option by option; the
projections are recorded as linear uses of (blocks of rows of) its parameters. `bias_k` and `bias_v`
are repeated for every example, which makes their output gradients per-example gradients.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reticent.gradients.rules.base import CompositeRule, NoFastPathError, Target, register_rule


class AttentionRule(CompositeRule):
    """Every option of `nn.MultiheadAttention`, for batched inputs."""

    parameters = frozenset(
        {
            "in_proj_weight",
            "in_proj_bias",
            "q_proj_weight",
            "k_proj_weight",
            "v_proj_weight",
            "bias_k",
            "bias_v",
            "out_proj.weight",
            "out_proj.bias",
        }
    )

    def forward(self, module: nn.Module, tape: Any, *args: Any, **kwargs: Any) -> Any:
        """Bind the arguments as the module would."""
        return _attend(cast(nn.MultiheadAttention, module), tape, *args, **kwargs)


def _attend(
    mha: nn.MultiheadAttention,
    tape: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    if query.ndim != 3:
        raise NoFastPathError(f"its query has {query.ndim} dimensions: no batch dimension")
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
    q, k, v = _projected(mha, tape, query, key, value)
    batch, width, heads = q.shape[0], mha.embed_dim, mha.num_heads
    mask = _mask(attn_mask, key_padding_mask, batch, heads, q.dtype)
    if mha.bias_k is not None and mha.bias_v is not None:
        k = torch.cat([k, tape.each(mha.bias_k, batch).reshape(batch, 1, width)], 1)
        v = torch.cat([v, tape.each(mha.bias_v, batch).reshape(batch, 1, width)], 1)
        mask = _wider(mask)
    q, k, v = (t.reshape(batch, t.shape[1], heads, mha.head_dim).transpose(1, 2) for t in (q, k, v))
    if mha.add_zero_attn:
        k, v = (torch.cat([t, t.new_zeros(batch, heads, 1, mha.head_dim)], 2) for t in (k, v))
        mask = _wider(mask)
    dropout = mha.dropout if mha.training else 0.0
    weights: Tensor | None = None
    if need_weights:
        scores = (q / math.sqrt(mha.head_dim)) @ k.mT
        weights = torch.softmax(scores if mask is None else scores + mask, -1)
        if dropout > 0:
            weights = F.dropout(weights, dropout)
        mixed = weights @ v
    else:
        mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout)
    mixed = mixed.transpose(1, 2).reshape(batch, -1, width)
    bias = mha.out_proj.bias
    output, _ = tape.linear(
        mixed, Target(mha.out_proj.weight), None if bias is None else Target(bias)
    )
    if weights is not None and average_attn_weights:
        weights = weights.mean(1)
    return output if mha.batch_first else output.transpose(0, 1), weights


def _projected(
    mha: nn.MultiheadAttention, tape: Any, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, L, E]."""
    width = mha.embed_dim
    same = query is key and key is value
    if not mha.batch_first:
        query, key, value = (t.transpose(0, 1) for t in (query, key, value))
    if same and mha._qkv_same_embed_dim:
        bias = None if mha.in_proj_bias is None else Target(mha.in_proj_bias)
        packed, _ = tape.linear(query, Target(mha.in_proj_weight), bias)
        q, k, v = packed.chunk(3, -1)
        return q, k, v
    separate = (mha.q_proj_weight, mha.k_proj_weight, mha.v_proj_weight)
    projected: list[Tensor] = []
    for index, x in enumerate((query, key, value)):
        rows = (index * width, (index + 1) * width)
        bias = None if mha.in_proj_bias is None else Target(mha.in_proj_bias, *rows)
        if mha._qkv_same_embed_dim:
            weight = Target(mha.in_proj_weight, *rows)
        else:
            weight = Target(cast(Tensor, separate[index]))
        projected.append(tape.linear(x, weight, bias)[0])
    q, k, v = projected
    return q, k, v


def _mask(
    attn_mask: Tensor | None, padding: Tensor | None, batch: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Both masks as one that is added to the scores, [B or 1, heads or 1, L or 1, S]."""
    mask: Tensor | None = None
    if attn_mask is not None:
        mask = _additive(attn_mask, dtype)
        if mask.ndim == 2:
            mask = mask[None, None]
        else:
            mask = mask.reshape(batch, heads, *mask.shape[1:])
    if padding is not None:
        also = _additive(padding, dtype)[:, None, None, :]
        mask = also if mask is None else mask + also
    return mask


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """True means "not allowed"."""
    if mask.dtype == torch.bool:
        return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    return mask.to(dtype)


def _wider(mask: Tensor | None) -> Tensor | None:
    """Room for one more key, which everyone may see."""
    return None if mask is None else F.pad(mask, (0, 1))


register_rule(nn.MultiheadAttention, AttentionRule())
