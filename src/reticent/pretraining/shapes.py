"""Images from random processes that have shapes: dead leaves and fractals.

Surfaces are taken from a given bank of textures, so that shapes have borders of colour and of
texture both. Values are in [0, 1].
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from reticent.pretraining.textures import normal, uniform


def dead_leaves(textures: Tensor, count: int, coins: Generator, *, leaves: int = 48) -> Tensor:
    """Shapes that cover one another, sizes from a power law (Ruderman 1997; Lee et al. 2001).

    Such images have edges, occlusion and the scale invariance of natural ones. Leaves are ellipses,
    boxes, diamonds and lobed blobs, with a plain, shaded or textured surface.

    Args:
        textures: [m, 3, H, W] to take surfaces and the background from.
        count: how many images.
        coins: where randomness comes from; images are on its device.
        leaves: how many are put down, the front one first.
    """
    side = textures.shape[-1]
    image = torch.zeros(count, 3, side, side, device=coins.device)
    covered = torch.zeros(count, 1, side, side, dtype=torch.bool, device=coins.device)
    y, x = grid(side, coins.device)
    smallest = uniform((count, 1, 1), 0.04, 0.25, coins)
    textured = uniform((count, 1, 1, 1), 0.0, 1.0, coins)  # how textured this image's leaves are
    palette = uniform((count, 3, 1, 1), 0.0, 1.0, coins)
    for _ in range(leaves):
        mask, shading = leaf(x, y, count, smallest, coins)
        colour = uniform((count, 3, 1, 1), 0.0, 1.0, coins)
        loyal = uniform((count, 1, 1, 1), 0.0, 0.8, coins)
        colour = loyal * palette + (1 - loyal) * colour
        contrast = uniform((count, 1, 1, 1), 0.0, 1.2, coins) * textured
        fill = colour + contrast * (surface(textures, count, coins) - 0.5) + shading
        image = torch.where(mask & ~covered, fill, image)
        covered |= mask
    image = torch.where(covered, image, surface(textures, count, coins))
    return image.clamp(0, 1)


def fractals(
    textures: Tensor, count: int, coins: Generator, *, maps: int = 4, points: int = 1500
) -> Tensor:
    """Attractors of random affine maps, before a textured ground (after Kataoka et al. 2020).

    Maps are contractions with singular values drawn as by Anderson & Farrell (2022), so that
    attractors are neither dust nor blobs.
    """
    side = textures.shape[-1]
    device = coins.device
    turn, back = uniform((2, count, maps), 0.0, 2 * math.pi, coins)
    large = uniform((count, maps), 0.4, 0.95, coins)
    small = large * uniform((count, maps), 0.2, 1.0, coins)
    signs = torch.sign(normal((count, maps), coins))
    stretch = torch.diag_embed(torch.stack((large, small * signs), dim=-1))
    linear = _rotation(turn) @ stretch @ _rotation(back)
    offset = uniform((count, maps, 2), -1.0, 1.0, coins)
    colours = uniform((count, maps, 3), 0.0, 1.0, coins)
    weight = (large * small).clamp(min=0.02)  # larger pieces are visited more often
    place = uniform((count, points, 2), -0.5, 0.5, coins)
    colour = torch.full((count, points, 3), 0.5, device=device)
    places, paints = [], []
    for turn_of in range(36):
        chosen = torch.multinomial(weight, points, replacement=True, generator=coins)
        index = chosen[..., None, None].expand(-1, -1, 2, 2)
        here = torch.gather(linear, 1, index.reshape(count, points, 2, 2))
        place = (here @ place[..., None])[..., 0]
        place = place + torch.gather(offset, 1, chosen[..., None].expand(-1, -1, 2))
        colour = (colour + torch.gather(colours, 1, chosen[..., None].expand(-1, -1, 3))) / 2
        if turn_of >= 12:
            places.append(place)
            paints.append(colour)
    place, colour = torch.cat(places, dim=1), torch.cat(paints, dim=1)
    spread = uniform((count, 1, 1), 0.15, 0.3, coins)
    centred = (place - place.mean(1, keepdim=True)) / place.std(1, keepdim=True).clamp(min=1e-3)
    cells = ((centred * spread + 0.5) * side).long()
    inside = ((cells >= 0) & (cells < side)).all(-1)
    flat = (cells[..., 0] * side + cells[..., 1]).where(inside, side * side)
    hits = torch.zeros(count, side * side + 1, device=device)
    hits.scatter_add_(1, flat, torch.ones_like(flat, dtype=hits.dtype))
    paint = torch.zeros(count, side * side + 1, 3, device=device)
    paint.scatter_add_(1, flat[..., None].expand(-1, -1, 3), colour)
    paint = paint[:, :-1] / hits[:, :-1, None].clamp(min=1)
    shown = (hits[:, :-1] / 6).clamp(max=1).reshape(count, 1, side, side)
    figure = paint.transpose(1, 2).reshape(count, 3, side, side)
    ground = surface(textures, count, coins)
    plain = uniform((count, 3, 1, 1), 0.0, 1.0, coins)
    fade = uniform((count, 1, 1, 1), 0.0, 1.0, coins)
    ground = fade * plain + (1 - fade) * ground
    return (shown * figure + (1 - shown) * ground).clamp(0, 1)


def leaf(
    x: Tensor,
    y: Tensor,
    count: int,
    smallest: Tensor,
    coins: Generator,
    *,
    low: float = -0.1,
    high: float = 1.1,
) -> tuple[Tensor, Tensor]:
    """A shape's mask [count, 1, H, W] and the shading of its surface, centred in [low, high]."""
    shape = (count, 1, 1)
    # radii with density r^-3 between the smallest and 0.6, by inversion
    most, least = smallest**-2, 0.6**-2
    radius = (most - uniform(shape, 0, 1, coins) * (most - least)) ** -0.5
    cx, cy = uniform((2, *shape), low, high, coins)
    angle = uniform(shape, 0.0, 2 * math.pi, coins)
    flat = uniform(shape, 0.35, 1.0, coins)
    u = ((x - cx) * angle.cos() + (y - cy) * angle.sin()) / radius
    v = ((y - cy) * angle.cos() - (x - cx) * angle.sin()) / (radius * flat)
    power = torch.tensor([1.0, 2.0, 2.0, 8.0], device=coins.device)
    power = power[torch.randint(4, shape, generator=coins, device=coins.device)]
    lobes = torch.randint(2, 7, shape, generator=coins, device=coins.device)
    depth = uniform(shape, 0.0, 0.5, coins) * (uniform(shape, 0, 1, coins) < 0.35)
    reach = 1 + depth * torch.cos(lobes * torch.atan2(v, u))
    mask = u.abs() ** power + v.abs() ** power < reach**power
    slope = 0.3 * normal(shape, coins) * (uniform(shape, 0, 1, coins) < 0.6)
    return mask[:, None], (slope * u).clamp(-0.5, 0.5)[:, None]


