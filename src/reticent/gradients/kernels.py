"""What the fast path computes in a kernel of its own on a GPU, where Triton is installed.

PyTorch's CUDA packages bring Triton along. Without it, and on other devices, the rules compute the
same things with PyTorch's own operations.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache
from math import prod
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from reticent.gradients import rounding

# What an index of a kernel can count.
LARGEST = 2**31 - 1
# A grid's second dimension counts examples.
MOST_EXAMPLES = 65_535
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # Triton on the CPU, to try kernels out
_PRECISION = "ieee" if INTERPRETED else "tf32"
# Convolutions with fewer input channels take another kernel.
FEW_CHANNELS = 16


@cache
def _triton() -> Any:
    if importlib.util.find_spec("triton") is None:
        return None
    from reticent.gradients import triton_kernels

    return triton_kernels


def installed() -> bool:
    """Whether Triton is."""
    return _triton() is not None


@cache
def _capable(device: torch.device) -> bool:
    return _triton() is not None and torch.cuda.get_device_capability(device) >= (8, 0)


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these: single precision, contiguous, on a recent NVIDIA GPU."""
    for tensor in tensors:
        if tensor.dtype != torch.float32 or tensor.numel() == 0:
            return False
        if tensor.shape[1:].numel() > LARGEST or tensor.shape[0] > MOST_EXAMPLES:
            return False
    device = tensors[0].device
    if INTERPRETED:
        return _triton() is not None
    return device.type == "cuda" and torch.version.hip is None and _capable(device)


def takes_conv(conv: _ConvNd, x: Tensor, g: Tensor) -> bool:
    """Whether `conv_written`, `conv_norms` and `window_terms` know this convolution.

    Products in TF32, if convolutions may use it: the matrix units have no single precision.
    """
    return (
        len(conv.kernel_size) == 2
        and conv.groups == 1
        and conv.padding_mode == "zeros"
        and not isinstance(conv.padding, str)
        and usable(x, g)
        and (INTERPRETED or "tf32" in rounding.of_convolutions(x.device))
    )


