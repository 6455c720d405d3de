"""The recursion of one recurrent layer as a single node of the graph, differentiated by hand.

Left to autograd, a time step is a dozen small operations and as many nodes. Here it is a few, over
memory that both directions of a layer share (see `cells.py`).

The weights are constants here; the caller records their use. Its output gradient is that of the
pre-activations in LSTM and RNN. In GRU the reset gate stands between the inputs' and the hidden
states' pre-activations; the latter's gradient goes to `offsets`, zeros added to them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reticent.gradients.rules.base import NoFastPathError
from reticent.gradients.rules.cells import CELLS, Back, Cell, Start
from reticent.gradients.rules.fused import FUSED
from reticent.gradients.rules.leases import Lease
from reticent.gradients.rules.sequences import (
    Inputs,
    added,
    blocks,
    given,
    put,
    taken,
    together,
    views,
)


def cell_for(mode: str, device: torch.device) -> Cell:
    """By the name nn.RNNBase gives a kind of layer; only CUDA has kernels for whole cells."""
    return (FUSED if device.type == "cuda" else {}).get(mode) or CELLS[mode]


class Recursion(torch.autograd.Function):
    """From the inputs' pre-activations to outputs [B, T, D·H], last h and c [D, B, H], all states.

    The states, h_0 to h_T [T + 1, D, B, H], are for the records and carry no gradient. With x they
    are rows [h, x, 1], and the gradients of `inputs` are in the order of these rows: in the reverse
    direction, the last step comes first.
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
            pre = Inputs(inputs[: len(h)], x, weight_in, bias_in)
            lease = Lease()
            run = cell.forward(pre, Start(weight, bias, h, c, lease))
            states = run.states[..., : h.shape[-1]]
            output = together(states[1:])
        ctx.cell, ctx.lease, ctx.shape = cell, lease, states.shape
        ctx.save_for_backward(weight, weight_in, *run.saved)
        ctx.mark_non_differentiable(run.states)
        ctx.set_materialize_grads(False)
        last = None if run.last is None else run.last.clone()
        return output, states[-1].clone(), last, run.states

    @staticmethod
    def backward(
        ctx: Any, d_output: Tensor | None, d_h: Tensor | None, d_c: Tensor | None, _: Any
    ) -> tuple[Tensor | None, ...]:
        """Gradients of the states that were given, of x and of `inputs`."""
        if torch.is_grad_enabled():  # left alone, the second derivative would be taken for zero
            raise NoFastPathError("the gradient of a recurrent layer is itself differentiated")
        weight, weight_in, *saved = ctx.saved_tensors
        with torch.autocast(weight.device.type, enabled=False):
            wanted: Tensor | None = weight_in if ctx.needs_input_grad[5] else None
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
            back = Back(dh, weight, wanted if ctx.cell.shared else None, lease)
            found = ctx.cell.backward(saved, back, dc)
            dx: Tensor | None = None
            if back.dx is not None:
                dx = added(back.dx)
            elif wanted is not None:
                each = zip(found.inputs[0].unbind(1), wanted, strict=True)
                dx = added(torch.stack([g.bmm(w.expand(len(g), -1, -1)) for g, w in each], 1))
            ordered = given if weight_in is None else views
            inputs = [part for whole in found.inputs for part in ordered(whole)]
        h = found.h.clone()  # the caller may keep it, the lease's memory not
        return None, None, None, h, found.c, dx, None, None, *inputs
