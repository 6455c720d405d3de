"""Images from random processes that show one thing before a dark ground: strokes and figures.

For records that look like that, as handwriting and product pictures do: what features of such
images have in common is closer to what features of the records have in common.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from reticent.pretraining.shapes import grid, leaf, surface
from reticent.pretraining.textures import uniform

_POINTS = 24  # along a stroke; enough for strokes of one pixel's width


def strokes(count: int, side: int, coins: Generator, *, most: int = 3) -> Tensor:
    """One to `most` pen strokes, cubic Bézier curves of one width, white on black.

    Later strokes often begin where one ended, as writing does.
    """
    y, x = grid(side, coins.device)
    time = torch.linspace(0, 1, _POINTS, device=coins.device)
    basis = torch.stack(
        ((1 - time) ** 3, 3 * (1 - time) ** 2 * time, 3 * (1 - time) * time**2, time**3), -1
    )
    width = uniform((count, 1, 1), 0.025, 0.07, coins)
    soft = uniform((count, 1, 1), 0.015, 0.04, coins)
    ink = torch.zeros(count, side, side, device=coins.device)
    number = torch.randint(1, most + 1, (count,), generator=coins, device=coins.device)
    end = uniform((count, 2), 0.2, 0.8, coins)
    for stroke in range(most):
        points = uniform((count, 4, 2), 0.15, 0.85, coins)
        joined = uniform((count, 1), 0, 1, coins) < 0.6
        points[:, 0] = torch.where(joined, end, points[:, 0])
        end = points[:, 3]
        path = torch.einsum("tk,nkc->ntc", basis, points)
        nearest = torch.full((count, side, side), 9.0, device=coins.device)
        for t in range(_POINTS):
            here = path[:, t, :, None, None]
            nearest = torch.minimum(nearest, (x - here[:, 0]) ** 2 + (y - here[:, 1]) ** 2)
        drawn = ((width - nearest.sqrt()) / soft + 0.5).clamp(0, 1)
        ink = torch.where((number > stroke)[:, None, None], torch.maximum(ink, drawn), ink)
    return ink[:, None].expand(-1, 3, -1, -1).contiguous()


def figures(textures: Tensor, count: int, coins: Generator, *, parts: int = 5) -> Tensor:
    """A thing made of a few overlapping leaves in the middle, often mirror-symmetric, on black."""
    side = textures.shape[-1]
    y, x = grid(side, coins.device)
    image = torch.zeros(count, 3, side, side, device=coins.device)
    tone = uniform((count, 3, 1, 1), 0.1, 1.0, coins)
    rough = uniform((count, 1, 1, 1), 0.0, 0.8, coins)
    mirrored = uniform((count, 1, 1, 1), 0, 1, coins) < 0.6
    size = uniform((count, 1, 1), 0.12, 0.4, coins)
    number = torch.randint(1, parts + 1, (count, 1, 1, 1), generator=coins, device=coins.device)
    for part in range(parts):
        mask, shading = leaf(x, y, count, size, coins, low=0.3, high=0.7)
        mask = torch.where(mirrored, mask | mask.flip(3), mask) & (number > part)
        own = uniform((count, 3, 1, 1), -0.2, 0.2, coins)
        fill = tone + own + rough * (surface(textures, count, coins) - 0.5) + shading
        image = torch.where(mask, fill.clamp(0.05, 1), image)
    return image
