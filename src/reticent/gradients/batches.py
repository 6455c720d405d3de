"""Batches as users hand them over: a tensor, a tuple or a dict, examples along dimension 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from reticent.errors import ModelError


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """model(tensor), model(*tuple) or model(**dict)."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, tuple | list):
        return model(*inputs)
    return model(inputs)


def arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same, as (args, kwargs)."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def tensors(*trees: Any) -> list[Tensor]:
    """All tensors found in nested tuples, lists and dicts."""
    return [leaf for leaf in tree_flatten(trees)[0] if isinstance(leaf, Tensor)]


def batch_size(inputs: Any, targets: Any) -> int:
    """The number of examples, which every tensor must agree on."""
    leaves = tensors(inputs, targets)
    if not tensors(inputs):
        raise ModelError("inputs hold no tensor: give a tensor, a tuple or a dict of tensors")
    sizes = {leaf.shape[0] if leaf.ndim else None for leaf in leaves}
    if len(sizes) != 1 or None in sizes:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves)
        raise ModelError(
            f"inputs and targets must have the examples along dimension 0; shapes are {shapes}"
        )
    size = sizes.pop()
    assert size is not None
    return size


def part(tree: Any, start: int, stop: int) -> Any:
    """Examples `start` to `stop`."""
    return tree_map(lambda leaf: leaf[start:stop] if isinstance(leaf, Tensor) else leaf, tree)


def vmapped(function: Callable[..., Tensor], *trees: Any, randomness: str) -> Any:
    """`torch.vmap` over the tensors of `trees`; other leaves are passed as they are."""
    leaves, spec = tree_flatten(trees)
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def one(*values: Tensor) -> Tensor:
        filled = list(leaves)
        for place, value in zip(places, values, strict=True):
            filled[place] = value
        return function(*tree_unflatten(filled, spec))

    return torch.vmap(one, randomness=randomness)(*(leaves[i] for i in places))


def as_one(tree: Any) -> Any:
    """One example as a batch that holds only it."""
    return tree_map(lambda leaf: leaf.unsqueeze(0) if isinstance(leaf, Tensor) else leaf, tree)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module inside `torch.compile`'s wrapper, whose layers can be watched."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def slots(model: nn.Module) -> dict[str, Tensor]:
    """Every place that holds a parameter or buffer, by name, each place once.

    Unlike in `named_parameters`, tied parameters appear under all their names, but a module that is
    registered twice does not: `functional_call` would put a stale tensor back into such a module.
    """
    return {
        f"{prefix}.{name}" if prefix else name: tensor
        for prefix, module in model.named_modules()
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]
        if tensor is not None
    }


def call_with(
    model: nn.Module,
    values: Mapping[Tensor, Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> Any:
    """Call a model with other tensors in place of its parameters and buffers."""
    placed = {name: values[tensor] for name, tensor in slots(model).items() if tensor in values}
    return functional_call(model, placed, args, kwargs, tie_weights=False)


def trainable(model: nn.Module) -> dict[str, Tensor]:
    """Trainable parameters by name, in the order of `named_parameters`, tied ones once."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def synthetic_like(inputs: Any, targets: Any, n: int = 3, *, seed: int = 0) -> tuple[Any, Any]:
    """Made-up inputs and targets of the same shapes and types, for probing a model.

    Only shapes and types are read, never a record's values. Float inputs are standard normal, float
    targets uniform on [0, 1] (valid for cross-entropies), integers and booleans are 0 or 1.

    >>> import torch
    >>> x, y = synthetic_like(torch.zeros(8, 5), torch.zeros(8, dtype=torch.long))
    >>> x.shape, y.shape
    (torch.Size([3, 5]), torch.Size([3]))
    """
    generator = torch.Generator().manual_seed(seed)

    def make(leaf: Any, uniform: bool) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        shape = (n, *leaf.shape[1:])
        if leaf.is_floating_point():
            draw = torch.rand if uniform else torch.randn
            return draw(shape, generator=generator).to(leaf.device, leaf.dtype)
        return torch.randint(0, 2, shape, generator=generator).to(leaf.device, leaf.dtype)

    return (
        tree_map(lambda leaf: make(leaf, False), inputs),
        tree_map(lambda leaf: make(leaf, True), targets),
    )
