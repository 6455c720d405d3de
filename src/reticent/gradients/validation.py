"""Layers that cannot be trained privately, found before training starts."""

from __future__ import annotations

import copy
from math import gcd

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from reticent.errors import ModelError


def problems(model: nn.Module) -> list[str]:
    """Every reason the model cannot be used as it is, one line each."""
    found: list[str] = []
    for name, module in model.named_modules():
        reason = _problem(module)
        if reason is not None:
            where = name if name else "the model itself"
            found.append(f"{where} ({type(module).__name__}): {reason}")
    return found


def _problem(module: nn.Module) -> str | None:
    if isinstance(module, LazyModuleMixin) and any(
        is_lazy(p) for p in [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    ):
        return "has no parameters yet. Run one made-up batch through the model first"
    if isinstance(module, _BatchNorm) and (module.training or module.running_mean is None):
        channels = module.num_features
        return (
            "its statistics mix the examples of a batch. Replace it by "
            f"torch.nn.GroupNorm({gcd(channels, 32)}, {channels}) or call "
            "reticent.gradients.replace_batchnorm(model); one whose statistics are public stays as "
            "it is by .eval().requires_grad_(False)"
        )
    if isinstance(module, _InstanceNorm) and module.track_running_stats and module.training:
        return "its running statistics are taken from the records. Set track_running_stats=False"
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        if module.max_norm is not None:
            return "max_norm rescales rows during the forward pass. Set max_norm=None"
        if module.scale_grad_by_freq:
            return "scale_grad_by_freq counts tokens over the batch. Set it to False"
    if any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values()):
        return _SPECTRAL
    if parametrize.is_parametrized(module) and any(
        isinstance(inner, _SpectralNorm)
        for parametrization in module.parametrizations.values()  # type: ignore[operator]
        for inner in parametrization
    ):
        return _SPECTRAL
    return None


_SPECTRAL = "spectral_norm updates its state in every forward pass. Remove it"


def validate(model: nn.Module) -> None:
    """Refuse a model with layers that mix examples or learn from them outside the gradient.

    All problems are reported at once, each with the module's name and what to do. Only known layers
    can be found this way; `isolation` tests the behaviour.

    >>> import torch
    >>> validate(torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.GroupNorm(4, 8)))
    """
    found = problems(model)
    if found:
        raise ModelError(
            "the model cannot be trained privately as it is:\n" + "\n".join(f"- {f}" for f in found)
        )


def replace_batchnorm(model: nn.Module, groups: int = 32) -> nn.Module:
    """A copy of the model with every BatchNorm replaced by GroupNorm.

    Each gets gcd(groups, channels) groups and keeps the affine parameters' values; running
    statistics are dropped, since they were taken from records. The given model is not changed.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3), torch.nn.BatchNorm2d(6))
    >>> replaced = replace_batchnorm(model)[1]
    >>> type(replaced).__name__, replaced.num_groups
    ('GroupNorm', 2)
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and isinstance(module, LazyModuleMixin):
            raise ModelError(f"{name} is lazy: run one made-up batch through the model first")
    copied = copy.deepcopy(model)
    if isinstance(copied, _BatchNorm):
        return _group_norm(copied, groups)
    done: dict[nn.Module, nn.Module] = {}
    for module in list(copied.modules()):
        for name, child in list(module._modules.items()):
            if isinstance(child, _BatchNorm):
                if child not in done:
                    done[child] = _group_norm(child, groups)
                setattr(module, name, done[child])
    return copied


def _group_norm(norm: _BatchNorm, groups: int) -> nn.GroupNorm:
    weight = norm.weight
    new = nn.GroupNorm(
        gcd(groups, norm.num_features), norm.num_features, eps=norm.eps, affine=norm.affine
    )
    if weight is not None:
        new.to(device=weight.device, dtype=weight.dtype)
        new.weight, new.bias = norm.weight, norm.bias
    return new.train(norm.training)
