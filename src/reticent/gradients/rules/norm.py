"""Normalisation layers that look at one example at a time: y = x̂·weight + bias.

x̂ is the normalised input, recomputed without the affine part; one example's gradients are Σ g·x̂ and
Σ g over everything but the parameter's own dimensions. They are as small as the parameter, so the
engine keeps them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from reticent.gradients.rules.base import Grads, NoFastPathError, Rule, register_rule, wide


class NormRule(Rule):
    """Affine parameters that cover the trailing dimensions (`LayerNorm`, `RMSNorm`)."""

    parameters = frozenset({"weight", "bias"})
    small = True

    def argument(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """One tensor with examples outside the normalised dimensions."""
        x = super().argument(module, args, kwargs)
        if x.ndim <= len(cast(nn.LayerNorm, module).normalized_shape):
            raise NoFastPathError("it normalises over the examples' dimension")
        return x

    def positions(self, module: nn.Module, x: Tensor) -> tuple[int, ...]:
        """The dimensions between examples and the normalised ones."""
        return tuple(x.shape[1 : x.ndim - len(cast(nn.LayerNorm, module).normalized_shape)])

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """The input x̂ of the affine part."""
        if isinstance(module, nn.RMSNorm):
            if module.eps is None and module.weight is not None:
                # eps then follows from the input's own precision, which x was widened from
                x = x.to(module.weight.dtype)
            return wide(F.rms_norm(x, module.normalized_shape, None, module.eps))
        norm = cast(nn.LayerNorm, module)
        return F.layer_norm(x, norm.normalized_shape, None, None, norm.eps)

    def reduce(self, module: nn.Module, product: Tensor) -> Tensor:
        """Sum over the positions of each example."""
        inner = len(cast(nn.LayerNorm, module).normalized_shape)
        between = tuple(range(1, product.ndim - inner))
        return product.sum(between) if between else product

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Σ g·x̂ and Σ g."""
        grads: Grads = {}
        if "weight" in roles:
            grads["weight"] = self.reduce(module, g * self.normalised(module, x))
        if "bias" in roles:
            grads["bias"] = self.reduce(module, g)
        return grads


class ChannelNormRule(NormRule):
    """Affine parameters per channel (`GroupNorm`, `InstanceNorm`)."""

    def refuse(self, module: nn.Module) -> str | None:
        """Running statistics are shared by the examples."""
        if getattr(module, "track_running_stats", False):
            return "track_running_stats shares statistics between examples"
        return None

    def argument(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """One tensor with a batch dimension."""
        x = Rule.argument(self, module, args, kwargs)
        if isinstance(module, _InstanceNorm) and x.ndim == module._get_no_batch_dim():
            raise NoFastPathError(f"its input has {x.ndim} dimensions: no batch dimension")
        return x

    def positions(self, module: nn.Module, x: Tensor) -> tuple[int, ...]:
        """The spatial sizes."""
        return tuple(x.shape[2:])

    def normalised(self, module: nn.Module, x: Tensor) -> Tensor:
        """The input x̂ of the affine part."""
        if isinstance(module, nn.GroupNorm):
            return F.group_norm(x, module.num_groups, None, None, module.eps)
        return F.instance_norm(x, eps=cast(_InstanceNorm, module).eps)

    def reduce(self, module: nn.Module, product: Tensor) -> Tensor:
        """Sum over space."""
        return product.flatten(2).sum(2) if product.ndim > 2 else product


for _kind in (nn.LayerNorm, nn.RMSNorm):
    register_rule(_kind, NormRule())
for _channel_kind in (nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
    register_rule(_channel_kind, ChannelNormRule())