def surface(textures: Tensor, count: int, coins: Generator) -> Tensor:
    """Random ones of the textures, shifted and turned at random: [count, 3, H, W]."""
    chosen = torch.randint(len(textures), (count,), generator=coins, device=coins.device)
    taken = textures[chosen]
    shift = torch.randint(textures.shape[-1], (2,), generator=coins, device=coins.device)
    taken = taken.roll((int(shift[0]), int(shift[1])), dims=(2, 3))
    turned = torch.rand((count, 1, 1, 1), generator=coins, device=coins.device) < 0.5
    return torch.where(turned, taken.transpose(2, 3), taken)


def grid(side: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Vertical and horizontal places of the pixels' middles in [0, 1], each [1, H, W]."""
    line = (torch.arange(side, device=device) + 0.5) / side
    y, x = torch.meshgrid(line, line, indexing="ij")
    return y[None], x[None]


def _rotation(angle: Tensor) -> Tensor:
    cos, sin = angle.cos(), angle.sin()
    return torch.stack((torch.stack((cos, -sin), -1), torch.stack((sin, cos), -1)), -2)


def blurred(images: Tensor, coins: Generator) -> Tensor:
    """Each image blurred by a random small amount, as a lens does."""
    kernel = torch.tensor([1.0, 2.0, 1.0], device=images.device) / 4
    window = (kernel[:, None] * kernel[None])[None, None].expand(3, 1, 3, 3)
    soft = F.conv2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), window, groups=3)
    amount = uniform((len(images), 1, 1, 1), 0.0, 1.0, coins)
    return amount * soft + (1 - amount) * images