def conv_written(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Per-example weight gradients [B, O, C, *kernel]; windows are never written out.

    Their order in memory is another where that is faster.
    """
    taps, outer, inner = prod(conv.kernel_size), *conv.weight.shape[:2]
    if inner < FEW_CHANNELS:
        out = x.new_empty(len(x), *conv.weight.shape)
        _few(conv, x, g, out, store=True)
        return out
    out = x.new_empty(len(x), taps, outer, inner)
    _many(conv, x, g, out, store=True)
    return out.permute(0, 2, 3, 1).unflatten(3, conv.kernel_size)


def conv_norms(conv: _ConvNd, x: Tensor, g: Tensor) -> Tensor:
    """Squared norms [B] of the per-example weight gradients, which are never written out."""
    few = conv.weight.shape[1] < FEW_CHANNELS
    programs = _few_programs(conv) if few else _many_programs(conv, _both_last(x, g))
    out = x.new_empty(len(x), programs)
    (_few if few else _many)(conv, x, g, out, store=False)
    return out.sum(1)


def _both_last(x: Tensor, g: Tensor) -> bool:
    return is_channels_last(x) and is_channels_last(g) and not x.is_contiguous()


def _few_programs(conv: _ConvNd) -> int:
    rows, cols = _few_tile(conv)
    return -(-conv.weight.shape[0] // rows) * -(-prod(conv.weight.shape[1:]) // cols)


def _few_tile(conv: _ConvNd) -> tuple[int, int]:
    """Output channels and weight entries of one program; found by trying on an H200."""
    rows = max(min(power(conv.weight.shape[0]), 128), 16)
    return rows, 128 if rows == 128 else 64


def _few(conv: _ConvNd, x: Tensor, g: Tensor, out: Tensor, *, store: bool) -> None:
    """With few input channels a program takes several taps."""
    x, g = _channels_first(x), _channels_first(g)
    rows, cols = _few_tile(conv)
    _triton().conv_written[(_few_programs(conv), len(x))](
        *(x, g, out, g.shape[1], prod(conv.weight.shape[1:])),
        *_geometry(conv, x, g),
        STORE=store,
        ROWS=rows,
        COLS=cols,
        DEPTH=32,
        PRECISION=_PRECISION,
        **_taps(conv),
        num_warps=8 if rows == 128 else 4,
        num_stages=3,
    )


def _many_programs(conv: _ConvNd, last: bool) -> int:
    rows, cols = _many_tile(conv, last)
    outer, inner = conv.weight.shape[:2]
    return prod(conv.kernel_size) * -(-outer // rows) * -(-inner // cols)


def _many_tile(conv: _ConvNd, last: bool) -> tuple[int, int]:
    """Output and input channels of one program; found by trying on an H200."""
    outer, inner = conv.weight.shape[:2]
    most = 64 if last else 128
    return max(min(power(outer), most), 16), max(min(power(inner), 64), 16)


def _many(conv: _ConvNd, x: Tensor, g: Tensor, out: Tensor, *, store: bool) -> None:
    """A program takes one tap and many channels."""
    last = _both_last(x, g)
    rows, cols = _many_tile(conv, last)
    # fewer warps for smaller tiles, and for those that must be turned on the way
    warps = 2 if last or rows * cols <= 1024 else 8 if rows == 128 else 4
    _triton().conv_taps[(_many_programs(conv, last), len(x))](
        *(x, g, out, g.shape[1], x.shape[1]),
        *_geometry(conv, x, g),
        STORE=store,
        ROWS=rows,
        COLS=cols,
        DEPTH=32,
        PRECISION=_PRECISION,
        LAST=last,
        **_taps(conv),
        num_warps=warps,
        num_stages=4 if warps == 2 else 3,
    )


def _geometry(conv: _ConvNd, x: Tensor, g: Tensor) -> tuple[int, ...]:
    return (
        g.shape[2] * g.shape[3],
        g.shape[3],
        x.shape[2],
        x.shape[3],
        *x.stride(),
        *g.stride(),
        *conv.stride,
        *cast(tuple[int, ...], conv.padding),
        *conv.dilation,
    )


def _taps(conv: _ConvNd) -> dict[str, int]:
    return {"KH": conv.kernel_size[0], "KW": conv.kernel_size[1]}


def window_terms(conv: _ConvNd, pixels: Tensor, outer: Tensor, x: Tensor, g: Tensor) -> Tensor:
    """Σ_ts W_ts G_ts, Σ |W_ts G_ts|, Σ_t W_tt, Σ_t G_tt of each tile, as [B, tiles, 4].

    W is the Gram matrix of the windows: sums of shifted entries of `pixels`, that of single pixels
    [B, HW, HW]. `outer` is that of the output gradients, [B, T, T].
    """
    return _terms(
        pixels,
        outer,
        (x.shape[2], x.shape[3]),
        g.shape[3],
        cast(tuple[int, int], conv.kernel_size),
        cast(tuple[int, int], conv.stride),
        cast(tuple[int, int], conv.padding),
        cast(tuple[int, int], conv.dilation),
    )


def gram_terms(left: Tensor, right: Tensor) -> Tensor:
    """The same for two Gram matrices [B, T, T] as they are."""
    return _terms(left, right, (1, left.shape[1]), left.shape[1], (1, 1), (1, 1), (0, 0), (1, 1))


def _terms(
    pixels: Tensor,
    outer: Tensor,
    size: tuple[int, int],
    width: int,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    positions = outer.shape[1]
    tile = 32 if positions <= 32 else 64
    tiles = (-(-positions // tile)) ** 2
    out = outer.new_empty(len(outer), tiles, 4)
    _triton().gram_terms[(tiles, len(outer))](
        pixels,
        outer,
        out,
        positions,
        width,
        *size,
        *stride,
        *padding,
        KH=kernel[0],
        KW=kernel[1],
        GAP_H=dilation[0],
        GAP_W=dilation[1],
        TILE=tile,
        num_warps=4,
    )
    return out


def gram_measures(terms: Tensor, relative: float, absolute: float) -> tuple[Tensor, Tensor]:
    """Squared norms and masses [B] from such terms, with the given allowances."""
    batch, tiles, _ = terms.shape
    norms, masses = terms.new_empty(2, batch)
    _triton().gram_measures[(batch,)](
        *(terms, norms, masses, tiles, relative, absolute), TILES=power(tiles), num_warps=1
    )
    return norms, masses


def is_channels_last(x: Tensor) -> bool:
    """Whether a [B, C, H, W] lies in memory as [B, H, W, C]."""
    return x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last)


def in_rows(values: Tensor) -> bool:
    """Whether each example's numbers lie together, without gaps, one example after the other."""
    return values.is_contiguous() or is_channels_last(values)


def zero_rows(values: Tensor, factors: Tensor) -> None:
    """Zeros over the examples whose factor is 0, in place; `values` must be `in_rows`."""
    _triton().zero_rows[(len(values),)](
        values, factors, values.shape[1:].numel(), BLOCK=1024, num_warps=4
    )


def _channels_first(values: Tensor) -> Tensor:
    """A [B, C, H, W] laid out in that order."""
    if values.is_contiguous() or not is_channels_last(values):
        return values.contiguous()
    turned = values.permute(0, 2, 3, 1).flatten(1, 2).unsqueeze(3)  # [B, HW, C, 1], contiguous
    ones = values.new_ones(len(values))
    out = channels_last(turned, ones, scaled=False)
    return out.permute(0, 2, 3, 1).reshape(values.shape)


def channels_last(values: Tensor, factors: Tensor, *, scaled: bool) -> Tensor:
    """A contiguous [B, C, H, W] laid out channels last; zeros where an example's factor is 0.

    Multiplied by the factors if `scaled`.
    """
    out = torch.empty_like(values, memory_format=torch.channels_last)
    channels, area = values.shape[1], values.shape[2:].numel()
    rows, cols = min(power(channels), 64), min(power(area), 64)
    _triton().channels_last[(-(-channels // rows) * -(-area // cols), len(values))](
        values,
        factors,
        out,
        channels,
        area,
        SCALED=scaled,
        CHANNELS=rows,
        AREA=cols,
        num_warps=4,
    )
    return out


def power(number: int) -> int:
    """The next power of two."""
    return 1 << max(number - 1, 0).bit_length()
