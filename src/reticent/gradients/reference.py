"""Per-example gradients of any model by `torch.func`: vmap of grad over the whole model.

No rule is involved, which makes this both the way out for models the rules do not cover and an
independent witness for those they do. It writes every per-example gradient out: B × parameters
numbers at once, so give a `microbatch` for large models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten

from reticent.errors import ModelError, ReticentError
from reticent.gradients.batches import arguments, as_one, batch_size, slots, trainable, unwrapped
from reticent.gradients.losses import LossFn
from reticent.gradients.rules.recurrent import Plain, unrolled
from reticent.gradients.validation import validate


@contextmanager
def _mappable(model: nn.Module) -> Iterator[None]:
    """Recurrent layers unrolled in time, since `torch.vmap` cannot see into their kernels."""
    with ExitStack() as undo:
        for module in model.modules():
            known = type(module) in (nn.LSTM, nn.GRU, nn.RNN) and "forward" not in vars(module)
            if known and isinstance(module, nn.RNNBase):
                undo.callback(vars(module).pop, "forward", None)
                vars(module)["forward"] = partial(unrolled, module, Plain())
        yield


def reference_gradients(
    model: nn.Module, loss_fn: LossFn, inputs: Any, targets: Any
) -> tuple[dict[str, Tensor], Tensor]:
    """Gradients {name: [B, *shape]} and losses [B]."""
    inner = unwrapped(model)
    names = dict(zip(trainable(inner), trainable(model), strict=True))
    own = {name: p.detach() for name, p in trainable(inner).items()}
    # where each tensor of the model comes from: a trainable parameter by name, or a constant
    named = {p: name for name, p in trainable(inner).items()}
    places_of = slots(inner)
    sources = {slot: named.get(tensor) for slot, tensor in places_of.items()}
    copies = {t: t.detach().clone() for t in places_of.values() if t not in named}
    constants = {s: copies[t] for s, t in places_of.items() if t in copies}
    leaves, spec = tree_flatten((inputs, targets))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def loss(parameters: dict[str, Tensor], fixed: dict[str, Tensor], *example: Tensor) -> Tensor:
        filled = list(leaves)
        for place, value in zip(places, example, strict=True):
            filled[place] = value
        one_input, one_target = as_one(tree_unflatten(filled, spec))
        args, kwargs = arguments(one_input)
        placed = {s: fixed[s] if n is None else parameters[n] for s, n in sources.items()}
        output = functional_call(inner, placed, args, kwargs, tie_weights=False)
        return loss_fn(output, one_target).sum()

    mapped = torch.vmap(
        grad_and_value(loss), in_dims=(None, None, *(0 for _ in places)), randomness="different"
    )
    try:
        # Gradients stay on: a parameter reached behind functional_call's back shows up as a result
        # that requires grad, since what was handed over is detached.
        # Attention's fused kernels have no batching rule; the plain formula has.
        with torch.enable_grad(), _mappable(inner), sdpa_kernel(SDPBackend.MATH):
            grads, losses = mapped(own, constants, *(leaves[i].detach() for i in places))
    except ReticentError:
        raise
    except Exception as error:
        raise ModelError(
            f"the per-example gradients of {type(inner).__name__} cannot be computed with "
            f"torch.func.vmap ({type(error).__name__}: {error}). Data-dependent control flow, "
            ".item(), in-place writes to buffers and checkpointing stand in its way; layers with a "
            "rule avoid it (see reticent.gradients.register_rule)."
        ) from error
    if losses.requires_grad or any(g.requires_grad for g in grads.values()):
        raise ModelError(
            "the loss depends on parameters that were not passed through the model's forward, for "
            "instance a weight penalty inside loss_fn, so their gradient would be missed: compute "
            "such terms inside the model and return them with its output"
        )
    return {names[name]: g.detach() for name, g in grads.items()}, losses.detach()


def per_example(model: nn.Module, loss_fn: LossFn, inputs: Any, targets: Any) -> dict[str, Tensor]:
    """Unclipped gradient of every example, {name: [B, *shape]}, by the reference path.

    >>> import torch
    >>> model = torch.nn.Linear(3, 1)
    >>> grads = per_example(model, torch.nn.MSELoss(), torch.randn(4, 3), torch.randn(4, 1))
    >>> grads["weight"].shape
    torch.Size([4, 1, 3])
    """
    validate(model)
    if batch_size(inputs, targets) == 0:
        return {name: p.new_zeros(0, *p.shape) for name, p in trainable(model).items()}
    return reference_gradients(model, loss_fn, inputs, targets)[0]
