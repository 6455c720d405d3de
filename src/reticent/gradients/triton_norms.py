"""GPU kernels in Triton for normalisation layers: forward, and backward with per-example gradients.

As in `triton_kernels.py`. An example's block is read again from the cache, not from memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _over_groups(values, GROUPS: tl.constexpr, CHANNELS: tl.constexpr):
    """Each channel's value replaced by the sum over its group."""
    if GROUPS == 1:
        return tl.zeros((CHANNELS,), dtype=tl.float32) + tl.sum(values, 0)
    else:  # noqa: RET505 (the compiler reads both ways)
        sums = tl.sum(tl.reshape(values, (GROUPS, CHANNELS // GROUPS)), 1)
        wide = tl.broadcast_to(sums[:, None], (GROUPS, CHANNELS // GROUPS))
        return tl.reshape(wide, (CHANNELS,))


@triton.jit
def group_norm(
    x,
    weight,
    bias,
    y,
    means,
    scales,
    channels,
    area,
    block,
    sb,
    sc,
    st,
    eps,
    count,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    AREA: tl.constexpr,
):
    """A block of channels of one example, made of whole groups of `count` numbers each."""
    b = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, CHANNELS)
    c = tl.program_id(0) * block + k
    known = k < block
    rows = b * sb + c[:, None] * sc
    total = tl.zeros((CHANNELS, AREA), dtype=tl.float32)
    for start in range(0, area, AREA):
        t = start + tl.arange(0, AREA)
        here = known[:, None] & (t < area)[None, :]
        total += tl.load(x + rows + t[None, :] * st, mask=here, other=0.0)
    mean = _over_groups(tl.sum(total, 1), GROUPS, CHANNELS) / count
    total = tl.zeros((CHANNELS, AREA), dtype=tl.float32)
    for start in range(0, area, AREA):
        t = start + tl.arange(0, AREA)
        here = known[:, None] & (t < area)[None, :]
        value = tl.load(x + rows + t[None, :] * st, mask=here, other=0.0) - mean[:, None]
        total += tl.where(here, value * value, 0.0)
    scale = 1.0 / tl.sqrt(_over_groups(tl.sum(total, 1), GROUPS, CHANNELS) / count + eps)
    factor = scale * tl.load(weight + c, mask=known, other=0.0)
    offset = tl.load(bias + c, mask=known, other=0.0)
    for start in range(0, area, AREA):
        t = start + tl.arange(0, AREA)
        here = known[:, None] & (t < area)[None, :]
        value = tl.load(x + rows + t[None, :] * st, mask=here, other=0.0) - mean[:, None]
        tl.store(y + rows + t[None, :] * st, value * factor[:, None] + offset[:, None], mask=here)
    tl.store(means + b * channels + c, mean, mask=known)
    tl.store(scales + b * channels + c, scale, mask=known)


@triton.jit
def group_norm_back(
    x,
    g,
    weight,
    means,
    scales,
    dx,
    weights,
    biases,
    channels,
    area,
    block,
    sb,
    sc,
    st,
    count,
    GROUPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    AREA: tl.constexpr,
    INPUT: tl.constexpr,
):
    """Each channel's Σ g·x̂ and Σ g, and, if INPUT, the gradient of the input."""
    b = tl.program_id(1).to(tl.int64)
    k = tl.arange(0, CHANNELS)
    c = tl.program_id(0) * block + k
    known = k < block
    mean = tl.load(means + b * channels + c, mask=known, other=0.0)
    scale = tl.load(scales + b * channels + c, mask=known, other=0.0)
    rows = b * sb + c[:, None] * sc
    plain = tl.zeros((CHANNELS, AREA), dtype=tl.float32)
    along = tl.zeros((CHANNELS, AREA), dtype=tl.float32)
    for start in range(0, area, AREA):
        t = start + tl.arange(0, AREA)
        here = known[:, None] & (t < area)[None, :]
        grad = tl.load(g + rows + t[None, :] * st, mask=here, other=0.0)
        value = tl.load(x + rows + t[None, :] * st, mask=here, other=0.0)
        plain += grad
        along += grad * ((value - mean[:, None]) * scale[:, None])
    of_bias = tl.sum(plain, 1)
    of_weight = tl.sum(along, 1)
    tl.store(weights + b * channels + c, of_weight, mask=known)
    tl.store(biases + b * channels + c, of_bias, mask=known)
    if INPUT:
        factor = tl.load(weight + c, mask=known, other=0.0)
        first = _over_groups(of_bias * factor, GROUPS, CHANNELS) / count
        second = _over_groups(of_weight * factor, GROUPS, CHANNELS) / count
        for start in range(0, area, AREA):
            t = start + tl.arange(0, AREA)
            here = known[:, None] & (t < area)[None, :]
            grad = tl.load(g + rows + t[None, :] * st, mask=here, other=0.0)
            value = tl.load(x + rows + t[None, :] * st, mask=here, other=0.0)
            normal = (value - mean[:, None]) * scale[:, None]
            moved = grad * factor[:, None] - first[:, None] - normal * second[:, None]
            tl.store(dx + rows + t[None, :] * st, moved * scale[:, None], mask=here)


@triton.jit
def _normal(x, places, here, width, eps):
    """x̂ of some rows, and what they were multiplied by."""
    value = tl.load(x + places, mask=here, other=0.0)
    value = tl.where(here, value - (tl.sum(value, 1) / width)[:, None], 0.0)
    scale = 1.0 / tl.sqrt(tl.sum(value * value, 1) / width + eps)
    return value * scale[:, None], scale


@triton.jit
def layer_norm(x, weight, bias, y, positions, width, eps, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """A few positions of one example."""
    b = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    here = (t < positions)[:, None] & (d < width)[None, :]
    places = (b * positions + t)[:, None] * width + d[None, :]
    normal, _ = _normal(x, places, here, width, eps)
    factor = tl.load(weight + d, mask=d < width, other=0.0)
    offset = tl.load(bias + d, mask=d < width, other=0.0)
    tl.store(y + places, normal * factor[None, :] + offset[None, :], mask=here)


@triton.jit
def layer_norm_back(
    x,
    g,
    weight,
    dx,
    weights,
    biases,
    positions,
    width,
    eps,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    INPUT: tl.constexpr,
):
    """Of a few positions of one example: Σ g·x̂ and Σ g, and, if INPUT, the input's gradient."""
    b = tl.program_id(1).to(tl.int64)
    t = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    here = (t < positions)[:, None] & (d < width)[None, :]
    places = (b * positions + t)[:, None] * width + d[None, :]
    normal, scale = _normal(x, places, here, width, eps)
    grad = tl.load(g + places, mask=here, other=0.0)
    along = grad * normal
    to = (b * tl.num_programs(0) + tl.program_id(0)) * width + d
    tl.store(weights + to, tl.sum(along, 0), mask=d < width)
    tl.store(biases + to, tl.sum(grad, 0), mask=d < width)
    if INPUT:
        factor = tl.load(weight + d, mask=d < width, other=0.0)[None, :]
        first = tl.sum(grad * factor, 1) / width
        second = tl.sum(along * factor, 1) / width
        moved = grad * factor - first[:, None] - normal * second[:, None]
        tl.store(dx + places, moved * scale[:, None], mask=here)
