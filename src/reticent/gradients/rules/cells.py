"""The steps of recurrent layers, forward and back, over memory [T, D, B, ...].

The reverse direction is flipped in time, so that both go through one loop with one matrix product
per step each way. Most of what the way back multiplies the incoming gradients by is known
beforehand and computed for many steps at once, so its loop is short as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from reticent.gradients.rules.leases import Lease
from reticent.gradients.rules.sequences import (
    Inputs,
    blocks,
    memory,
    put,
    room,
    steps,
    taken,
    with_inputs,
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
    """States h_0 to h_T [T + 1, D, B, H], the last c, and what the way back needs.

    Behind the H columns of a state, x and 1 of the step that follows may stand (see `Walk`).
    """

    states: Tensor
    last: Tensor | None
    saved: list[Tensor]


class Gradients(NamedTuple):
    """Of the pre-activations, [T, D, B, G] each, and of the first states."""

    inputs: list[Tensor]
    h: Tensor
    c: Tensor | None


class Cell:
    """The steps of one kind of layer."""

    #: whether it can compute the inputs' pre-activations itself, step by step
    by_step: bool = True
    #: whether the inputs' and the hidden states' pre-activations have the same gradient
    shared: bool = True

    def of_inputs(self, rows: Tensor) -> Tensor:
        """W_ih [..., G, ·] as rows for all the pre-activations of a step."""
        return rows

    def of_hidden(self, rows: Tensor) -> Tensor:
        """W_hh in the same way."""
        return rows

    def forward(self, pre: Inputs, start: Start) -> Run:
        """All steps from the first to the last."""
        raise NotImplementedError

    def backward(self, saved: Sequence[Tensor], back: Back, dc: Tensor | None) -> Gradients:
        """All steps from the last to the first; `dc` may be written to."""
        raise NotImplementedError


class Walk:
    """The states, and the product every step begins with.

    Where x is given, a step's row is [h, x, 1]: its product with all weights at once gives the
    pre-activations. Otherwise those of the inputs are in memory already, and W_hh h is added.
    """

    def __init__(self, cell: Cell, pre: Inputs, start: Start) -> None:
        self.cell, self.pre, self.length = cell, pre, pre.parts[0].shape[1]
        weight, self.bias = cell.of_hidden(start.weight), None
        if start.bias is not None:
            self.bias = cell.of_hidden(start.bias.unsqueeze(-1))
        if pre.x is None:
            self.rows = room(start.h, self.length)
        else:
            assert pre.weight is not None
            weights = [weight, cell.of_inputs(pre.weight)]
            if self.bias is not None:
                assert pre.bias is not None
                weights.append(self.bias + cell.of_inputs(pre.bias.unsqueeze(-1)))
            self.rows = with_inputs(start.h, pre.x, ones=self.bias is not None)
            weight = torch.cat(weights, -1)
        self.weight = weight.mT.contiguous()
        self.states = self.rows[..., : start.h.shape[-1]]

    def gates(self, lease: Lease | None, *, kept: bool = True) -> Tensor:
        """Memory [T, D, B, G] for `step`; not `kept`, it may be the same for every step."""
        shape = (*self.rows.shape[1:3], self.weight.shape[-1])
        if self.pre.x is not None and not kept:
            return self.rows.new_empty(shape).expand(self.length, *shape)
        gates = memory(self.rows, lease, self.length, *shape)
        if self.pre.x is None:
            bias = None if self.bias is None else self.bias.squeeze(-1)
            for some in blocks(gates):
                owns = [own.unsqueeze(-1) for own in taken(self.pre.parts, some)]
                put(gates[some], [self.cell.of_inputs(own).squeeze(-1) for own in owns], bias)
        return gates

    def step(self, row: Tensor, gate: Tensor) -> Tensor:
        """The pre-activations [D, B, G] of a step, in their memory."""
        if self.pre.x is None:
            return gate.baddbmm_(row, self.weight)
        return torch.bmm(row, self.weight, out=gate)


class Back:
    """Gradients of the states, and the product every step back ends with.

    `dh` [T + 1, D, B, H] are those from outside, and are written to. With W_ih [D, G, I], the same
    product gives the gradients of x.
    """

    def __init__(
        self, dh: Tensor, weight: Tensor, weight_in: Tensor | None, lease: Lease | None
    ) -> None:
        self.whole, self.dh, self.weight = dh, dh.unbind(), weight
        self.dx: Tensor | None = None  # [T, D, B, I]
        if weight_in is not None:
            self.weight, width = torch.cat([weight, weight_in], 2), weight.shape[2]
            length, directions, batch, _ = dh[1:].shape
            both = memory(dh, lease, length, directions, batch, self.weight.shape[2])
            self.dx, self._own = both[..., width:], both[..., :width].unbind()
            self._both = both.unbind()

    def step(self, t: int, grad: Tensor) -> None:
        """Add what the pre-activations' gradient [D, B, G] gives to that of the state before."""
        if self.dx is None:
            self.dh[t].baddbmm_(grad, self.weight)
        else:
            torch.bmm(grad, self.weight, out=self._both[t])
            self.dh[t].add_(self._own[t])


