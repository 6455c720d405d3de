"""LSTM, GRU and plain RNN, step by step in time.

The fused kernels show nothing of what happens inside, so the layer is computed step by step from
two linear maps, as torch.nn.LSTM's documentation writes it: one of the inputs x_t (all steps at
once) and one of the hidden states h_{t−1}. For both, time is the position dimension of the Linear
rule: W_ih sees (x_t, gradient of its pre-activation), W_hh sees (h_{t−1}, gradient of its own).
In LSTM and RNN both pre-activations are only ever added and share one gradient; in GRU the reset
gate stands between them.

`stepwise` does this with one node of the graph for a layer's recursion (see `recursion.py`);
`unrolled`, in plain operations, is for `torch.vmap` and for layers with projections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from reticent.errors import ModelError
from reticent.gradients.rules.base import CompositeRule, Place, Rule, Target, register_rule
from reticent.gradients.rules.recursion import Recursion, cell_for
from reticent.gradients.rules.sequences import given, views
from reticent.gradients.rules.stepping import STEPS

State = tuple[Tensor, Tensor]
LayerResult = tuple[Tensor, Tensor, Tensor | None]  # outputs [B, T, D·H], last h and c [D, B, H]
Layer = Callable[..., LayerResult]


class Linears(Protocol):
    """What the unrolled layer needs: linear maps, recorded or plain."""

    def linear(self, x: Tensor, weight: Target, bias: Target | None) -> tuple[Tensor, Place | None]:
        """X Wᵀ + b."""

    def watch(self, y: Tensor) -> tuple[Tensor, Place | None]:
        """Y as part of the graph."""

    def also(self, x: Tensor, edges: Any, weight: Target, bias: Target | None) -> None:
        """A linear use whose outputs are already watched."""

    def note(self, rule: Rule, x: Tensor, edges: Any, targets: dict[str, Target]) -> None:
        """The same, of any kind."""


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

    def note(self, rule: Rule, x: Tensor, edges: Any, targets: dict[str, Target]) -> None:
        """Nothing to do."""


def unrolled(rnn: nn.RNNBase, tape: Linears, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
    """The layer's output and last states, like its own forward, in plain operations."""
    return _stacked(rnn, tape, x, hx, _unrolled_layer)


def stepwise(rnn: nn.RNNBase, tape: Linears, x: Any, hx: Any = None) -> tuple[Tensor, Any]:
    """The same, with a node of its own for the recursion where its weights are constants."""
    weights = [getattr(rnn, name) for name in vars(rnn)["_flat_weights_names"]]
    # weights computed from others (old weight_norm) have a gradient that the node would not give
    plain = rnn.proj_size or any(weight.requires_grad for weight in weights)
    return _stacked(rnn, tape, x, hx, _unrolled_layer if plain else _stepwise_layer)


def _stacked(rnn: nn.RNNBase, tape: Linears, x: Any, hx: Any, run: Layer) -> tuple[Tensor, Any]:
    """Layer upon layer, each a call of `run`."""
    kind = type(rnn).__name__
    if isinstance(x, PackedSequence):
        raise ModelError(
            f"{kind} was given a PackedSequence, which regroups the examples of a "
            "batch by length: give it the padded tensor and mask the loss instead"
        )
    if x.ndim != 3:
        raise ModelError(f"{kind} was given {x.ndim} dimensions: it needs a batch")
    lstm = isinstance(rnn, nn.LSTM)
    x = x if rnn.batch_first else x.transpose(0, 1)
    if x.shape[1] == 0:
        raise ModelError(f"{kind} was given sequences of length 0")
    directions = 2 if rnn.bidirectional else 1
    count = rnn.num_layers * directions
    real = rnn.proj_size if rnn.proj_size else rnn.hidden_size
    h0: Tensor
    c0: Tensor | None
    if hx is None:
        h0 = x.new_zeros(count, x.shape[0], real)
        c0 = x.new_zeros(count, x.shape[0], rnn.hidden_size) if lstm else None
    else:
        h0, c0 = hx if lstm else (hx, None)
    for name, state, width in (("h_0", h0, real), ("c_0", c0, rnn.hidden_size)):
        if state is not None and tuple(state.shape) != (count, x.shape[0], width):
            raise ModelError(
                f"{kind} was given {name} of shape {tuple(state.shape)}, "
                f"not {(count, x.shape[0], width)}"
            )
    last_h: list[Tensor] = []
    last_c: list[Tensor] = []
    for layer in range(rnn.num_layers):
        here = slice(layer * directions, (layer + 1) * directions)
        suffixes = [f"_l{layer}", f"_l{layer}_reverse"][:directions]
        x, h, c = run(rnn, tape, suffixes, x, h0[here], None if c0 is None else c0[here])
        last_h.append(h)
        if c is not None:
            last_c.append(c)
        if layer < rnn.num_layers - 1 and rnn.dropout > 0:
            x = F.dropout(x, rnn.dropout, rnn.training)
    output = x if rnn.batch_first else x.transpose(0, 1)
    hidden = torch.cat(last_h)
    return output, (hidden, torch.cat(last_c)) if lstm else hidden


