"""Features on the disk: plain .npy files with a checksum after the last number.

A file takes its name only once it is whole. One that was cut, changed or made for something else is
not used, and written anew. It is mapped into memory, not read: features can be larger than that.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.files import replacing

FORMAT = 2
_KIND = np.dtype("<f4")
_DIGEST = 16

# files that this process has found whole, as they were then: gigabytes are not read twice
_whole: dict[Path, tuple[str, int, int, int]] = {}


def write(
    path: Path, shape: tuple[int, ...], parts: Iterable[NDArray[np.float32]], made_of: str
) -> None:
    """Write float32 values of this shape, given in parts along the first dimension.

    `made_of` says what they were computed from. It goes into the checksum and nowhere else: a hash
    of private records has no place in a name that is printed.
    """
    digest = _digest(made_of)
    with replacing(path) as file:
        file.write(_header(shape))
        for part in parts:
            values = np.ascontiguousarray(part, _KIND)
            file.write(values.data)
            digest.update(values.data)
        file.write(digest.digest())


def read(path: Path, shape: tuple[int, ...], made_of: str) -> Tensor | None:
    """The values of this shape, or None if they are not there, damaged or made of other things."""
    header = _header(shape)
    size = int(np.prod(shape)) * _KIND.itemsize
    try:
        with path.open("rb") as file:
            if file.read(len(header)) != header:
                return None
            if path.stat().st_size != len(header) + size + _DIGEST:
                return None
            file.seek(-_DIGEST, io.SEEK_END)
            expected = file.read(_DIGEST)
            now = os.fstat(file.fileno())
        # copy-on-write: whoever changes the tensor changes no file
        values = np.memmap(path, _KIND, mode="c", offset=len(header), shape=shape)
    except (OSError, ValueError):
        return None
    state = (made_of, now.st_mtime_ns, now.st_ctime_ns, now.st_ino)
    if _whole.get(path) != state:
        digest = _digest(made_of)
        digest.update(values.data)
        if digest.digest() != expected:
            return None
        _whole[path] = state
    return torch.from_numpy(values)


def _digest(made_of: str) -> hashlib.blake2b:
    digest = hashlib.blake2b(digest_size=_DIGEST)
    digest.update(made_of.encode() + b"\0")
    return digest


def _header(shape: tuple[int, ...]) -> bytes:
    """The header NumPy gives these values; comparing it whole leaves nothing to parse."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        file, {"descr": _KIND.str, "fortran_order": False, "shape": shape}
    )
    return file.getvalue()
