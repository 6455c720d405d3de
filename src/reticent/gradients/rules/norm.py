"""Normalisation layers that look at one example at a time: y = x̂·weight + bias.

x̂ is the normalised input, recomputed without the affine part; one example's gradients are Σ g·x̂ and
Σ g over everything but the parameter's own dimensions. They are as small as the parameter, so the
engine keeps them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm

from reticent.gradients import norm_kernels
from reticent.gradients.rules.base import (
    CompositeRule,
    Grads,
    NoFastPathError,
    Rule,
    Target,
    Use,
    register_rule,
)
from reticent.gradients.rules.lengths import wide


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

    def early(self, module: nn.Module, x: Tensor, g: Tensor, numbers: int) -> bool:
        """Always: they are as small as the parameters."""
        return True

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


def _hand_over(box: list[Use], g: Tensor, weights: Tensor, biases: Tensor) -> None:
    """Give the use, if there is one, its gradients, or what they can be made of."""
    for use in box:
        if use.alone:
            use.keep({"weight": weights, "bias": biases})
        else:
            use.g = g


class _Group(torch.autograd.Function):
    """Group norm by kernels of our own, which give the per-example gradients on the way back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, module: nn.GroupNorm, box: list[Use]) -> Tensor:
        """`box` will hold the use, once it is recorded."""
        y, means, scales = norm_kernels.group_norm(
            x, module.weight, module.bias, module.num_groups, module.eps
        )
        ctx.save_for_backward(x, means, scales)
        ctx.module, ctx.box = module, box
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Hand the use what it needs."""
        x, means, scales = ctx.saved_tensors
        dx, weights, biases = norm_kernels.group_norm_back(
            x,
            grads[0],
            ctx.module.weight,
            means,
            scales,
            ctx.module.num_groups,
            wanted=ctx.needs_input_grad[0],
        )
        _hand_over(ctx.box, grads[0], weights, biases)
        return dx, None, None, None


class _Layer(torch.autograd.Function):
    """The same for layer norm, whose statistics are cheaper computed again than kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seed: Tensor, module: nn.LayerNorm, box: list[Use]) -> Tensor:
        """`box` will hold the use, once it is recorded."""
        ctx.save_for_backward(x)
        ctx.module, ctx.box = module, box
        return norm_kernels.layer_norm(x, module.weight, module.bias, module.eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None, None]:
        """Hand the use what it needs."""
        (x,) = ctx.saved_tensors
        dx, weights, biases = norm_kernels.layer_norm_back(
            x, grads[0], ctx.module.weight, ctx.module.eps, wanted=ctx.needs_input_grad[0]
        )
        _hand_over(ctx.box, grads[0], weights, biases)
        return dx, None, None, None


class _KernelNormRule(NormRule, CompositeRule):
    """One kernel forward and one back on a GPU, the module's own forward elsewhere."""

    def fused(self, module: nn.Module, x: Tensor) -> Any:
        """The function of our own that can take this input, if any."""
        raise NotImplementedError

    def plain(self, module: nn.Module, x: Tensor) -> Tensor:
        """The layer's output by PyTorch."""
        raise NotImplementedError

    def forward(self, module: nn.Module, tape: Any, *args: Any, **kwargs: Any) -> Any:
        """The layer's output, recorded."""
        x = self.argument(module, args, kwargs)
        targets = {name: Target(p) for name, p in module.named_parameters()}
        same = all(target.parameter.dtype == x.dtype for target in targets.values())
        function = None
        if len(targets) == 2 and same and torch.is_grad_enabled():
            function = self.fused(module, x)
        if function is not None:
            box: list[Use] = []
            y = cast(Tensor, function.apply(x, tape.seed(x.device), module, box))
            use = tape.record(tape.unit, self, x, [], targets)
            box += [] if use is None else [use]
            return y
        y, place = tape.watch(self.plain(module, x))
        tape.record(tape.unit, self, x, [place], targets)
        return y


class GroupNormRule(ChannelNormRule, _KernelNormRule):
    """`GroupNorm`."""

    def fused(self, module: nn.Module, x: Tensor) -> Any:
        """Most shapes in single precision."""
        takes = norm_kernels.takes_group_norm(x, cast(nn.GroupNorm, module).num_groups)
        return _Group if takes else None

    def plain(self, module: nn.Module, x: Tensor) -> Tensor:
        """The layer's output by PyTorch."""
        group = cast(nn.GroupNorm, module)
        return F.group_norm(x, group.num_groups, group.weight, group.bias, group.eps)


class LayerNormRule(_KernelNormRule):
    """`LayerNorm`."""

    def fused(self, module: nn.Module, x: Tensor) -> Any:
        """One normalised dimension, in single precision."""
        one = len(cast(nn.LayerNorm, module).normalized_shape) == 1
        return _Layer if one and norm_kernels.takes_layer_norm(x) else None

    def plain(self, module: nn.Module, x: Tensor) -> Tensor:
        """The layer's output by PyTorch."""
        norm = cast(nn.LayerNorm, module)
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


register_rule(nn.LayerNorm, LayerNormRule())
register_rule(nn.RMSNorm, NormRule())
register_rule(nn.GroupNorm, GroupNormRule())
for _channel_kind in (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d):
    register_rule(_channel_kind, ChannelNormRule())
