"""The IDX format of MNIST and Fashion-MNIST, gzipped or not.

Layout: two zero bytes, the element type (8 = unsigned byte), the number of dimensions, each
dimension as a big-endian 32-bit count, then the bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from reticent.data.archives import Blob, unzip
from reticent.data.catalog import Entry
from reticent.errors import DataError

FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def parse_idx(blob: Blob, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """The array in `blob`, which must have exactly this shape."""
    header = 4 + 4 * len(shape)
    size = header + int(np.prod(shape))
    data = unzip(blob, size).data
    if len(data) < header:
        raise DataError(f"{blob.name}: expected an IDX header of {header} bytes, found {len(data)}")
    magic = struct.unpack(">I", data[:4])[0]
    if magic != 0x0800 + len(shape):
        raise DataError(
            f"{blob.name}: expected IDX magic number {0x0800 + len(shape):#06x} "
            f"(unsigned bytes, {len(shape)} dimensions), found {magic:#06x}"
        )
    found = struct.unpack(f">{len(shape)}I", data[4:header])
    if found != shape:
        raise DataError(f"{blob.name}: expected dimensions {shape}, found {found}")
    if len(data) != size:
        raise DataError(f"{blob.name}: expected {size} bytes, found {len(data)}")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def read(entry: Entry, files: Mapping[str, Blob]) -> dict[str, NDArray[np.generic]]:
    """The four arrays of the data set, from its four files."""
    height, width = entry.shape[1:]
    return {
        "train_images": parse_idx(files[FILES[0]], (entry.n_train, height, width)),
        "train_labels": parse_idx(files[FILES[1]], (entry.n_train,)),
        "test_images": parse_idx(files[FILES[2]], (entry.n_test, height, width)),
        "test_labels": parse_idx(files[FILES[3]], (entry.n_test,)),
    }
