"""The scattering transform of images: wavelets, modulus, wavelets, modulus, average.

    S₀ = x ⋆ φ      S₁ = |x ⋆ ψ₁| ⋆ φ      S₂ = ||x ⋆ ψ₁| ⋆ ψ₂| ⋆ φ

(Bruna & Mallat 2013; Oyallon & Mallat 2015), ψ₁ over all scales and angles and ψ₂ over those of
coarser scales, each sampled every 2^scales pixels. Nothing in it is learned or taken from data, and
each image is transformed on its own, so features computed with it cost no privacy.

Values, order and borders are those of Kymatio's `Scattering2D`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reticent.errors import DataError, OptionError, whole
from reticent.features.wavelets import averaging, coarser, low_pass, morlet

# Bytes of the largest intermediate value: a part of a core's cache, or enough to fill a GPU.
_WORKING_SET = {"cpu": 4 << 20, "cuda": 256 << 20}


class Scattering(nn.Module):
    """The transform for images of one size, from [n, C, H, W] to [n, C·K, H / 2^J, W / 2^J].

    K = 1 + J·L + L²·J(J−1)/2 coefficients, the last term for order 2: first S₀, then S₁ by scale
    and angle of ψ₁, then S₂ by those of ψ₁ and ψ₂. Sides are rounded down. Channels are
    transformed one by one and stay together.

    Args:
        size: height and width of the images.
        scales: J; averages reach over 2^J pixels.
        angles: L; the wavelets' directions.
        order: 1, or 2 for both moduli.
        dtype: of the arithmetic and of the result; the filters are made in float64.

    Example:
        >>> Scattering((28, 28))(torch.zeros(5, 1, 28, 28)).shape
        torch.Size([5, 81, 7, 7])
    """

    rows: Tensor
    columns: Tensor
    psi0: Tensor

    def __init__(
        self,
        size: tuple[int, int],
        *,
        scales: int = 2,
        angles: int = 8,
        order: int = 2,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.scales = whole("scales", scales)
        self.angles = whole("angles", angles)
        self.order = whole("order", order)
        if self.order > 2:
            raise OptionError("order", order, "must be 1 or 2")
        largest = min(size).bit_length() - 1
        if self.scales > largest:
            works = f"at most {largest} work" if largest > 0 else "none work"
            raise OptionError(
                "scales",
                scales,
                f"averages reach over 2^scales pixels; for images of {size[0]}x{size[1]} {works}",
            )
        self.size = size
        step = 2**self.scales
        self.padded = (size[0] // step + 2) * step, (size[1] // step + 2) * step
        for axis, name in enumerate(("rows", "columns")):
            self.register_buffer(name, _reflected(size[axis], self.padded[axis]), persistent=False)
        for scale in range(self.scales):
            bank = [morlet(self.padded, scale, angle, self.angles) for angle in range(self.angles)]
            # ψ₁ acts on the image; ψ₂ on moduli, whose grid is as coarse as ψ₁ was wide.
            self._keep(f"psi{scale}", bank, 2**scale, dtype)
            for first in range(scale if self.order == 2 else 0):
                narrow = [coarser(psi, first) for psi in bank]
                self._keep(f"psi{first}_{scale}", narrow, 2 ** (scale - first), dtype)
            left, right = (
                averaging(coarser(low_pass(side, self.scales), scale), step >> scale)
                for side in self.padded
            )
            self.register_buffer(f"left{scale}", left.to(dtype), persistent=False)
            self.register_buffer(f"right{scale}", right.T.to(dtype).contiguous(), persistent=False)

    @property
    def channels(self) -> int:
        """K, the coefficients of one channel."""
        first = self.scales * self.angles
        pairs = self.scales * (self.scales - 1) // 2 if self.order == 2 else 0
        return 1 + first + pairs * self.angles**2

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the result."""
        return self.size[0] >> self.scales, self.size[1] >> self.scales

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Transform a batch, a few images at a time, whose number matters only to rounding."""
        if images.dim() != 4 or tuple(images.shape[2:]) != self.size:
            raise DataError(
                f"images have shape {tuple(images.shape)}: this transform takes "
                f"[n, channels, {self.size[0]}, {self.size[1]}]"
            )
        if not images.is_floating_point():
            raise DataError(f"images are {images.dtype}: they must be floats, such as float32")
        planes = images.flatten(0, 1)
        result = torch.empty(
            (len(planes), self.channels, *self.shape),
            dtype=self.psi0.dtype,
            device=self.psi0.device,
        )
        piece = self._piece()
        for start in range(0, len(planes), piece):
            chunk = slice(start, start + piece)
            self._transform(planes[chunk].to(result), result[chunk])
        n, channels = images.shape[:2]
        return result.view(n, channels * self.channels, *self.shape)

    def _transform(self, planes: Tensor, result: Tensor) -> None:
        x = planes.index_select(1, self.rows).index_select(2, self.columns)
        result[:, 0] = self._average(x, 0)
        spectrum = torch.fft.fft2(x)
        second = 1 + self.scales * self.angles
        for scale in range(self.scales):
            u1 = _modulus(_filter(spectrum, self.get_buffer(f"psi{scale}")))
            start = 1 + scale * self.angles
            result[:, start : start + self.angles] = self._average(u1, scale)
            coarse = self.scales - scale - 1
            if self.order == 1 or coarse == 0:
                continue
            pairs = result[:, second : second + coarse * self.angles**2]
            pairs = pairs.unflatten(1, (self.angles, coarse, self.angles))
            second += coarse * self.angles**2
            spectra = torch.fft.fft2(u1)
            for after in range(coarse):
                bank = self.get_buffer(f"psi{scale}_{scale + 1 + after}")
                u2 = _modulus(_filter(spectra, bank))
                pairs[:, :, after] = self._average(u2, scale + 1 + after)

    def _average(self, values: Tensor, scale: int) -> Tensor:
        """Average and subsample; φ is a product, so two small matrices do what two FFTs would."""
        return self.get_buffer(f"left{scale}") @ (values @ self.get_buffer(f"right{scale}"))

    def _keep(self, name: str, bank: list[Tensor], step: int, dtype: torch.dtype) -> None:
        """Keep wavelets ready for `_filter`: [step, step, angles, height/step, 2·width/step]."""
        filters = torch.stack(bank) / step**2
        height, width = filters.shape[1] // step, filters.shape[2] // step
        filters = filters.view(-1, step, height, step, width).permute(1, 3, 0, 2, 4)
        self.register_buffer(
            name, filters.repeat_interleave(2, -1).to(dtype).contiguous(), persistent=False
        )

    def _piece(self) -> int:
        """How many images are transformed at once."""
        area = self.padded[0] * self.padded[1]
        most = area * self.angles
        if self.order == 2 and self.scales > 1:
            most = max(most, area // 4 * self.angles**2)
        size = 2 * most * self.psi0.element_size()  # complex
        threads = torch.get_num_threads() if self.psi0.device.type == "cpu" else 1
        return max(1, threads * _WORKING_SET.get(self.psi0.device.type, 1 << 28) // size)


def _filter(spectra: Tensor, bank: Tensor) -> Tensor:
    """Filter and subsample: multiply by each wavelet, add up what aliases, transform back.

    Spectra are seen as rows of real numbers, so that a real filter costs half a complex product and
    the folded sum needs no full-size intermediate value: 30 times faster on a CPU.
    """
    step, _, angles, height, width = bank.shape
    rows = torch.view_as_real(spectra).flatten(-2).unsqueeze(-3)
    tiles = rows.unflatten(-2, (step, height)).unflatten(-1, (step, width))
    folded = torch.empty(
        (*spectra.shape[:-2], angles, height, width), dtype=bank.dtype, device=bank.device
    )
    torch.mul(tiles[..., 0, :, 0, :], bank[0, 0], out=folded)
    for index in range(1, step * step):
        i, j = divmod(index, step)
        folded.addcmul_(tiles[..., i, :, j, :], bank[i, j])
    return torch.fft.ifft2(torch.view_as_complex(folded.unflatten(-1, (-1, 2))))


def _modulus(values: Tensor) -> Tensor:
    """|z|, overwriting z; `abs` guards against overflow, at four times the cost."""
    parts = torch.view_as_real(values)
    parts.square_()
    return torch.add(parts[..., 0], parts[..., 1]).sqrt_()


def _reflected(side: int, padded: int) -> Tensor:
    """Where each row of the padded image comes from: mirrored at the first and the last row."""
    period = 2 * (side - 1)
    position = (torch.arange(padded) - (padded - side) // 2) % period
    return torch.minimum(position, period - position)
