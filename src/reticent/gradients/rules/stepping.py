"""The weights of a recurrent layer, where W_ih and W_hh see the same output gradient.

That is so in LSTM and plain RNN, whose two pre-activations are only ever added. With rows
a_t = [h_{t−1}, x_t, 1], example b's gradients of W_hh, W_ih and both biases are the columns of one
Σ_t g_t a_tᵀ.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn

from reticent.gradients.rules.base import Grads, Rule, per_position
from reticent.gradients.rules.linear import LINEAR, writing_is_cheaper

BIASES = ("bias_in", "bias_hidden")


class StepsRule(Rule):
    """x is [B, T, H + I + 1], without the one where there are no biases; g is [B, T, G]."""

    parameters = frozenset({"hidden", "inward", *BIASES})

    def positions(self, module: nn.Module, x: Tensor) -> tuple[int, ...]:
        """The steps."""
        return (x.shape[1],)

    def instantiates(self, module: nn.Module, x: Tensor, g: Tensor) -> bool:
        """Whether writing the gradients out is cheaper than the Gram matrices."""
        return writing_is_cheaper(x.shape[1], x.shape[-1], g.shape[-1])

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """One product over the steps; each parameter's part lies together in memory."""
        places = _columns(module, x, roles)
        first = min(place.start for place in places.values())
        used = slice(first, max(place.stop for place in places.values()))
        whole = x[..., used].mT @ g
        return _parts(whole, {r: slice(p.start - first, p.stop - first) for r, p in places.items()})

    def squared_norms(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """Those of the linear maps."""
        return self.measures(module, x, g, roles)[0]

    def measures(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> tuple[Grads, Grads]:
        """Those of the linear maps."""
        norms: Grads = {}
        masses: Grads = {}
        for role, place in _columns(module, x, roles).items():
            kind = "bias" if role in BIASES else "weight"
            norm, mass = LINEAR.measures(module, x[..., place], g, (kind,))
            norms[role], masses[role] = norm[kind], mass[kind]
        return norms, masses

    def mass(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Those of the linear maps."""
        found: Grads = {}
        for role, place in _columns(module, x, roles).items():
            kind = "bias" if role in BIASES else "weight"
            found[role] = LINEAR.mass(module, x[..., place], g, (kind,))[kind]
        return found

    def weighted_sum(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """One product over steps and examples."""
        whole = x.flatten(0, 1).mT @ g.flatten(0, 1)
        return _parts(whole, _columns(module, x, roles))

    def concatenate(
        self, module: nn.Module, pairs: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor] | None:
        """Several uses are one use with more steps, if they have the same columns."""
        if len({x.shape[-1] for x, _ in pairs}) > 1:
            return None
        return (
            torch.cat([per_position(x) for x, _ in pairs], 1),
            torch.cat([per_position(g) for _, g in pairs], 1),
        )


def _columns(module: nn.Module, x: Tensor, roles: Collection[str]) -> dict[str, slice]:
    """Where the columns of each parameter are."""
    rnn = cast(nn.RNNBase, module)
    hidden, last = rnn.hidden_size, x.shape[-1]
    inner = last - 1 if rnn.bias else last
    places = {"hidden": slice(0, hidden), "inward": slice(hidden, inner)}
    places |= {role: slice(inner, last) for role in BIASES}
    return {role: places[role] for role in roles}


def _parts(whole: Tensor, places: dict[str, slice]) -> Grads:
    """Gradients like the parameters, of [..., columns, G]."""
    return {
        role: whole[..., place.start, :] if role in BIASES else whole[..., place, :].mT
        for role, place in places.items()
    }


STEPS = StepsRule()