class LSTMCell(Cell):
    """Input, forget, cell and output gates: c' = f·c + i·g, h' = o·tanh(c')."""

    def of_inputs(self, rows: Tensor) -> Tensor:
        """Twice those of the cell gate, whose tanh(y) is 2σ(2y) − 1: one sigmoid does for all."""
        twice = rows.clone()
        twice.unflatten(-2, (4, -1))[..., 2, :, :] *= 2
        return twice

    of_hidden = of_inputs

    def forward(self, pre: Inputs, start: Start) -> Run:
        """The gates are activated in place."""
        assert start.c is not None
        walk = Walk(self, pre, start)
        gates, cells = walk.gates(start.lease), room(start.c, walk.length, start.lease)
        curved = start.lease.empty(start.c, walk.length, *start.c.shape)
        c, h = cells.unbind(), walk.states.unbind()
        parts = gates.unflatten(-1, (4, -1)).unbind(-2)
        known = (walk.rows[:-1], gates, *parts, curved)
        for row, gate, i, f, g, o, tanh, before, after, state in zip(
            *(each.unbind() for each in known), c[:-1], c[1:], h[1:], strict=True
        ):
            walk.step(row, gate).sigmoid_()
            _about_zero(g)
            torch.mul(f, before, out=after).addcmul_(i, g)
            _about_zero(torch.mul(after, 2, out=tanh).sigmoid_())
            torch.mul(o, tanh, out=state)
        return Run(walk.rows, cells[-1], [gates, cells, curved])

    def backward(self, saved: Sequence[Tensor], back: Back, dc: Tensor | None) -> Gradients:
        """The gates' gradients start as what dh' and dc' are to be multiplied by."""
        assert dc is not None
        gates, cells, curved = saved
        grads = memory(gates, None, *gates.shape)
        i, f, g, o = gates.unflatten(-1, (4, -1)).unbind(-2)
        di, df, dg, do = grads.unflatten(-1, (4, -1)).unbind(-2)
        known = (di, df, dg, do, f, grads)
        step = list(zip(back.dh[1:], *(each.unbind() for each in known), strict=True))
        for some in reversed(list(blocks(gates))):
            aten.sigmoid_backward(g[some], i[some], grad_input=di[some])
            aten.sigmoid_backward(cells[some], f[some], grad_input=df[some])
            aten.tanh_backward(i[some], g[some], grad_input=dg[some])
            aten.sigmoid_backward(curved[some], o[some], grad_input=do[some])
            through = aten.tanh_backward(o[some], curved[some]).unbind()  # from h' to c'
            for t in reversed(steps(some)):
                dh, at_i, at_f, at_g, at_o, forget, grad = step[t]
                at_o.mul_(dh)
                dc.addcmul_(dh, through[t - some.start])
                at_i.mul_(dc)
                at_f.mul_(dc)
                at_g.mul_(dc)
                dc.mul_(forget)
                back.step(t, grad)
        return Gradients([grads], back.dh[0], dc)


