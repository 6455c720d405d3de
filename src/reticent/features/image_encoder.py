"""Images as the vectors of a frozen public encoder, which the user brings.

Nothing is learned from the records, and each image is mapped on its own; what the encoder was
trained on is for whoever chooses it to know.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reticent.encoders import ImageProgram
from reticent.errors import (
    DataError,
    OptionError,
    between,
    not_negative,
    one_of,
    positive,
    single,
    truth,
    whole,
)
from reticent.features.pieces import in_full_pieces
from reticent.features.whitening import PROCESSES, PublicWhitening, check_images
from reticent.models.inputs import PLAIN, SCALES, PublicScale

NAMED = {
    **SCALES,
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5,), (0.5,)),
}
"""Means and deviations that encoders are published with, of values in [0, 1]."""

MOST_IMAGES = 1 << 20
_SCALES = f"{PLAIN}, {', '.join(NAMED)}, or MEAN/DEVIATION such as 0.5/0.25"


class ImageEncoder(nn.Module):
    """From images [n, C, H, W] in [0, 1] to [n, d].

    An image is resized to what the encoder takes, as many rows are always computed at a time
    whatever the batch, and maps are averaged over their places: so an image's numbers do not depend
    on which others there are, not even in rounding.

    Args:
        encoder: A file that `export_encoder` wrote.
        shape: Of one image; a grey one becomes as many channels as the encoder takes.
        inputs: How the encoder wants its images: `plain`, the name of a public mean and deviation,
            or the numbers themselves, `MEAN/DEVIATION`, one each or one for each channel.
        mirror: Average with the vectors of the mirror image.
        length: Each vector is brought to this length; 0 leaves it as it is.
        images: So many random images whiten the vectors, which then have length 1 before they are
            brought to another; 0 for none.
        process, ridge: As for `RandomImages`.
    """

    def __init__(
        self,
        encoder: str | Path,
        shape: tuple[int, int, int],
        *,
        inputs: str = "imagenet",
        mirror: bool = False,
        length: float = 1.0,
        images: int = 0,
        process: str = "mixed",
        ridge: float = 1.0,
    ) -> None:
        super().__init__()
        truth("mirror", mirror)
        self.shape, self.mirror = shape, mirror
        self.length = single("length", not_negative("length", length)) if length else 0.0
        self._program = ImageProgram(encoder)
        takes = self._program.shape[0]
        if shape[0] not in (1, takes):
            raise OptionError(
                "encoder", str(encoder), f"takes {takes} channels; these images have {shape[0]}"
            )
        self.scale = _scale(inputs, takes)
        self._whitening: PublicWhitening | None = None
        one_of("process", process, PROCESSES)
        positive("ridge", ridge)
        if whole("images", images, least=0):
            between("images", images, 1, MOST_IMAGES)
            self._whitening = PublicWhitening(shape, process=process, ridge=ridge, images=images)
        self.register_buffer("_here", torch.zeros(0), persistent=False)

    _here: Tensor  # on the device of this module

    @property
    def made_with(self) -> str:
        """A fingerprint of the encoder's file, as it was read."""
        return self._program.made_with

    @property
    def width(self) -> int:
        """How many numbers an image becomes."""
        return self._program.width

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Encode a batch."""
        return self.finish(self.pooled(images))

    @torch.no_grad()
    def finish(self, vectors: Tensor) -> Tensor:
        """Whiten the encoder's vectors and bring them to their length."""
        if self._whitening is not None and len(vectors):
            whitened = self._whitening.learned(self.pooled, self._here.device)
            vectors = in_full_pieces(whitened, vectors, self._program.rows)
        return self.length * F.normalize(vectors, dim=1) if self.length else vectors

    @torch.no_grad()
    def pooled(self, images: Tensor) -> Tensor:
        """The encoder's vectors before whitening and scaling."""
        check_images(images, self.shape, "image-encoder")
        images = images.to(self._here.device, torch.float32)
        if len(images) == 0:
            return images.new_zeros((0, self.width))
        found = in_full_pieces(self._mirrored, images, self._program.rows)
        if not bool(found.isfinite().all()):
            raise DataError(
                f"{self._program.path}: the encoder gives numbers that are not finite for some "
                "images; use another"
            )
        return found

    def _mirrored(self, images: Tensor) -> Tensor:
        found = self._encoded(images)
        return (found + self._encoded(images.flip(3))) / 2 if self.mirror else found

    def _encoded(self, images: Tensor) -> Tensor:
        channels, height, width = self._program.shape
        if self.shape[1:] != (height, width):
            images = F.interpolate(
                images, (height, width), mode="bicubic", antialias=True, align_corners=False
            ).clamp(0, 1)
        return self._program(self.scale(images.expand(-1, channels, -1, -1)))


def _scale(inputs: str, channels: int) -> nn.Module:
    if not isinstance(inputs, str):
        raise OptionError("inputs", inputs, f"must be one of {_SCALES}")
    if inputs == PLAIN:
        return nn.Identity()
    if inputs in NAMED:
        mean, deviation = NAMED[inputs]
    else:
        mean, deviation = _numbers(inputs)
    for values in (mean, deviation):
        if len(values) not in (1, channels):
            raise OptionError(
                "inputs",
                inputs,
                f"has {len(values)} numbers; the encoder takes {channels} channels",
            )
    return PublicScale(mean, deviation)


def _numbers(inputs: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    parts = [part.split(",") for part in inputs.split("/")]
    try:
        mean, deviation = (tuple(float(number) for number in part) for part in parts)
    except ValueError:
        raise OptionError("inputs", inputs, f"must be one of {_SCALES}") from None
    if not all(abs(m) < 1e6 for m in mean) or not all(1e-6 < d < 1e6 for d in deviation):
        raise OptionError("inputs", inputs, "must be a mean and a deviation greater than 0")
    return mean, deviation
