from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from reticent.data.archives import Blob
from reticent.data.png import decode_png
from reticent.errors import DataError


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def paeth(a: int, b: int, c: int) -> int:
    p = a + b - c
    return min(((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c)))[2]


def filtered(pixels: np.ndarray, kinds: list[int]) -> bytes:
    """The encoder's side of the specification, byte by byte."""
    height, width, _ = pixels.shape
    flat = pixels.reshape(height, width * 3).astype(int)
    out = bytearray()
    for y in range(height):
        out.append(kinds[y])
        for x in range(width * 3):
            a = flat[y, x - 3] if x >= 3 else 0
            b = flat[y - 1, x] if y else 0
            c = flat[y - 1, x - 3] if y and x >= 3 else 0
            guess = (0, a, b, (a + b) // 2, paeth(a, b, c))[kinds[y]]
            out.append((flat[y, x] - guess) % 256)
    return bytes(out)


def png(
    raw: bytes, width: int, height: int, tail: bytes = b"\x08\x02\0\0\0", parts: int = 1
) -> bytes:
    packed = zlib.compress(raw)
    step = -(-len(packed) // parts)
    body = b"".join(chunk(b"IDAT", packed[k : k + step]) for k in range(0, len(packed), step))
    header = chunk(b"IHDR", struct.pack(">II", width, height) + tail)
    return b"\x89PNG\r\n\x1a\n" + header + body + chunk(b"IEND", b"")


PICTURE = np.random.default_rng(5).integers(0, 256, (10, 7, 3)).astype(np.uint8)
MIXED = [1, 0, 2, 3, 4, 4, 3, 1, 1, 2]


@pytest.mark.parametrize("kinds", [[k] * 10 for k in range(5)] + [MIXED, MIXED[::-1]])
@pytest.mark.parametrize("parts", [1, 3])
def test_all_five_filters(kinds: list[int], parts: int) -> None:
    data = png(filtered(PICTURE, kinds), 7, 10, parts=parts)
    assert np.array_equal(decode_png(Blob("f", data), 10, 7), PICTURE)


def test_smooth_pictures_reach_every_branch_of_the_predictor() -> None:
    ramp = np.add.outer(np.arange(10) * 9, np.arange(7) * 5)[..., None] + np.array([0, 80, 250])
    ramp = (ramp % 256).astype(np.uint8)
    data = png(filtered(ramp, [4] * 10), 7, 10)
    assert np.array_equal(decode_png(Blob("f", data), 10, 7), ramp)


RAW = filtered(PICTURE, MIXED)
GOOD = png(RAW, 7, 10)


def with_chunk(kind: bytes) -> bytes:
    at = 8 + 25
    return GOOD[:at] + chunk(kind, b"abc") + GOOD[at:]


def test_text_chunks_are_skipped() -> None:
    assert np.array_equal(decode_png(Blob("f", with_chunk(b"tEXt")), 10, 7), PICTURE)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected a PNG file"),
        (b"GIF89a" + GOOD, "expected a PNG file"),
        (GOOD[:8], "expected an IEND chunk"),
        (GOOD[:-1], "IEND.*cut short|expected an IEND"),
        (GOOD[:60], "cut short or damaged"),
        (GOOD[:50] + bytes([GOOD[50] ^ 1]) + GOOD[51:], "cut short or damaged"),
        (GOOD + b"x", "found 1 bytes"),
        (GOOD[:8] + GOOD[33:], "starts with IHDR"),
        (png(RAW, 10, 7), "expected .width, height"),
        (png(RAW, 7, 10, b"\x10\x02\0\0\0"), "expected .width, height"),
        (png(RAW, 7, 10, b"\x08\x06\0\0\0"), "expected .width, height"),
        (png(RAW, 7, 10, b"\x08\x02\0\0\x01"), "expected .width, height"),
        (png(RAW[:-1], 7, 10), "expected 220 bytes of pixels, found 219"),
        (png(RAW + b"xx", 7, 10), "expected 220 bytes of pixels, found 221"),
        (png(b"\x05" + RAW[1:], 7, 10), "filters 0 to 4, found 5"),
        (with_chunk(b"ABCD"), "plain RGB pixels, found chunk b'ABCD'"),
        (with_chunk(b"tRNS"), "plain RGB pixels, found chunk b'tRNS'"),
        (
            GOOD[:33] + chunk(b"IDAT", zlib.compress(RAW)[:-6]) + chunk(b"IEND", b""),
            "unfinished stream|zlib",
        ),
        (GOOD[:33] + chunk(b"IDAT", b"rubbish") + chunk(b"IEND", b""), "zlib-compressed"),
    ],
)
def test_anything_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^f: .*(?:{message})"):
        decode_png(Blob("f", data), 10, 7)
