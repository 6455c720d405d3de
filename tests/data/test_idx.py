from __future__ import annotations

import gzip
import struct

import numpy as np
import pytest

from reticent.data.archives import Blob
from reticent.data.idx import parse_idx
from reticent.errors import DataError

PIXELS = bytes(range(24))
GOOD = b"\0\0\x08\x03" + struct.pack(">3I", 2, 3, 4) + PIXELS


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_bytes_come_out_in_order(pack: object) -> None:
    found = parse_idx(Blob("f", pack(GOOD)), (2, 3, 4))  # type: ignore[operator]
    assert found.dtype == np.uint8
    assert found.tolist() == np.arange(24).reshape(2, 3, 4).tolist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "IDX header of 16 bytes, found 0"),
        (GOOD[:15], "IDX header of 16 bytes, found 15"),
        (GOOD[:-1], "expected 40 bytes, found 39"),
        (GOOD + b"x", "expected 40 bytes, found 41"),
        (b"\0\0\x09" + GOOD[3:], "magic number 0x0803"),
        (b"\0\0\x08\x01" + GOOD[4:], "magic number 0x0803"),
        (GOOD[:4] + struct.pack(">3I", 2**31, 3, 4) + PIXELS, r"dimensions \(2, 3, 4\)"),
        (gzip.compress(GOOD, mtime=0)[:-10], "complete gzip"),
        (gzip.compress(GOOD + b"x", mtime=0), "40 bytes at most once unzipped"),
    ],
)
def test_anything_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^f: .*{message}"):
        parse_idx(Blob("f", data), (2, 3, 4))
