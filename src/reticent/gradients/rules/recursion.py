"""The recursion of one recurrent layer as a single node of the graph, differentiated by hand.

Left to autograd, a time step is a dozen small operations and as many nodes. Here both directions
of a layer go through one loop over memory [T, D, B, ...], the reverse direction flipped in time,
with one matrix product per step each way. Most of what the way back multiplies the incoming
gradients by is known beforehand and computed for many steps at once, so its loop is short as well.

The hidden states' weights are constants here; the caller records their use. Its output gradient is
that of the pre-activations in LSTM and RNN. In GRU the reset gate stands between the inputs' and
the hidden states' pre-activations; the latter's gradient goes to `offsets`, zeros added to them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reticent.gradients.rules.base import NoFastPathError
from reticent.gradients.rules.leases import Lease
from reticent.gradients.rules.sequences import (
    Inputs,
    blocks,
    empty,
    filled,
    give,
    given,
    like,
    memory,
    put,
    room,
    steps,
    taken,
    together,
    with_ones,
)

aten: Any = torch.ops.aten
_MINUS_ONE = torch.tensor(-1.0)


class Start(NamedTuple):
    """W_hh [D, G, H], the biases [D, G] to add, the first states [D, B, H].

    What the way back needs and nobody else sees may be in the memory of `lease`.
    """

    weight: Tensor
    bias: Tensor | None
    h: Tensor
    c: Tensor | None
    lease: Lease


class Run(NamedTuple):
    """States h_0 to h_T [T + 1, D, B, H], the last c, and what the way back needs."""

    states: Tensor
    last: Tensor | None
    saved: list[Tensor]


class Gradients(NamedTuple):
    """Of what was given: `inputs` as in `Recursion.forward`, and the first states."""

    inputs: list[Tensor]
    h: Tensor
    c: Tensor | None


class Cell:
    """The steps of one kind of layer, forward and back."""

    #: whether it takes its inputs a few steps at a time
    by_block: bool = True

    def forward(self, pre: Inputs, start: Start) -> Run:
        """All steps from the first to the last."""
        raise NotImplementedError

    def backward(
        self, saved: Sequence[Tensor], weight: Tensor, dh: Tensor, dc: Tensor | None
    ) -> Gradients:
        """`dh` [T + 1, D, B, H], of every state from outside, may be written to; so may `dc`."""
        raise NotImplementedError


class LSTMCell(Cell):
    """Input, forget, cell and output gates: c' = f·c + i·g, h' = o·tanh(c')."""

    def forward(self, pre: Inputs, start: Start) -> Run:
        """The gates are activated in place, all with one sigmoid: the cell's is doubled before."""
        assert start.c is not None
        gates = empty(pre.parts, start.lease)
        states, cells = room(start.h, len(gates)), room(start.c, len(gates), start.lease)
        curved = start.lease.empty(start.c, len(gates), *start.c.shape)
        parts = gates.unflatten(-1, (4, -1))
        i, f, g, o = (part.unbind() for part in parts.unbind(-2))
        h, c, tanh = states.unbind(), cells.unbind(), curved.unbind()
        gate, bias = gates.unbind(), pre.with_own(start.bias)
        weight = start.weight.clone()
        weight.unflatten(1, (4, -1))[:, 2] *= 2
        weight = weight.mT
        for some in blocks(gates):
            pre.put(gates[some], pre.at(some), bias)
            parts[some, :, :, 2] *= 2
            for t in steps(some):
                gate[t].baddbmm_(h[t], weight).sigmoid_()
                _about_zero(g[t])
                torch.mul(f[t], c[t], out=c[t + 1]).addcmul_(i[t], g[t])
                _about_zero(torch.mul(c[t + 1], 2, out=tanh[t]).sigmoid_())
                torch.mul(o[t], tanh[t], out=h[t + 1])
        return Run(states, cells[-1], [gates, cells, curved])

    def backward(
        self, saved: Sequence[Tensor], weight: Tensor, dh: Tensor, dc: Tensor | None
    ) -> Gradients:
        """The gates' gradients start as what dh' and dc' are to be multiplied by."""
        assert dc is not None
        gates, cells, curved = saved
        found = like(gates)
        i, f, g, o = gates.unflatten(-1, (4, -1)).unbind(-2)
        forget, outside = f.unbind(), dh.unbind()
        for some in reversed(list(blocks(gates))):
            grads = torch.empty_like(gates[some])
            parts = grads.unflatten(-1, (4, -1))
            aten.sigmoid_backward(g[some], i[some], grad_input=parts[..., 0, :])
            aten.sigmoid_backward(cells[some], f[some], grad_input=parts[..., 1, :])
            aten.tanh_backward(i[some], g[some], grad_input=parts[..., 2, :])
            aten.sigmoid_backward(curved[some], o[some], grad_input=parts[..., 3, :])
            through = aten.tanh_backward(o[some], curved[some])  # from h' to c'
            known = (parts[..., 3, :], through, parts[..., :3, :], grads)
            step = list(zip(*(each.unbind() for each in known), strict=True))
            for t in reversed(steps(some)):
                of_h, to_c, of_c, grad = step[t - some.start]
                of_h.mul_(outside[t + 1])
                dc.addcmul_(outside[t + 1], to_c)
                of_c.mul_(dc.unsqueeze(-2))
                dc.mul_(forget[t])
                outside[t].baddbmm_(grad, weight)
            give(found, some, grads)
        return Gradients(found, dh[0], dc)


class FusedLSTMCell(Cell):
    """The same with torch's kernels for a whole cell; they see directions as more examples."""

    by_block = False

    def forward(self, pre: Inputs, start: Start) -> Run:
        """Two kernels for a step."""
        assert start.c is not None
        gates = filled(pre.parts, start.bias)
        none = torch.zeros_like(gates[0]).flatten(0, 1)
        h, c, weight = start.h, start.c.flatten(0, 1), start.weight.mT
        states, cells, kept = [h], [c], []
        for gate in gates.unbind():
            flat = gate.baddbmm_(h, weight).flatten(0, 1)
            h, c, work = aten._thnn_fused_lstm_cell(flat, none, c)
            h = h.view_as(start.h)
            states.append(h)
            cells.append(c)
            kept.append(work)
        return Run(torch.stack(states), c.view_as(start.c), [*cells, *kept])

    def backward(
        self, saved: Sequence[Tensor], weight: Tensor, dh: Tensor, dc: Tensor | None
    ) -> Gradients:
        """Two kernels for a step."""
        assert dc is not None
        last, shape = len(dh) - 1, dc
        cells, kept = saved[: last + 1], saved[last + 1 :]
        outside, dc = dh.unbind(), dc.flatten(0, 1)
        grads: list[Tensor] = []
        for t in reversed(range(last)):
            grad, dc, _ = aten._thnn_fused_lstm_cell_backward_impl(
                outside[t + 1].flatten(0, 1), dc, cells[t], cells[t + 1], kept[t], False
            )
            grads.append(grad.view(*shape.shape[:2], -1))
            outside[t].baddbmm_(grads[-1], weight)
        return Gradients(given(grads[::-1]), dh[0], dc.view_as(shape))


class GRUCell(Cell):
    """Reset, update and new gates: n = tanh(p_n + r·q_n), h' = n + z·(h − n)."""

    def forward(self, pre: Inputs, start: Start) -> Run:
        """The first two gates take the inputs' pre-activations along, the new gate must not."""
        two = 2 * start.h.shape[-1]
        gates, states = empty(pre.parts, start.lease), room(start.h, pre.parts[0].shape[1])
        new = memory(start.h, start.lease, len(gates), *start.h.shape)
        parts = gates.unflatten(-1, (3, -1))
        first = parts[..., :2, :].unbind()
        r, z, q = (part.unbind() for part in parts.unbind(-2))
        gate, h, n, weight = gates.unbind(), states.unbind(), new.unbind(), start.weight.mT
        bias, bias_new = start.bias, None
        if bias is not None and pre.bias is not None:
            bias_new = pre.bias
            bias = torch.cat([bias[:, :two] + pre.bias[:, :two], bias[:, two:]], 1)
        for some in blocks(gates):
            owns, here = pre.at(some), gates[some]
            pre.put(here[..., :two], owns, bias, slice(two))
            here[..., two:] = 0.0 if bias is None else bias[:, None, two:]
            pre.put(new[some], owns, bias_new, slice(two, None))
            for t in steps(some):
                gate[t].baddbmm_(h[t], weight)
                first[t].sigmoid_()
                n[t].addcmul_(r[t], q[t]).tanh_()
                torch.lerp(n[t], h[t], z[t], out=h[t + 1])
        return Run(states, None, [gates, new, states])

    def backward(
        self, saved: Sequence[Tensor], weight: Tensor, dh: Tensor, dc: Tensor | None
    ) -> Gradients:
        """Every gradient of a step is dh' times something known beforehand."""
        gates, new, states = saved
        own, offsets = like(gates), like(gates)
        r, z, q = gates.unflatten(-1, (3, -1)).unbind(-2)
        keep, outside = z.unbind(), dh.unbind()
        for some in reversed(list(blocks(gates))):
            grads = torch.empty_like(gates[some])
            parts = grads.unflatten(-1, (3, -1))
            inner = aten.tanh_backward(1 - z[some], new[some])  # from h' to the new gate
            torch.mul(inner, aten.sigmoid_backward(q[some], r[some]), out=parts[..., 0, :])
            apart = states[some] - new[some]
            aten.sigmoid_backward(apart, z[some], grad_input=parts[..., 1, :])
            torch.mul(inner, r[some], out=parts[..., 2, :])
            part, grad = parts.unbind(), grads.unbind()
            for t in reversed(steps(some)):
                part[t - some.start].mul_(outside[t + 1].unsqueeze(-2))
                outside[t].addcmul_(outside[t + 1], keep[t]).baddbmm_(grad[t - some.start], weight)
            give(offsets, some, grads)
            torch.mul(inner, dh[some.start + 1 : some.stop + 1], out=parts[..., 2, :])
            give(own, some, grads)
        return Gradients(own + offsets, dh[0], None)


class FusedGRUCell(Cell):
    """The same with torch's kernels for a whole cell."""

    by_block = False

    def forward(self, pre: Inputs, start: Start) -> Run:
        """Two kernels for a step."""
        own, gates = filled(pre.parts), filled(pre.parts, start.bias, shared=0)
        h, weight = start.h, start.weight.mT
        states, kept = [h], []
        for mine, gate in zip(own.flatten(1, 2).unbind(), gates.unbind(), strict=True):
            flat = gate.baddbmm_(h, weight).flatten(0, 1)
            h, work = aten._thnn_fused_gru_cell(mine, flat, h.flatten(0, 1))
            h = h.view_as(start.h)
            states.append(h)
            kept.append(work)
        return Run(torch.stack(states), None, kept)

    def backward(
        self, saved: Sequence[Tensor], weight: Tensor, dh: Tensor, dc: Tensor | None
    ) -> Gradients:
        """Three kernels for a step."""
        own: list[Tensor] = []
        offsets: list[Tensor] = []
        outside = dh.unbind()
        for t in reversed(range(len(saved))):
            mine, hidden, direct, _, _ = aten._thnn_fused_gru_cell_backward(
                outside[t + 1].flatten(0, 1), saved[t], False
            )
            own.append(mine.view(*dh.shape[1:3], -1))
            offsets.append(hidden.view(*dh.shape[1:3], -1))
            outside[t].add_(direct.view_as(outside[t])).baddbmm_(offsets[-1], weight)
        return Gradients(given(own[::-1]) + given(offsets[::-1]), dh[0], None)


class RNNCell(Cell):
    """h' = tanh or relu of the pre-activations."""

    def __init__(self, curve: Any, slope: Any) -> None:
        self.curve, self.slope = curve, slope

    def forward(self, pre: Inputs, start: Start) -> Run:
        """Two operations for a step."""
        states = room(start.h, pre.parts[0].shape[1])
        after, h, weight = states[1:], states.unbind(), start.weight.mT
        bias = pre.with_own(start.bias)
        for some in blocks(after):
            gates = memory(start.h, None, len(after[some]), *start.h.shape)
            pre.put(gates, pre.at(some), bias)
            for t, gate in zip(steps(some), gates.unbind(), strict=True):
                self.curve(gate.baddbmm_(h[t], weight), out=h[t + 1])
        return Run(states, None, [states])

    def backward(
        self, saved: Sequence[Tensor], weight: Tensor, dh: Tensor, dc: Tensor | None
    ) -> Gradients:
        """Two operations for a step; what comes out is what went in, times the slope."""
        outside, h = dh.unbind(), saved[0].unbind()
        grads = torch.empty_like(dh[1:])
        for t, grad in reversed(list(enumerate(grads.unbind()))):
            self.slope(outside[t + 1], h[t + 1], grad_input=grad)
            outside[t].baddbmm_(grad, weight)
        return Gradients(given(grads), dh[0], None)


def _about_zero(x: Tensor) -> None:
    """2x − 1 in place: tanh(y) from x = σ(2y), which CPUs compute several times faster."""
    torch.add(_MINUS_ONE, x, alpha=2, out=x)


def _relu(x: Tensor, *, out: Tensor) -> Tensor:
    return torch.clamp_min(x, 0, out=out)


def _relu_backward(g: Tensor, y: Tensor, *, grad_input: Tensor) -> Tensor:
    slope: Tensor = aten.threshold_backward(g, y, 0, grad_input=grad_input)
    return slope


CELLS: dict[str, Cell] = {
    "LSTM": LSTMCell(),
    "GRU": GRUCell(),
    "RNN_TANH": RNNCell(torch.tanh, aten.tanh_backward),
    "RNN_RELU": RNNCell(_relu, _relu_backward),
}
FUSED: dict[str, Cell] = {"LSTM": FusedLSTMCell(), "GRU": FusedGRUCell()}


def cell_for(mode: str, device: torch.device) -> Cell:
    """By the name nn.RNNBase gives a kind of layer; only CUDA has kernels for whole cells."""
    return (FUSED if device.type == "cuda" else {}).get(mode) or CELLS[mode]


class Recursion(torch.autograd.Function):
    """From the inputs' pre-activations to outputs [B, T, D·H], last h and c [D, B, H], all states.

    The states, h_0 to h_T [T + 1, D, B, H], are for the records and carry no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        cell: Cell,
        weight: Tensor,
        bias: Tensor | None,
        h: Tensor,
        c: Tensor | None,
        x: Tensor | None,
        weight_in: Tensor | None,
        bias_in: Tensor | None,
        *inputs: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """`inputs` are the pre-activations [B, T, G] of each direction, then GRU's offsets.

        With x and its weights, they are computed here, and `inputs` only receive the gradients.
        """
        with torch.autocast(h.device.type, enabled=False):
            x = None if x is None else with_ones(x)
            pre = Inputs(inputs[: len(h)], x, weight_in, bias_in)
            lease = Lease()
            run = cell.forward(pre, Start(weight, bias, h, c, lease))
            output = together(run.states[1:])
        ctx.cell, ctx.shape, ctx.lease = cell, run.states.shape, lease
        ctx.save_for_backward(weight, weight_in, *run.saved)
        ctx.mark_non_differentiable(run.states)
        ctx.set_materialize_grads(False)
        last = None if run.last is None else run.last.clone()
        return output, run.states[-1].clone(), last, run.states

    @staticmethod
    def backward(
        ctx: Any, d_output: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the states that were given and of `inputs`."""
        if torch.is_grad_enabled():  # left alone, the second derivative would be taken for zero
            raise NoFastPathError("the gradient of a recurrent layer is itself differentiated")
        weight, weight_in, *saved = ctx.saved_tensors
        with torch.autocast(weight.device.type, enabled=False):
            lease = Lease()
            dh = lease.empty(weight, *ctx.shape)
            dh[0] = 0.0
            if d_output is None:
                dh[1:] = 0.0
            else:
                parts, after = d_output.chunk(len(weight), -1), dh[1:]
                for some in blocks(after):
                    put(after[some], taken(parts, some))
            if d_h is not None:
                dh[-1] += d_h
            dc = weight.new_zeros(ctx.shape[1:]) if d_c is None else d_c.clone()
            found = ctx.cell.backward(saved, weight, dh, dc)
            dx: Tensor | None = None
            if weight_in is not None and ctx.needs_input_grad[5]:
                for grad, rows in zip(found.inputs, weight_in, strict=False):
                    back = grad.flatten(0, 1) @ rows
                    dx = back if dx is None else dx.add_(back)
                assert dx is not None
                dx = dx.unflatten(0, found.inputs[0].shape[:2])
        return None, None, None, found.h.clone(), found.c, dx, None, None, *found.inputs
