"""Morlet wavelets and their low-pass filter, as spectra on a periodic grid.

A wavelet of scale j and angle θ is a Gaussian of width σ, stretched by 1/slant across its
direction, times a wave of frequency ξ along it, minus what gives it mean zero (Bruna & Mallat
2013, "Invariant scattering convolution networks", section II-A):

    ψ(u) = (e^{iξ u₁} − κ) · e^{−(u₁² + slant² u₂²) / 2σ²} · slant / (2πσ²),   u rotated by θ
    σ = 0.8 · 2^j,   ξ = 3π / (4 · 2^j),   slant = 4 / angles

and the low-pass filter φ of scale J is an isotropic Gaussian of width 0.8 · 2^(J−1). Numbers and
order are those of Kymatio (Andreux et al. 2020), which published results were computed with.
Everything is float64; in frequency each of these filters is real.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Kymatio's constant, digits and all: with π, features would be off by up to 1e-4 of their size.
_PI = 3.1415
_TURNS = 2  # further periods than this lie beyond 15 σ


def morlet(size: tuple[int, int], scale: int, angle: int, angles: int) -> Tensor:
    """The spectrum of the wavelet `angle` of `angles` at `scale`, as [height, width]."""
    theta = (max((angles - 2) // 2, 0) - angle) * math.pi / angles
    sigma, frequency, slant = 0.8 * 2**scale, 0.75 * math.pi / 2**scale, 4.0 / angles
    rows, columns = (_positions(side) for side in size)
    along = rows[:, None] * math.cos(theta) + columns * math.sin(theta)
    across = columns * math.cos(theta) - rows[:, None] * math.sin(theta)
    envelope = torch.exp(-(along.square() + (slant * across).square()) / (2 * sigma**2))
    wave = _periodic(envelope * torch.exp(1j * frequency * along), size)
    bump = _periodic(envelope, size)
    wavelet = wave - wave.sum() / bump.sum() * bump
    return torch.fft.fft2(wavelet).real * (slant / (2 * _PI * sigma**2))


def low_pass(side: int, scale: int) -> Tensor:
    """The spectrum of one factor of φ along an axis of `side`; φ is the product of two."""
    sigma = 0.8 * 2 ** (scale - 1)
    bump = torch.exp(-_positions(side).square() / (2 * sigma**2)).reshape(-1, side).sum(0)
    return torch.fft.fft(bump).real / math.sqrt(2 * _PI * sigma**2)


def coarser(spectrum: Tensor, level: int) -> Tensor:
    """The lowest frequencies of a spectrum: the same filter on a grid 2^level times coarser."""
    for axis in range(spectrum.dim()):
        side = spectrum.shape[axis]
        kept = side >> level
        low = spectrum.narrow(axis, 0, kept // 2)
        high = spectrum.narrow(axis, side - (kept - kept // 2), kept - kept // 2)
        spectrum = torch.cat([low, high], axis)
    return spectrum


def averaging(spectrum: Tensor, step: int) -> Tensor:
    """The matrix that filters a signal and keeps every `step`-th value, the two ends left out.

    The ends are where padding was put.
    """
    kernel = torch.fft.ifft(spectrum).real
    side = len(kernel)
    kept = torch.arange(step, side - step, step)
    return kernel[(kept[:, None] - torch.arange(side)) % side]


def _positions(side: int) -> Tensor:
    return torch.arange(-_TURNS * side, (_TURNS + 1) * side, dtype=torch.float64)


def _periodic(values: Tensor, size: tuple[int, int]) -> Tensor:
    height, width = size
    return values.reshape(-1, height, values.shape[1] // width, width).sum((0, 2))
