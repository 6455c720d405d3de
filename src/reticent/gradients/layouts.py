"""Images with their channels last in memory, as the matrix units want them.

Convolutions turn images into that order and back on every call unless they come in it. A model may
not stand it (`view` on an image that is not contiguous fails), and layers without a kernel for it
lose more than convolutions gain; both are found out before it is used.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.utils._pytree import tree_map

from reticent.errors import ReticentError
from reticent.gradients import kernels, rounding
from reticent.gradients.batches import part
from reticent.gradients.engine import clipped_sum
from reticent.gradients.isolating import as_found, device_of, draws_apart
from reticent.gradients.losses import LossFn

# Narrower convolutions gain nothing; found by trying on an H200.
WIDE = 64


def channels_last(inputs: Any) -> Any:
    """The images among the inputs, turned."""

    def turned(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or leaf.ndim != 4 or not leaf.is_floating_point():
            return leaf
        # `contiguous` would leave an image of one channel, and with it all that follows, as it is
        return leaf.to(memory_format=torch.channels_last)

    return tree_map(turned, inputs)


def gains(model: nn.Module) -> bool:
    """Whether the model is made of layers that gain and of layers that do not mind.

    On a GPU wide convolutions gain. On a CPU they do not; max-pooling does, many times over, and
    counts where it keeps the size of its input.
    """
    device = device_of(model)
    if device.type == "cpu":
        pools = [m for m in model.modules() if isinstance(m, nn.MaxPool2d)]
        overlap = any(_pair(m.stride) < _pair(m.kernel_size) for m in pools)
        return overlap and not any(_minds(module) for module in model.modules())
    if "tf32" not in rounding.of_convolutions(device) or not kernels.installed():
        return False
    convolutions = [m for m in model.modules() if isinstance(m, nn.Conv2d)]
    if max((m.out_channels for m in convolutions), default=0) < WIDE:
        return False
    if any(m.groups > 1 for m in convolutions):
        return False
    return not any(_minds(module) for module in model.modules())


def _pair(size: Any) -> tuple[int, ...]:
    return (size, size) if isinstance(size, int) else tuple(size)


def _minds(module: nn.Module) -> bool:
    if isinstance(module, nn.GroupNorm):
        each = module.num_channels // module.num_groups
        recorded = all(p.requires_grad for p in module.parameters())
        powers = not (each & (each - 1) or module.num_channels & (module.num_channels - 1))
        return not (module.affine and recorded and powers)
    return isinstance(module, (_InstanceNorm, nn.LocalResponseNorm))


def fits(model: nn.Module, loss_fn: LossFn, inputs: Any, targets: Any) -> bool:
    """Whether the sum can be computed on turned images; a few are tried."""
    few = channels_last(part(inputs, 0, 2)), part(targets, 0, 2)
    with as_found(model), draws_apart(model):
        try:
            clipped_sum(model, loss_fn, *few, 1.0)
        except (RuntimeError, ReticentError):
            return False
    return True
