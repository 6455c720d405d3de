"""Whitening by what images that nobody took have in common.

Gradient descent on correlated features is slow along most directions, and with noise on every step
what is slow is lost. Features whose covariance is about the identity can be learned from in a few
steps. The covariance of the records would have to be paid for; that of images from random processes
is public, and close enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reticent.errors import DataError, OptionError, one_of, positive, whole
from reticent.pretraining.contrastive import draw_images
from reticent.pretraining.figures import figures, strokes
from reticent.pretraining.textures import coloured_noise, random_networks

PROCESSES = ("mixed", "strokes", "figures")
_GREY = (0.299, 0.587, 0.114)
_PIECE = 512  # images drawn at a time; part of what a seed means
_BANK_PIECE = 2048
_ROUNDING = 1e-3  # by which images may miss [0, 1]

Encode = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Whitening:
    """x to the unit vector along W (x - centre), WᵀW the inverse of a public covariance.

    Attributes:
        centre: [d], the mean of the public features.
        matrix: [d, d], the inverse of the Cholesky factor of their covariance.
    """

    centre: Tensor
    matrix: Tensor

    def __call__(self, features: Tensor) -> Tensor:
        """Whiten [n, d], each row on its own; every row gets length 1."""
        return F.normalize((features - self.centre) @ self.matrix.T, dim=1)


class PublicWhitening(nn.Module):
    """A `Whitening` that is learned when it is first asked for, from images of a random process.

    Args:
        shape: of one image.
        process: of `PROCESSES`.
        ridge: see `whitening`.
        images: how many of them.
    """

    centre: Tensor | None
    matrix: Tensor | None

    def __init__(
        self, shape: tuple[int, int, int], *, process: str, ridge: float, images: int
    ) -> None:
        super().__init__()
        self.shape = shape
        self.process = one_of("process", process, PROCESSES)
        self.ridge = positive("ridge", ridge)
        self.images = whole("images", images)
        self.register_buffer("centre", None, persistent=False)
        self.register_buffer("matrix", None, persistent=False)

    def learned(self, encode: Encode, device: torch.device) -> Whitening:
        """What whitens the features that `encode` makes of images in [0, 1]."""
        if self.centre is None or self.matrix is None:
            bank = public_images(self.process, self.images, self.shape)
            seen = [encode(some.to(device).float() / 255) for some in bank.split(_BANK_PIECE)]
            found = whitening(torch.cat(seen), self.ridge)
            self.centre, self.matrix = found.centre, found.matrix
        return Whitening(self.centre, self.matrix)


def whitening(features: Tensor, ridge: float) -> Whitening:
    """Learn from public features [n, d]; `ridge` mean variances are added to each variance.

    The larger the ridge, the more of the features' own scale is kept: better where noise is large.
    With fewer images than features it alone decides about the directions that no image has.
    """
    positive("ridge", ridge)
    centre = features.mean(0)
    centred = features - centre
    covariance = centred.T @ centred / len(features)
    covariance.diagonal().add_(ridge * covariance.diagonal().mean().clamp(min=1e-12))
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if int(failed):
        raise OptionError(
            "ridge",
            ridge,
            f"is lost in rounding with {len(features):,} images and {len(factor):,} features; "
            "take a larger one, such as 0.1",
        )
    identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return Whitening(centre, torch.linalg.solve_triangular(factor, identity, upper=False))


@lru_cache(maxsize=2)
def public_images(
    process: str, count: int, shape: tuple[int, int, int], *, seed: int = 0
) -> Tensor:
    """Images [count, C, H, W] of a random process, as bytes; drawn on the CPU, for one answer.

    Drawing 16,384 of them takes about a minute of one core; the last ones are kept.

    Args:
        process: `mixed` for everything, `strokes` for pen strokes, `figures` for one thing before
            a dark ground.
        count: how many.
        shape: of one image; with other than three channels, all show its brightness.
        seed: public.
    """
    draw = _DRAW[one_of("process", process, PROCESSES)]
    whole("images", count)
    channels, height, width = shape
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    coins = Generator().manual_seed(seed)
    pieces: list[Tensor] = []
    while sum(map(len, pieces)) < count:
        images = draw(side, coins)[:, :, top : top + height, left : left + width]
        if channels != 3:
            weights = torch.tensor(_GREY)[:, None, None]
            images = (images * weights).sum(1, keepdim=True).expand(-1, channels, -1, -1)
        pieces.append((images * 255).round().to(torch.uint8))
    return torch.cat(pieces)[:count]


def _mixed(side: int, coins: Generator) -> Tensor:
    return draw_images(2 * _PIECE, side, coins).float() / 255


def _strokes(side: int, coins: Generator) -> Tensor:
    return strokes(_PIECE, side, coins)


def _figures(side: int, coins: Generator) -> Tensor:
    half = _PIECE // 2
    textures = torch.cat((coloured_noise(half, side, coins), random_networks(half, side, coins)))
    return figures(textures, _PIECE, coins)


def check_images(images: Tensor, shape: tuple[int, int, int], name: str) -> None:
    """Refuse what are no images of this shape in [0, 1]; `name` is whose features are meant."""
    if images.dim() != 4 or tuple(images.shape[1:]) != shape:
        wanted = ", ".join(map(str, shape))
        raise DataError(
            f"images have shape {tuple(images.shape)}: these features are for [n, {wanted}]"
        )
    if not images.is_floating_point():
        raise DataError(
            f"images are {images.dtype}: they must be floats in [0, 1]; divide bytes by 255"
        )
    # said this way round, a NaN is refused too
    if not bool(((images >= -_ROUNDING) & (images <= 1 + _ROUNDING)).all()):
        raise DataError(
            f"images have values outside [0, 1], or NaN: {name} takes them as "
            "`reticent.data` loads them, not standardised; divide bytes by 255"
        )


_DRAW: dict[str, Callable[[int, Generator], Tensor]] = {
    "mixed": _mixed,
    "strokes": _strokes,
    "figures": _figures,
}
