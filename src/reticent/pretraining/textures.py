"""Images from random processes that have no shapes: coloured noise and random networks.

Both are drawn anew for every image, so that a bank of them has no style of its own. Values are in
[0, 1]; nothing is taken from any record.
"""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F


def uniform(shape: tuple[int, ...], low: float, high: float, coins: Generator) -> Tensor:
    """Uniform numbers in [low, high) on the generator's device."""
    return low + (high - low) * torch.rand(shape, generator=coins, device=coins.device)


def normal(shape: tuple[int, ...], coins: Generator) -> Tensor:
    """Standard normal numbers on the generator's device."""
    return torch.randn(shape, generator=coins, device=coins.device)


def coloured_noise(count: int, side: int, coins: Generator) -> Tensor:
    """Noise whose spectrum falls as a power of the frequency, as that of natural images does.

    Amplitudes are (|fx|^a + |fy|^b)^-c with exponents drawn per image; natural images have about
    1/|f|. The three channels are random mixtures of three independent fields.
    """
    rows = torch.fft.fftfreq(side, device=coins.device).abs()[None, :, None] * side
    columns = torch.fft.rfftfreq(side, device=coins.device)[None, None, :] * side
    a, b = uniform((2, count, 1, 1), 0.5, 2.0, coins)
    c = uniform((count, 1, 1), 0.5, 1.6, coins)
    amplitude = (rows**a + columns**b + 0.3) ** -c
    white = normal((count, 3, side, side), coins)
    fields = torch.fft.irfft2(torch.fft.rfft2(white) * amplitude[:, None], s=(side, side))
    return in_range(_standardised(fields), coins)


def random_networks(
    count: int, side: int, coins: Generator, *, channels: int = 24, first: int = 4
) -> Tensor:
    """What untrained generators make of noise, each image by a generator of its own.

    After the random StyleGANs with oriented filters of Baradad et al. (2021, "Learning to see by
    looking at noise"): noise on a grid of 4x4, then for every doubling of the side an upsampling, a
    convolution with random oriented filters, noise, and a leaky rectifier. The image is a random
    mixture of the last layers.
    """
    x = normal((count, channels, first, first), coins)
    image = torch.zeros(count, 3, first, first, device=coins.device)
    size = first
    while True:
        weights = _oriented(count, channels, coins)
        joined = x.reshape(1, count * channels, size, size)
        padded = F.pad(joined, (2, 2, 2, 2), mode="reflect" if size > 2 else "replicate")
        x = F.conv2d(padded, weights, groups=count).reshape(count, channels, size, size)
        strength = uniform((count, channels, 1, 1), 0.0, 0.4, coins)
        shift = 0.5 * normal((count, channels, 1, 1), coins)
        x = _standardised(x) + shift + strength * normal((count, channels, size, size), coins)
        x = F.leaky_relu(x, 0.2)
        colours = normal((count, 3, channels), coins) / math.sqrt(channels)
        mixture = torch.einsum("nkc,nchw->nkhw", colours, x)
        image = 0.6 * F.interpolate(image, size=(size, size), mode="bilinear") + mixture
        if size >= side:
            break
        size *= 2
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
    offset = (size - side) // 2
    image = image[:, :, offset : offset + side, offset : offset + side]
    return in_range(_standardised(image), coins)


def in_range(fields: Tensor, coins: Generator) -> Tensor:
    """Standardised fields [n, 3, H, W] as images: random mixtures of channels, squashed to [0, 1].

    Mixtures lean towards grey, as the colours of photographs do.
    """
    count = len(fields)
    grey = uniform((count, 1, 1), 0.0, 0.9, coins)
    mixing = normal((count, 3, 3), coins) * (1 - grey) + normal((count, 1, 3), coins) * grey
    mixed = torch.einsum("nkc,nchw->nkhw", mixing, fields)
    mean = uniform((count, 3, 1, 1), -1.0, 1.0, coins)
    mean = mean * 0.5 + mean.mean(1, keepdim=True) * 0.8
    contrast = uniform((count, 1, 1, 1), 0.3, 1.3, coins)
    return torch.sigmoid(contrast * mixed + mean)


def _oriented(count: int, channels: int, coins: Generator, *, kernel: int = 5) -> Tensor:
    """Random filters [count · channels, channels, 5, 5], each a wave under a bell: an edge."""
    grid = torch.linspace(-2, 2, kernel, device=coins.device)
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    shape = (count * channels, 1, 1)
    angle = uniform(shape, 0.0, math.pi, coins)
    frequency = uniform(shape, 0.0, 2.2, coins)
    phase = uniform(shape, 0.0, 2 * math.pi, coins)
    width = uniform(shape, 0.6, 2.0, coins)
    along = x * angle.cos() + y * angle.sin()
    waves = (frequency * along + phase).cos() * torch.exp(-(x**2 + y**2) / (2 * width**2))
    waves = waves / waves.flatten(1).norm(dim=1).clamp(min=1e-3)[:, None, None]
    # each output channel sees a few inputs through its own wave, with random weights
    mixing = normal((count * channels, channels), coins)
    mixing = mixing * (uniform((count * channels, channels), 0, 1, coins) < 0.4)
    return mixing[:, :, None, None] * waves[:, None]


def _standardised(fields: Tensor) -> Tensor:
    mean = fields.mean(dim=(2, 3), keepdim=True)
    deviation = fields.std(dim=(2, 3), keepdim=True)
    return (fields - mean) / deviation.clamp(min=1e-4)
