"""GPU kernels in Triton: what a private step adds to an ordinary one, in one pass over memory each.

Only imported where Triton is; `kernels.py` decides and says what each computes. Strides are in
elements; b, c, o, t, n number examples, input channels, output channels, positions and entries of
one row of the weight. Every partial result has a place of its own: no atomic adds, so that the
same inputs give the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv_written(
    x,
    g,
    out,
    n_out,
    n_entries,
    n_positions,
    width_out,
    height,
    width,
    xb,
    xc,
    xh,
    xw,
    gb,
    go,
    gh,
    gw,
    step_h,
    step_w,
    pad_h,
    pad_w,
    gap_h,
    gap_w,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STORE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One tile of one example's weight gradient: stored, or only its squares added up."""
    b = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(n_entries, COLS)
    o = tl.program_id(0) // tiles * ROWS + tl.arange(0, ROWS)
    n = tl.program_id(0) % tiles * COLS + tl.arange(0, COLS)
    down = n % (KH * KW) // KW * gap_h - pad_h
    right = n % KW * gap_w - pad_w
    from_x = x + b * xb + n // (KH * KW) * xc
    from_g = g + b * gb + o * go
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for start in range(0, n_positions, DEPTH):
        t = start + tl.arange(0, DEPTH)
        i, j = t // width_out, t % width_out
        left = tl.load(
            from_g[:, None] + (i * gh + j * gw)[None, :],
            mask=(o < n_out)[:, None] & (t < n_positions)[None, :],
            other=0.0,
        )
        h = i[:, None] * step_h + down[None, :]
        w = j[:, None] * step_w + right[None, :]
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width)
        window = tl.load(
            from_x[None, :] + h * xh + w * xw,
            mask=inside & (n < n_entries)[None, :] & (t < n_positions)[:, None],
            other=0.0,
        )
        total = tl.dot(left, window, total, input_precision=PRECISION)
    if STORE:
        tl.store(
            out + b * n_out * n_entries + o[:, None] * n_entries + n[None, :],
            total,
            mask=(o < n_out)[:, None] & (n < n_entries)[None, :],
        )
    else:
        place = out + b * tl.num_programs(0) + tl.program_id(0)
        tl.store(place, tl.sum(tl.sum(total * total, 1), 0))


@triton.jit
def conv_taps(
    x,
    g,
    out,
    n_out,
    channels,
    n_positions,
    width_out,
    height,
    width,
    xb,
    xc,
    xh,
    xw,
    gb,
    go,
    gh,
    gw,
    step_h,
    step_w,
    pad_h,
    pad_w,
    gap_h,
    gap_w,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STORE: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
    LAST: tl.constexpr,
):
    """The same for one tap of the kernel and many channels, laid out [B, taps, O, C].

    Where a window lies is then computed once for a position, not for each entry. LAST: x and g
    have their channels last in memory.
    """
    b = tl.program_id(1).to(tl.int64)
    tiles_c = tl.cdiv(channels, COLS)
    tiles = tiles_c * tl.cdiv(n_out, ROWS)
    tap = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    o = tile // tiles_c * ROWS + tl.arange(0, ROWS)
    c = tile % tiles_c * COLS + tl.arange(0, COLS)
    down = tap // KW * gap_h - pad_h
    right = tap % KW * gap_w - pad_w
    from_x = x + b * xb
    from_g = g + b * gb
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for start in range(0, n_positions, DEPTH):
        t = start + tl.arange(0, DEPTH)
        i, j = t // width_out, t % width_out
        h, w = i * step_h + down, j * step_w + right
        inside = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (t < n_positions)
        in_g = i * gh + j * gw
        in_x = h * xh + w * xw
        if LAST:
            left = tl.trans(
                tl.load(
                    from_g + in_g[:, None] + (o * go)[None, :],
                    mask=(t < n_positions)[:, None] & (o < n_out)[None, :],
                    other=0.0,
                )
            )
            window = tl.load(
                from_x + in_x[:, None] + (c * xc)[None, :],
                mask=inside[:, None] & (c < channels)[None, :],
                other=0.0,
            )
        else:
            left = tl.load(
                from_g + (o * go)[:, None] + in_g[None, :],
                mask=(o < n_out)[:, None] & (t < n_positions)[None, :],
                other=0.0,
            )
            window = tl.trans(
                tl.load(
                    from_x + (c * xc)[:, None] + in_x[None, :],
                    mask=(c < channels)[:, None] & inside[None, :],
                    other=0.0,
                )
            )
        total = tl.dot(left, window, total, input_precision=PRECISION)
    if STORE:
        tl.store(
            out + ((b * KH * KW + tap) * n_out + o[:, None]) * channels + c[None, :],
            total,
            mask=(o < n_out)[:, None] & (c < channels)[None, :],
        )
    else:
        place = out + b * tl.num_programs(0) + tl.program_id(0)
        tl.store(place, tl.sum(tl.sum(total * total, 1), 0))


