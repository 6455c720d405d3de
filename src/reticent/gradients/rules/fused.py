"""Recurrent layers by torch's kernels for a whole cell, which only CUDA has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reticent.gradients.rules.cells import Back, Cell, Gradients, Run, Start
from reticent.gradients.rules.sequences import Inputs, filled

aten: Any = torch.ops.aten


class FusedLSTMCell(Cell):
    """The same with torch's kernels for a whole cell; they see directions as more examples."""

    by_step = False

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

    def backward(self, saved: Sequence[Tensor], back: Back, dc: Tensor | None) -> Gradients:
        """Two kernels for a step."""
        assert dc is not None
        last, shape = len(back.dh) - 1, dc
        cells, kept = saved[: last + 1], saved[last + 1 :]
        dc = dc.flatten(0, 1)
        grads: list[Tensor] = []
        for t in reversed(range(last)):
            grad, dc, _ = aten._thnn_fused_lstm_cell_backward_impl(
                back.dh[t + 1].flatten(0, 1), dc, cells[t], cells[t + 1], kept[t], False
            )
            grads.append(grad.view(*shape.shape[:2], -1))
            back.step(t, grads[-1])
        return Gradients([torch.stack(grads[::-1])], back.dh[0], dc.view_as(shape))


class FusedGRUCell(Cell):
    """The same with torch's kernels for a whole cell."""

    by_step = False
    shared = False

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

    def backward(self, saved: Sequence[Tensor], back: Back, dc: Tensor | None) -> Gradients:
        """Three kernels for a step."""
        own: list[Tensor] = []
        offsets: list[Tensor] = []
        dh = back.dh
        for t in reversed(range(len(saved))):
            mine, hidden, direct, _, _ = aten._thnn_fused_gru_cell_backward(
                dh[t + 1].flatten(0, 1), saved[t], False
            )
            own.append(mine.view(*dh[t].shape[:2], -1))
            offsets.append(hidden.view(*dh[t].shape[:2], -1))
            dh[t].add_(direct.view_as(dh[t]))
            back.step(t, offsets[-1])
        return Gradients([torch.stack(own[::-1]), torch.stack(offsets[::-1])], dh[0], None)


FUSED: dict[str, Cell] = {"LSTM": FusedLSTMCell(), "GRU": FusedGRUCell()}
