"""Input shapes: what a model takes, and what is left of an image after its windows.

Shapes describe one example; the batch dimension is never part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from reticent.errors import OptionError, whole

Shape = tuple[int, ...]


class Window(NamedTuple):
    """A convolution's or a pooling's square window."""

    kernel: int
    stride: int = 1
    padding: int = 0


def as_shape(input_shape: object) -> Shape:
    """Return `input_shape` as a tuple of positive whole numbers, or refuse it."""
    hint = "must be the sizes of one example without the batch, such as (1, 28, 28)"
    if isinstance(input_shape, str) or not isinstance(input_shape, Sequence):
        raise OptionError("input_shape", input_shape, hint)
    shape = tuple(input_shape)
    if not shape:
        raise OptionError("input_shape", shape, hint)
    try:
        return tuple(whole("input_shape", side) for side in shape)
    except OptionError:
        raise OptionError("input_shape", shape, hint) from None


def image(model: str, input_shape: Shape) -> tuple[int, int, int]:
    """Return (channels, height, width), or say that `model` takes images."""
    if len(input_shape) != 3:
        raise OptionError(
            "input_shape", input_shape, f"{model} takes images: (channels, height, width)"
        )
    channels, height, width = input_shape
    return channels, height, width


def side_after(side: int, windows: Sequence[Window]) -> int:
    """Return the side left after `windows`, in order; 0 when one of them does not fit."""
    for kernel, stride, padding in windows:
        side = (side + 2 * padding - kernel) // stride + 1
        if side < 1:
            return 0
    return side


def image_after(model: str, input_shape: Shape, windows: Sequence[Window]) -> tuple[int, int]:
    """Return (height, width) after `windows`, or say how large an image `model` needs."""
    _, height, width = image(model, input_shape)
    left = side_after(height, windows), side_after(width, windows)
    if min(left) < 1:
        least = next(side for side in range(1, 10_000) if side_after(side, windows) >= 1)
        raise OptionError(
            "input_shape",
            input_shape,
            f"{model} needs height and width of at least {least}; "
            f"with less, nothing is left after its convolutions and poolings",
        )
    return left
