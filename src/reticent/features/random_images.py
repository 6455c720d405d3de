"""Features from a network that has only ever seen images drawn from random processes.

A wide residual network (16-4) learned by contrast to tell such images apart
(`reticent.pretraining`). Its maps, pooled to a few places, and the scattering transform see edges,
textures and shapes in real images too. Nothing comes from any record, so they cost no privacy.
"""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reticent.errors import OptionError, truth
from reticent.features.image_network import SIDE, load_network
from reticent.features.pieces import in_full_pieces
from reticent.features.scattering import Scattering
from reticent.features.whitening import PublicWhitening, Whitening, check_images

_LEAST_SIDE = 24  # smaller images are enlarged, those between framed in black
_SMALLEST = 4  # sides below which there is nothing to see
_SCATTERING, _GROUPS = "scattering", 27
_PART = re.compile(r"([123])x([1-9])")
# Images in the network at a time: what a core's cache holds, or what fills a GPU. How many it is
# has no influence on the result but in rounding.
_PIECE = {"cpu": 32, "cuda": 2048}


class RandomImages(nn.Module):
    """From images [n, C, H, W] in [0, 1] to unit vectors [n, d].

    Args:
        shape: of one image, C x H x W, C = 1 or 3.
        parts: what is put side by side: `GxS` for the maps of the network's group G (1, 2 or 3)
            pooled to SxS places, and `scattering`; joined by `+`.
        mirror: average with the features of the mirror image.
        process: the random process whose covariance whitens: `mixed`, `strokes` or `figures`.
        ridge: see `whitening`.
        images: how many images of that process.
        weights: a file of other weights for the network.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        *,
        parts: str = "3x4+2x4+1x4",
        mirror: bool = True,
        process: str = "mixed",
        ridge: float = 1.0,
        images: int = 16_384,
        weights: str = "",
    ) -> None:
        super().__init__()
        self.shape = _checked(shape)
        self.parts = _parsed(parts)
        truth("mirror", mirror)
        self.mirror = mirror
        self._whitening = PublicWhitening(self.shape, process=process, ridge=ridge, images=images)
        self.network = load_network(weights)
        wanted = _SCATTERING in self.parts
        self.scattering = Scattering((shape[1], shape[2])) if wanted else None

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """The whitened features of a batch."""
        pooled = self.pooled(images)
        if len(pooled) == 0:
            return pooled  # without learning what whitens
        return in_full_pieces(self.whitening(), pooled, self._rows)

    def whitening(self) -> Whitening:
        """What whitens these features, learned from public images when first asked for."""
        return self._whitening.learned(self.pooled, self._device)

    @property
    def _device(self) -> torch.device:
        return self.network.norm.weight.device

    @torch.no_grad()
    def pooled(self, images: Tensor) -> Tensor:
        """The features before whitening."""
        check_images(images, self.shape, "random-images")
        images = images.to(self._device, torch.float32)
        return in_full_pieces(self._mirrored, images, self._rows)

    @property
    def _rows(self) -> int:
        return _PIECE.get(self._device.type, 512)

    def _mirrored(self, images: Tensor) -> Tensor:
        features = self._parts_of(images)
        if self.mirror:
            features = (features + self._parts_of(images.flip(3))) / 2
        return features

    def _parts_of(self, images: Tensor) -> Tensor:
        groups = {int(part[0]) for part in self.parts if part != _SCATTERING}
        maps = self._maps(framed(images), groups)
        found = []
        for part in self.parts:
            if self.scattering is not None and part == _SCATTERING:
                values = F.group_norm(self.scattering(images), _GROUPS).flatten(1)
            else:
                group, places = map(int, part.split("x"))
                values = F.adaptive_avg_pool2d(maps[group], places).flatten(1)
            # parts of equal weight to each of their numbers
            found.append(F.normalize(values, dim=1) * math.sqrt(values.shape[1]))
        return torch.cat(found, dim=1)

    def _maps(self, images: Tensor, groups: set[int]) -> dict[int, Tensor]:
        """The output of these groups, rectified and normalised within the image."""
        net, maps = self.network, {}
        x = net.stem(images) if groups else images
        for group in range(1, max(groups, default=0) + 1):
            x = net.get_submodule(f"group{group}")(x)
            if group in groups:
                maps[group] = F.group_norm(F.relu(x), net.norm.num_groups)
        return maps


def framed(images: Tensor) -> Tensor:
    """Images as the network knows them: three channels, 32x32.

    Those of 24 to 32 pixels are framed in black, others are resized.
    """
    height, width = images.shape[2:]
    if images.shape[1] == 1:
        images = images.expand(-1, 3, -1, -1)
    if min(height, width) >= _LEAST_SIDE and max(height, width) <= SIDE:
        across, down = SIDE - width, SIDE - height
        return F.pad(images, (across // 2, across - across // 2, down // 2, down - down // 2))
    if len(images) == 0:
        return images.new_zeros((0, 3, SIDE, SIDE))
    return F.interpolate(
        images, size=(SIDE, SIDE), mode="bilinear", antialias=True, align_corners=False
    )


def _checked(shape: tuple[int, int, int]) -> tuple[int, int, int]:
    channels, height, width = shape
    if channels not in (1, 3):
        raise OptionError(
            "features",
            "random-images",
            f"takes grey or RGB images, channels first: {channels} channels in {tuple(shape)}",
        )
    if min(height, width) < _SMALLEST:
        raise OptionError(
            "features",
            "random-images",
            f"takes images of at least {_SMALLEST}x{_SMALLEST} pixels, not {height}x{width}",
        )
    return channels, height, width


def _parsed(parts: str) -> tuple[str, ...]:
    found = tuple(str(parts).split("+"))
    for part in found:
        if part != _SCATTERING and not _PART.fullmatch(part):
            raise OptionError(
                "parts", parts, f"{part!r} is neither GxS, such as 3x4, nor {_SCATTERING}"
            )
    return found
