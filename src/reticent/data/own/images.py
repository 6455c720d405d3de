"""Folders of images: a folder for each class, or `train` and `test` with such folders in them."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.data.own.options import missing_extra
from reticent.errors import DataError

SIDE = 32
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
_DEEP = ("I;16", "I;16B", "I;16L", "I", "F")

Images = list[tuple[str, Path]]
"""Label and file of each image."""


def image_folders(path: Path) -> tuple[Images, Images | None]:
    """The images of a folder, and those of its `test` folder if it has one."""
    train, test = path / "train", path / "test"
    if train.is_dir():
        return _images(train), _images(test) if test.is_dir() else None
    return _images(path), None


def new_images(path: Path) -> list[Path]:
    """The images of a folder, however deep, or one image; nothing is known of their classes."""
    if path.is_file():
        return [path]
    found = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    found = [file for file in found if not file.name.startswith(".")]
    if not found:
        raise DataError(
            f"{path}: no images there; expected files that end in {', '.join(SUFFIXES)}"
        )
    return found


def read_images(files: Sequence[Path], side: int | None, *, grey: bool) -> Tensor:
    """Images as [n, channels, side, side] in [0, 1], each resized on its own."""
    image_module = _pillow(files[0])
    return stack((_opened(image_module, file, str(file)) for file in files), side, grey=grey)


def decode_images(blobs: Sequence[bytes], origin: Path, side: int | None, *, grey: bool) -> Tensor:
    """The same for encoded images that a table holds."""
    image_module = _pillow(origin)
    opened = (
        _opened(image_module, io.BytesIO(blob), f"{origin}: record {number}")
        for number, blob in enumerate(blobs, 1)
    )
    return stack(opened, side, grey=grey)


def stack(opened: Iterable[tuple[str, Any]], side: int | None, *, grey: bool) -> Tensor:
    """Resize and stack images; without a stated side, all must be of one size."""
    parts: list[NDArray[np.uint8]] = []
    first: tuple[str, tuple[int, int]] | None = None
    for name, image in opened:
        if first is None:
            first = name, image.size
        elif side is None and image.size != first[1]:
            raise DataError(
                f"{name} is {image.size[0]}x{image.size[1]}, {first[0]} {first[1][0]}x"
                f"{first[1][1]}: state the side to resize all to, such as --side {SIDE}"
            )
        small = image.convert("L" if grey else "RGB").resize(
            (side or SIDE, side or SIDE), resample=2
        )
        pixels = np.asarray(small, dtype=np.uint8)
        parts.append(pixels[:, :, None] if grey else pixels)
    stacked = torch.from_numpy(np.stack(parts)).permute(0, 3, 1, 2)
    return stacked.to(torch.float32).div_(255).contiguous()


def _images(folder: Path) -> Images:
    found = []
    classes = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    for each in classes:
        files = sorted(p for p in each.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
        found += [(each.name, file) for file in files if not file.name.startswith(".")]
    if not found:
        raise DataError(
            f"{folder}: no images there; expected a folder for each class, with files that end in "
            f"{', '.join(SUFFIXES)}"
        )
    return found


def _pillow(path: Path) -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise missing_extra("reading images", "Pillow", path) from None
    return Image


def _opened(image_module: Any, file: Any, name: str) -> tuple[str, Any]:
    from PIL import ImageOps

    try:
        with image_module.open(file) as image:
            image.load()
            deep = image.mode in _DEEP
            # as a viewer shows it: cameras note how they were held
            turned = ImageOps.exif_transpose(image)
    # what Pillow raises for a damaged file is anything at all
    except Exception as error:
        said = str(error).replace("\n", " ")[:100]
        raise DataError(f"{name}: is no image that can be read ({said})") from None
    if deep:
        raise DataError(f"{name}: has more than 8 bits a pixel; convert it to an 8-bit image")
    return name, turned
