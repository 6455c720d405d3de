"""The recursion of one recurrent layer as a single node of the graph, differentiated by hand.

Both directions go through one loop over memory [T, D, B, ...], the reverse direction flipped in
time, or each through a loop of its own at the same time (`directions`). The steps are in `cells`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reticent.gradients.rules import directions
from reticent.gradients.rules.base import NoFastPathError
from reticent.gradients.rules.cells import Cell, Gradients, Run, Start
from reticent.gradients.rules.sequences import (
    Inputs,
    blocks,
    put,
    taken,
    together,
    with_ones,
)


def _apart(cell: Cell, pre: Inputs, start: Start) -> Run:
    """`cell.forward` with each direction on its own."""

    def forward(d: int) -> Run:
        own = [None if each is None else each[d : d + 1] for each in start]
        return cell.forward(pre.only(d), Start(*own))  # type: ignore[arg-type]

    runs = directions.each(forward)
    last = [run.last for run in runs if run.last is not None]
    saved = [kept for run in runs for kept in run.saved]
    return Run(torch.cat([run.states for run in runs], 1), torch.cat(last) if last else None, saved)


def _apart_back(
    cell: Cell, saved: Sequence[Tensor], weight: Tensor, dh: Tensor, dc: Tensor
) -> Gradients:
    """The way back of `_apart`."""
    half = len(saved) // 2

    def backward(d: int) -> Gradients:
        own = slice(d, d + 1)
        mine = saved[d * half : (d + 1) * half]
        return cell.backward(mine, weight[own], dh[:, own], dc[own], d)

    found = directions.each(backward)
    inputs = directions.interleaved([one.inputs for one in found])
    return Gradients(inputs, dh[0], None if found[0].c is None else dc)


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
            pre, start = Inputs(inputs[: len(h)], x, weight_in, bias_in), Start(weight, bias, h, c)
            ctx.apart = x is not None and directions.pays(h)
            run = _apart(cell, pre, start) if ctx.apart else cell.forward(pre, start)
            output = together(run.states[1:])
        ctx.cell, ctx.shape = cell, run.states.shape
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
            dh = weight.new_empty(ctx.shape)
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
            if ctx.apart:
                found = _apart_back(ctx.cell, saved, weight, dh, dc)
            else:
                found = ctx.cell.backward(saved, weight, dh, dc)
            dx: Tensor | None = None
            if weight_in is not None and ctx.needs_input_grad[5]:
                for grad, rows in zip(found.inputs, weight_in, strict=False):
                    back = grad.flatten(0, 1) @ rows
                    dx = back if dx is None else dx.add_(back)
                assert dx is not None
                dx = dx.unflatten(0, found.inputs[0].shape[:2])
        return None, None, None, found.h, found.c, dx, None, None, *found.inputs
