"""Modules no rule describes: their whole subtree is differentiated example by example.

With the module's input x and output gradient g at hand, example b's gradient is the vector-Jacobian
product of the module alone at (x[b], g[b]): `vmap(vjp)` of a small piece instead of the model.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from reticent.gradients.batches import call_with, slots
from reticent.gradients.rules.base import Grads, NoFastPathError, Rule

_DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def random_now(module: nn.Module) -> bool:
    """Whether this module itself draws random numbers in its present mode."""
    if not module.training:
        return False
    if isinstance(module, _DROPOUT):
        return module.p > 0
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return float(module.dropout) > 0
    return isinstance(module, nn.RReLU)


def refuse_generic(module: nn.Module) -> str | None:
    """Why a module cannot be run twice with the same result, or None."""
    for name, inner in module.named_modules():
        if random_now(inner):
            where = f" (in {name!r})" if name else ""
            return f"no rule describes it, and it draws random numbers{where}"
        if isinstance(inner, nn.RNNBase):
            return "no rule describes it, and it contains a recurrent layer"
    return None


class GenericRule(Rule):
    """x is [B, ...], g is [B, ...]; the roles are the parameters' names in the subtree."""

    small = True
    widens = False

    def early(self, module: nn.Module, x: Tensor, g: Tensor, numbers: int) -> bool:
        """Not while another backward pass is under way."""
        return False

    def argument(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Exactly one tensor, given by position, so that it can be given again."""
        if len(args) != 1 or kwargs or not isinstance(args[0], Tensor):
            raise NoFastPathError(
                "no rule describes it, and it is called with something other than one tensor"
            )
        return args[0]

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """vmap(vjp) of the module; random numbers in it are an error."""
        named = {n: p for n, p in module.named_parameters() if n in roles}
        own = {n: p.detach() for n, p in named.items()}
        mine = set(named.values())
        constants = {t: t.detach().clone() for t in slots(module).values() if t not in mine}

        def one(example: Tensor, grad: Tensor) -> Grads:
            def run(parameters: Grads) -> Tensor:
                values = constants | {p: parameters[n] for n, p in named.items()}
                return call_with(module, values, (example.unsqueeze(0),)).squeeze(0)

            pulled: Any = vjp(run, own)
            out, pull = pulled
            return pull(grad.to(out.dtype))[0]

        try:
            with torch.enable_grad():
                grads: Grads = vmap(one, randomness="error")(x, g)
        except Exception as error:
            raise NoFastPathError(
                f"no rule describes it, and torch.vmap cannot run it ({type(error).__name__}: "
                f"{error})"
            ) from error
        return grads


GENERIC = GenericRule()
