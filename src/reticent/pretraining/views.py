"""Two views of one image that mean the same: crops, mirror images, other colours, blur.

All on the images' device and batched, every image with its own choices (as in SimCLR, Chen et al.
2020).
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from reticent.pretraining.shapes import blurred
from reticent.pretraining.textures import uniform

# Brightness and two chromatic axes (YIQ), in which hue is a rotation and saturation a scale.
_TO_YIQ = ((0.299, 0.587, 0.114), (0.596, -0.274, -0.322), (0.211, -0.523, 0.312))


def view(images: Tensor, side: int, coins: Generator, *, smallest: float = 0.15) -> Tensor:
    """A random view of every image: [n, 3, H, W] in [0, 1] to [n, 3, side, side]."""
    return recoloured(cropped(images, side, coins, smallest=smallest), coins)


def cropped(images: Tensor, side: int, coins: Generator, *, smallest: float) -> Tensor:
    """A part of every image, at least `smallest` of its area, resized; half of them mirrored."""
    count = len(images)
    area = uniform((count,), smallest, 1.0, coins)
    ratio = uniform((count,), math.log(3 / 4), math.log(4 / 3), coins).exp()
    width = (area * ratio).sqrt().clamp(max=1.0)
    height = (area / ratio).sqrt().clamp(max=1.0)
    x = (1 - width) * uniform((count,), -1.0, 1.0, coins)
    y = (1 - height) * uniform((count,), -1.0, 1.0, coins)
    mirror = torch.where(uniform((count,), 0, 1, coins) < 0.5, -1.0, 1.0)
    none = torch.zeros_like(x)
    frame = torch.stack(
        (torch.stack((width * mirror, none, x), -1), torch.stack((none, height, y), -1)), 1
    )
    grid = F.affine_grid(frame, [count, 3, side, side], align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def recoloured(images: Tensor, coins: Generator) -> Tensor:
    """Other brightness, contrast, saturation and hue; a fifth in grey; some blurred."""
    count, device = len(images), images.device
    to_yiq = torch.tensor(_TO_YIQ, device=device)
    sure = uniform((count, 1), 0, 1, coins) < 0.8
    saturation = torch.where(sure, uniform((count, 1), 0.4, 1.6, coins), 1.0)
    saturation = saturation * (uniform((count, 1), 0, 1, coins) >= 0.2)
    hue = torch.where(sure, uniform((count, 1), -0.6, 0.6, coins), 0.0)
    cos, sin, none = saturation * hue.cos(), saturation * hue.sin(), torch.zeros_like(hue)
    rows = (
        torch.stack((torch.ones_like(hue), none, none), -1),
        torch.stack((none, cos, -sin), -1),
        torch.stack((none, sin, cos), -1),
    )
    matrix = torch.linalg.inv(to_yiq) @ torch.cat(rows, 1) @ to_yiq
    brightness = torch.where(sure, uniform((count, 1), 0.6, 1.4, coins), 1.0)[..., None, None]
    contrast = torch.where(sure, uniform((count, 1), 0.6, 1.4, coins), 1.0)[..., None, None]
    mixed = torch.einsum("nkc,nchw->nkhw", matrix, images)
    middle = mixed.mean(dim=(1, 2, 3), keepdim=True)
    mixed = (contrast * (mixed - middle) + middle) * brightness
    soft = uniform((count, 1, 1, 1), 0, 1, coins) < 0.3
    return torch.where(soft, blurred(mixed, coins), mixed).clamp(0, 1)