class GRUCell(Cell):
    """Reset, update and new gates: n = tanh(p_n + r·q_n), h' = n + z·(h − n).

    The first two gates take both pre-activations together. Those of the new gate stay apart: its
    q_n comes third, p_n fourth.
    """

    shared = False

    def of_inputs(self, rows: Tensor) -> Tensor:
        """None for the third."""
        reset, update, new = rows.chunk(3, -2)
        return torch.cat([reset, update, torch.zeros_like(new), new], -2)

    def of_hidden(self, rows: Tensor) -> Tensor:
        """None for the fourth."""
        return torch.cat([rows, torch.zeros_like(rows.chunk(3, -2)[0])], -2)

    def forward(self, pre: Inputs, start: Start) -> Run:
        """The gates are activated in place."""
        walk = Walk(self, pre, start)
        gates, h = walk.gates(start.lease), walk.states.unbind()
        parts = gates.unflatten(-1, (4, -1))
        r, z, q, n = (part.unbind() for part in parts.unbind(-2))
        both, row, gate = parts[..., :2, :].unbind(), walk.rows.unbind(), gates.unbind()
        for t in range(walk.length):
            walk.step(row[t], gate[t])
            both[t].sigmoid_()
            _tanh(n[t].addcmul_(r[t], q[t]), out=n[t])
            torch.lerp(n[t], h[t], z[t], out=h[t + 1])
        return Run(walk.rows, None, [gates, walk.states])

    def backward(self, saved: Sequence[Tensor], back: Back, dc: Tensor | None) -> Gradients:
        """Every gradient of a step is dh' times something known beforehand."""
        gates, states = saved
        (length, directions, batch, _), width = gates.shape, states.shape[-1]
        own, offsets = (memory(gates, None, length, directions, batch, 3 * width) for _ in range(2))
        r, z, q, n = gates.unflatten(-1, (4, -1)).unbind(-2)
        keep, dh, grad = z.unbind(), back.dh, offsets.unbind()
        parts = offsets.unflatten(-1, (3, -1))
        part = parts.unbind()
        for some in reversed(list(blocks(gates))):
            inner = aten.tanh_backward(1 - z[some], n[some])  # from h' to the new gate
            to_reset, to_update, to_new = parts[some].unbind(-2)
            torch.mul(inner, aten.sigmoid_backward(q[some], r[some]), out=to_reset)
            aten.sigmoid_backward(states[some] - n[some], z[some], grad_input=to_update)
            torch.mul(inner, r[some], out=to_new)
            for t in reversed(steps(some)):
                part[t].mul_(dh[t + 1].unsqueeze(-2))
                dh[t].addcmul_(dh[t + 1], keep[t])
                back.step(t, grad[t])
            own[some][..., : 2 * width] = offsets[some][..., : 2 * width]
            after = back.whole[some.start + 1 : some.stop + 1]
            torch.mul(inner, after, out=own[some][..., 2 * width :])
        return Gradients([own, offsets], dh[0], None)


class RNNCell(Cell):
    """h' = tanh or relu of the pre-activations."""

    def __init__(self, curve: Any, slope: Any) -> None:
        self.curve, self.slope = curve, slope

    def forward(self, pre: Inputs, start: Start) -> Run:
        """What the way back needs are the states."""
        walk = Walk(self, pre, start)
        known = (walk.rows[:-1], walk.gates(None, kept=False), walk.states[1:])
        for row, gate, state in zip(*(each.unbind() for each in known), strict=True):
            self.curve(walk.step(row, gate), out=state)
        return Run(walk.rows, None, [walk.states])

    def backward(self, saved: Sequence[Tensor], back: Back, dc: Tensor | None) -> Gradients:
        """Two operations for a step; what comes out is what went in, times the slope."""
        h = saved[0]
        grads = memory(h, None, *h[1:].shape)
        known = (h[1:], grads)
        every = zip(back.dh[1:], *(each.unbind() for each in known), strict=True)
        for t, (dh, state, grad) in reversed(list(enumerate(every))):
            self.slope(dh, state, grad_input=grad)
            back.step(t, grad)
        return Gradients([grads], back.dh[0], None)


def _about_zero(x: Tensor, out: Tensor | None = None) -> None:
    """2x − 1, in place unless told: tanh(y) from x = σ(2y), much faster on CPUs."""
    torch.add(_MINUS_ONE, x, alpha=2, out=x if out is None else out)


def _tanh(x: Tensor, *, out: Tensor) -> None:
    """The tanh of x, which may be written to."""
    if x.device.type == "cpu":
        _about_zero(x.mul_(2).sigmoid_(), out)
    else:
        torch.tanh(x, out=out)


def _relu(x: Tensor, *, out: Tensor) -> Tensor:
    return torch.clamp_min(x, 0, out=out)


def _relu_backward(g: Tensor, y: Tensor, *, grad_input: Tensor) -> Tensor:
    slope: Tensor = aten.threshold_backward(g, y, 0, grad_input=grad_input)
    return slope


CELLS: dict[str, Cell] = {
    "LSTM": LSTMCell(),
    "GRU": GRUCell(),
    "RNN_TANH": RNNCell(_tanh, aten.tanh_backward),
    "RNN_RELU": RNNCell(_relu, _relu_backward),
}
