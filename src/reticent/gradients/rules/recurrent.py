"""LSTM, GRU and plain RNN, unrolled in time.

The fused kernels show nothing of what happens inside, so the layer is computed step by step from
two linear maps, as torch.nn.LSTM's documentation writes it: one of the inputs x_t (all steps at
once) and one of the hidden states h_{t−1}. For both, time is the position dimension of the Linear
rule: W_ih sees (x_t, gradient of its pre-activation), W_hh sees (h_{t−1}, gradient of its own).
In LSTM and RNN both pre-activations are only ever added and share one gradient; in GRU the reset
gate stands between them.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge
from torch.nn.utils.rnn import PackedSequence

from reticent.errors import ModelError
from reticent.gradients.rules.base import CompositeRule, Target, register_rule

State = tuple[Tensor, Tensor]


class Linears(Protocol):
    """What the unrolled layer needs: linear maps, recorded or plain."""

    def linear(
        self, x: Tensor, weight: Target, bias: Target | None
    ) -> tuple[Tensor, GradientEdge | None]:
        """X Wᵀ + b."""

    def watch(self, y: Tensor) -> tuple[Tensor, GradientEdge | None]:
        """Y as part of the graph."""

    def also(self, x: Tensor, edges: Any, weight: Target, bias: Target | None) -> None:
        """A linear use whose outputs are already watched."""


class Plain:
    """Linear maps that nobody records: for the reference path."""

    def linear(self, x: Tensor, weight: Target, bias: Target | None) -> tuple[Tensor, None]:
        """X Wᵀ + b."""
        return F.linear(x, weight.parameter, None if bias is None else bias.parameter), None

    def watch(self, y: Tensor) -> tuple[Tensor, None]:
        """Y itself."""
        return y, None

    def also(self, x: Tensor, edges: Any, weight: Target, bias: Target | None) -> None:
        """Nothing to do."""


def unrolled(rnn: nn.RNNBase, tape: Linears, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
    """The layer's output and last states, like its own forward."""
    if isinstance(x, PackedSequence):
        raise ModelError(
            f"{type(rnn).__name__} was given a PackedSequence, which regroups the examples of a "
            "batch by length: give it the padded tensor and mask the loss instead"
        )
    if x.ndim != 3:
        raise ModelError(f"{type(rnn).__name__} was given {x.ndim} dimensions: it needs a batch")
    lstm = isinstance(rnn, nn.LSTM)
    x = x if rnn.batch_first else x.transpose(0, 1)
    directions = 2 if rnn.bidirectional else 1
    real = rnn.proj_size if rnn.proj_size else rnn.hidden_size
    count = rnn.num_layers * directions
    if hx is None:
        h0 = x.new_zeros(count, x.shape[0], real)
        c0 = x.new_zeros(count, x.shape[0], rnn.hidden_size) if lstm else None
    else:
        h0, c0 = hx if lstm else (hx, None)
    last_h: list[Tensor] = []
    last_c: list[Tensor] = []
    for layer in range(rnn.num_layers):
        sides: list[Tensor] = []
        for direction in range(directions):
            index = layer * directions + direction
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            sequence = x.flip(1) if direction else x
            output, h, c = _layer(
                rnn, tape, suffix, sequence, h0[index], None if c0 is None else c0[index]
            )
            sides.append(output.flip(1) if direction else output)
            last_h.append(h)
            if c is not None:
                last_c.append(c)
        x = sides[0] if directions == 1 else torch.cat(sides, 2)
        if layer < rnn.num_layers - 1 and rnn.dropout > 0:
            x = F.dropout(x, rnn.dropout, rnn.training)
    output = x if rnn.batch_first else x.transpose(0, 1)
    hidden = torch.stack(last_h)
    return output, (hidden, torch.stack(last_c)) if lstm else hidden


def _target(rnn: nn.RNNBase, name: str) -> Target | None:
    parameter = getattr(rnn, name, None)
    return None if parameter is None else Target(parameter)


def _layer(
    rnn: nn.RNNBase, tape: Linears, suffix: str, x: Tensor, h: Tensor, c: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One layer in one direction: outputs [B, T, H] and the last states."""
    inward = cast(Target, _target(rnn, "weight_ih" + suffix))
    hidden = cast(Target, _target(rnn, "weight_hh" + suffix))
    bias_in = _target(rnn, "bias_ih" + suffix) if rnn.bias else None
    bias_hidden = _target(rnn, "bias_hh" + suffix) if rnn.bias else None
    projection = _target(rnn, "weight_hr" + suffix) if rnn.proj_size else None

    from_input, edge = tape.linear(x, inward, bias_in)
    gru = isinstance(rnn, nn.GRU)
    outputs: list[Tensor] = []
    before: list[Tensor] = []  # h_{t−1}
    cells: list[Tensor] = []  # what the projection is applied to
    hidden_edges: list[Any] = []
    cell_edges: list[Any] = []
    for step in from_input.unbind(1):
        before.append(h)
        from_hidden = F.linear(
            h, hidden.parameter, None if bias_hidden is None else bias_hidden.parameter
        )
        if gru:
            from_hidden, place = tape.watch(from_hidden)
            hidden_edges.append(place)
            h = _gru(step, from_hidden, h)
        elif c is not None:
            h, c = _lstm(step + from_hidden, c)
        else:
            gate = step + from_hidden
            h = torch.tanh(gate) if cast(nn.RNN, rnn).nonlinearity == "tanh" else torch.relu(gate)
        if projection is not None:
            cells.append(h)
            h, place = tape.watch(F.linear(h, projection.parameter))
            cell_edges.append(place)
        outputs.append(h)
    states = torch.stack([state.detach() for state in before], 1)
    tape.also(states, hidden_edges if gru else [edge], hidden, bias_hidden)
    if projection is not None:
        inner = torch.stack([cell.detach() for cell in cells], 1)
        tape.also(inner, cell_edges, projection, None)
    return torch.stack(outputs, 1), h, c


def _lstm(gates: Tensor, c: Tensor) -> State:
    """Input, forget, cell and output gates, in torch's order."""
    i, f, g, o = gates.chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(from_input: Tensor, from_hidden: Tensor, h: Tensor) -> Tensor:
    """Reset, update and new gates, in torch's order."""
    ri, zi, ni = from_input.chunk(3, 1)
    rh, zh, nh = from_hidden.chunk(3, 1)
    z = torch.sigmoid(zi + zh)
    n = torch.tanh(ni + torch.sigmoid(ri + rh) * nh)
    return n + z * (h - n)


class RecurrentRule(CompositeRule):
    """`nn.LSTM`, `nn.GRU` and `nn.RNN` with every option but packed sequences."""

    def handles(self, names: set[str]) -> bool:
        """However many layers are stacked."""
        return all(name.startswith(("weight_", "bias_")) for name in names)

    def forward(self, module: nn.Module, tape: Any, *args: Any, **kwargs: Any) -> Any:
        """The unrolled layer."""
        names = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        return unrolled(cast(nn.RNNBase, module), tape, names["input"], names.get("hx"))


for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    register_rule(_kind, RecurrentRule())