@triton.jit
def gram_terms(
    pixels,
    outer,
    out,
    n_positions,
    width_out,
    height,
    width,
    step_h,
    step_w,
    pad_h,
    pad_w,
    KH: tl.constexpr,
    KW: tl.constexpr,
    GAP_H: tl.constexpr,
    GAP_W: tl.constexpr,
    TILE: tl.constexpr,
):
    """Products of two Gram matrices: their sum, the sum of their sizes, and each one's trace."""
    b = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(n_positions, TILE)
    t = tl.program_id(0) // tiles * TILE + tl.arange(0, TILE)
    s = tl.program_id(0) % tiles * TILE + tl.arange(0, TILE)
    here = (t < n_positions)[:, None] & (s < n_positions)[None, :]
    area = height * width
    from_pixels = pixels + b * area * area
    left = tl.zeros((TILE, TILE), dtype=tl.float32)
    for k in range(KH * KW):
        ht, wt = t // width_out * step_h, t % width_out * step_w
        hs, ws = s // width_out * step_h, s % width_out * step_w
        down, right = k // KW * GAP_H - pad_h, k % KW * GAP_W - pad_w
        ht, wt, hs, ws = ht + down, wt + right, hs + down, ws + right
        t_inside = (ht >= 0) & (ht < height) & (wt >= 0) & (wt < width)
        s_inside = (hs >= 0) & (hs < height) & (ws >= 0) & (ws < width)
        left += tl.load(
            from_pixels + (ht * width + wt)[:, None] * area + (hs * width + ws)[None, :],
            mask=here & t_inside[:, None] & s_inside[None, :],
            other=0.0,
        )
    from_outer = outer + b * n_positions * n_positions
    right_gram = tl.load(from_outer + t[:, None] * n_positions + s[None, :], mask=here, other=0.0)
    terms = left * right_gram
    same = here & (t[:, None] == s[None, :])
    place = out + (b * tl.num_programs(0) + tl.program_id(0)) * 4
    tl.store(place, tl.sum(tl.sum(terms, 1), 0))
    tl.store(place + 1, tl.sum(tl.sum(tl.abs(terms), 1), 0))
    tl.store(place + 2, tl.sum(tl.sum(tl.where(same, left, 0.0), 1), 0))
    tl.store(place + 3, tl.sum(tl.sum(tl.where(same, right_gram, 0.0), 1), 0))


@triton.jit
def gram_measures(terms, norms, masses, tiles, relative, absolute, TILES: tl.constexpr):
    """Add up the tiles of `gram_terms`; see `rules.linear.gram_measures` for the allowance."""
    b = tl.program_id(0).to(tl.int64)
    tile = tl.arange(0, TILES)
    place = terms + (b * tiles + tile) * 4
    here = tile < tiles
    total = tl.sum(tl.load(place, mask=here, other=0.0), 0)
    sizes = tl.sum(tl.load(place + 1, mask=here, other=0.0), 0)
    left = tl.sum(tl.load(place + 2, mask=here, other=0.0), 0)
    right = tl.sum(tl.load(place + 3, mask=here, other=0.0), 0)
    total = tl.where(total < 0.0, 0.0, total)  # a NaN stays one
    tl.store(norms + b, total + relative * sizes + absolute * (left + right))
    tl.store(masses + b, left * right)


@triton.jit
def zero_rows(values, factors, numbers, BLOCK: tl.constexpr):
    """Write zeros over the examples whose factor is 0; leave the others alone."""
    b = tl.program_id(0).to(tl.int64)
    if tl.load(factors + b) == 0.0:
        for start in range(0, numbers, BLOCK):
            place = start + tl.arange(0, BLOCK)
            tl.store(values + b * numbers + place, 0.0, mask=place < numbers)


@triton.jit
def channels_last(
    values,
    factors,
    out,
    channels,
    area,
    SCALED: tl.constexpr,
    CHANNELS: tl.constexpr,
    AREA: tl.constexpr,
):
    """[B, C, T] as [B, T, C], each example times its factor, or zeros where that is 0."""
    b = tl.program_id(1).to(tl.int64)
    tiles = tl.cdiv(area, AREA)
    c = tl.program_id(0) // tiles * CHANNELS + tl.arange(0, CHANNELS)
    t = tl.program_id(0) % tiles * AREA + tl.arange(0, AREA)
    factor = tl.load(factors + b)
    here = (c < channels)[:, None] & (t < area)[None, :]
    first = b * channels * area
    tile = tl.load(values + first + c[:, None] * area + t[None, :], mask=here, other=0.0)
    if SCALED:
        tile = tile * factor
    tile = tl.where(factor == 0.0, 0.0, tile)
    tl.store(
        out + first + t[:, None] * channels + c[None, :],
        tl.trans(tile),
        mask=(t < area)[:, None] & (c < channels)[None, :],
    )