def _target(rnn: nn.RNNBase, name: str) -> Target | None:
    parameter = getattr(rnn, name, None)
    return None if parameter is None else Target(parameter)


class _Weights(NamedTuple):
    """Those of one direction of a layer."""

    inward: Target
    hidden: Target
    bias_in: Target | None
    bias_hidden: Target | None

    def by_role(self) -> dict[str, Target]:
        """As `STEPS` calls them."""
        return {role: target for role, target in self._asdict().items() if target is not None}


def _weights(rnn: nn.RNNBase, suffix: str) -> _Weights:
    return _Weights(
        cast(Target, _target(rnn, "weight_ih" + suffix)),
        cast(Target, _target(rnn, "weight_hh" + suffix)),
        _target(rnn, "bias_ih" + suffix) if rnn.bias else None,
        _target(rnn, "bias_hh" + suffix) if rnn.bias else None,
    )


def _stepwise_layer(
    rnn: nn.RNNBase, tape: Linears, suffixes: list[str], x: Tensor, h: Tensor, c: Tensor | None
) -> LayerResult:
    """One layer, all of whose directions take a step at once."""
    weights = [_weights(rnn, suffix) for suffix in suffixes]
    weight = _joined([w.hidden for w in weights])
    assert weight is not None
    cell = cell_for(rnn.mode, x.device)
    by_step = cell.by_step and x.device.type == "cpu"  # elsewhere one product is faster
    pre: list[Tensor] = []
    offsets: list[Tensor] = []
    places: list[Place | None] = []  # of the inputs' pre-activations
    hidden: list[Place | None] = []
    for w in weights:
        if by_step:
            # never read or written: only its gradient counts
            own, place = tape.watch(x.new_empty(*x.shape[:2], weight.shape[1], dtype=weight.dtype))
        else:
            own, place = tape.linear(x, w.inward, w.bias_in)
        pre.append(own)
        places.append(place)
        if not cell.shared:
            zeros, place = tape.watch(torch.empty_like(own, requires_grad=False))
            offsets.append(zeros)
        hidden.append(place)
    # autocast narrows the linear maps; the states stay as precise as the weights
    dtype = torch.promote_types(torch.promote_types(weight.dtype, pre[0].dtype), h.dtype)
    output, h, c, states = Recursion.apply(
        cell,
        weight.to(dtype),
        _joined([w.bias_hidden for w in weights], dtype),
        h.to(dtype),
        None if c is None else c.to(dtype),
        x.to(dtype) if by_step else None,
        _joined([w.inward for w in weights], dtype) if by_step else None,
        _joined([w.bias_in for w in weights], dtype) if by_step else None,
        *(own.to(dtype) for own in pre),
        *offsets,
    )
    before = (views if by_step else given)(states[:-1])
    for w, rows, own_place, place in zip(weights, before, places, hidden, strict=True):
        if by_step and cell.shared:
            tape.note(STEPS, rows, [place], w.by_role())
            continue
        if by_step:
            tape.also(
                rows[..., h.shape[-1] :][..., : x.shape[-1]], [own_place], w.inward, w.bias_in
            )
        tape.also(rows[..., : h.shape[-1]], [place], w.hidden, w.bias_hidden)
    return output, h, c


def _joined(targets: list[Target | None], dtype: torch.dtype | None = None) -> Tensor | None:
    """One parameter of every direction."""
    found = [target.parameter for target in targets if target is not None]
    return torch.stack(found).to(dtype or found[0].dtype) if found else None


def _unrolled_layer(
    rnn: nn.RNNBase, tape: Linears, suffixes: list[str], x: Tensor, h: Tensor, c: Tensor | None
) -> LayerResult:
    """One layer, direction by direction: outputs [B, T, D·H] and the last states [D, B, H]."""
    outputs: list[Tensor] = []
    states: list[Tensor] = []
    cells: list[Tensor] = []
    for direction, suffix in enumerate(suffixes):
        output, last, cell = _unrolled_direction(
            rnn,
            tape,
            suffix,
            x.flip(1) if direction else x,
            h[direction],
            None if c is None else c[direction],
        )
        outputs.append(output.flip(1) if direction else output)
        states.append(last)
        if cell is not None:
            cells.append(cell)
    return torch.cat(outputs, 2), torch.stack(states), torch.stack(cells) if cells else None


def _unrolled_direction(
    rnn: nn.RNNBase, tape: Linears, suffix: str, x: Tensor, h: Tensor, c: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """One direction of one layer: outputs [B, T, H] and the last states."""
    inward, hidden, bias_in, bias_hidden = _weights(rnn, suffix)
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
        """The layer, step by step."""
        names = dict(zip(("input", "hx"), args, strict=False)) | kwargs
        return stepwise(cast(nn.RNNBase, module), tape, names["input"], names.get("hx"))


for _kind in (nn.LSTM, nn.GRU, nn.RNN):
    register_rule(_kind, RecurrentRule())
