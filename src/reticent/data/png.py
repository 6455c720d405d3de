"""A strict PNG decoder for one kind of picture: 8-bit RGB, not interlaced.

CIFAR-10 is published as such pictures, and nothing else here needs an image library. Every chunk's
CRC is checked and the picture must have exactly the size asked for, so a decompression bomb stops
at the first byte too many. PNG specification, section 9, for the five filters.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from reticent.data.archives import Blob
from reticent.errors import DataError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHANNELS = 3


def decode_png(blob: Blob, height: int, width: int) -> NDArray[np.uint8]:
    """The pixels of an RGB picture as [height, width, 3]."""
    chunks = _chunks(blob)
    kind, header = next(chunks, (b"", b""))
    if kind != b"IHDR" or len(header) != 13:
        raise DataError(f"{blob.name}: expected a PNG that starts with IHDR, found {kind!r}")
    found = struct.unpack(">IIBBBBB", header)
    expected = (width, height, 8, 2, 0, 0, 0)
    if found != expected:
        raise DataError(
            f"{blob.name}: expected (width, height, depth, colour, compression, filter, interlace) "
            f"= {expected}, found {found}"
        )
    packed = []
    for kind, data in chunks:
        if kind == b"IDAT":
            packed.append(data)
        elif (kind[:1].isupper() and kind not in (b"PLTE", b"IEND")) or kind == b"tRNS":
            raise DataError(f"{blob.name}: expected plain RGB pixels, found chunk {kind!r}")
    stride = width * _CHANNELS
    rows = np.frombuffer(_inflate(blob, b"".join(packed), height * (stride + 1)), np.uint8)
    rows = rows.reshape(height, stride + 1)
    return _unfilter(blob, rows[:, 0], rows[:, 1:]).reshape(height, width, _CHANNELS)


def _chunks(blob: Blob) -> Iterator[tuple[bytes, bytes]]:
    data = blob.data
    if not data.startswith(_SIGNATURE):
        raise DataError(f"{blob.name}: expected a PNG file, found {data[:8]!r}")
    at = len(_SIGNATURE)
    kind = b""
    while kind != b"IEND":
        if at + 12 > len(data):
            raise DataError(f"{blob.name}: expected an IEND chunk, found the end at byte {at}")
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        crc = data[at + 8 + size : at + 12 + size]
        if len(crc) != 4 or struct.unpack(">I", crc)[0] != zlib.crc32(kind + body):
            raise DataError(f"{blob.name}: chunk {kind!r} at byte {at} is cut short or damaged")
        at += 12 + size
        yield kind, body
    if at != len(data):
        raise DataError(f"{blob.name}: expected the end after IEND, found {len(data) - at} bytes")


def _inflate(blob: Blob, packed: bytes, size: int) -> bytes:
    engine = zlib.decompressobj()
    try:
        data = engine.decompress(packed, size + 1)
    except zlib.error as error:
        raise DataError(f"{blob.name}: expected zlib-compressed pixels, found {error}") from error
    if len(data) != size or not engine.eof or engine.unused_data:
        raise DataError(
            f"{blob.name}: expected {size} bytes of pixels, found {len(data)}"
            f"{'' if engine.eof else ' in an unfinished stream'}"
        )
    return data


def _unfilter(blob: Blob, kinds: NDArray[np.uint8], coded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if kinds.size and kinds.max() > 4:
        raise DataError(f"{blob.name}: expected filters 0 to 4, found {int(kinds.max())}")
    height, stride = coded.shape
    pixels = coded.copy()
    # "Sub" is a running sum modulo 256 and needs no other row: all such rows at once
    subs = np.flatnonzero(kinds == 1)
    shaped = coded[subs].reshape(len(subs), stride // _CHANNELS, _CHANNELS)
    pixels[subs] = np.cumsum(shaped, axis=1, dtype=np.uint8).reshape(len(subs), stride)
    above = np.zeros(stride, np.uint8)
    for row in range(height):
        kind = kinds[row]
        if kind == 2:
            pixels[row] += above
        elif kind == 3:
            pixels[row] = _average(coded[row].tobytes(), above.tobytes())
        elif kind == 4:
            pixels[row] = _paeth(coded[row].tobytes(), above.tobytes())
        above = pixels[row]
    return pixels


def _average(coded: bytes, above: bytes) -> NDArray[np.uint8]:
    out = bytearray(len(coded))
    for k, value in enumerate(coded):
        left = out[k - _CHANNELS] if k >= _CHANNELS else 0
        out[k] = (value + (left + above[k]) // 2) & 0xFF
    return np.frombuffer(out, np.uint8)


def _paeth(coded: bytes, above: bytes) -> NDArray[np.uint8]:
    out = bytearray(len(coded))
    for k, value in enumerate(coded):
        left, corner = (out[k - _CHANNELS], above[k - _CHANNELS]) if k >= _CHANNELS else (0, 0)
        up = above[k]
        to_left, to_up = abs(up - corner), abs(left - corner)
        to_corner = abs(left + up - 2 * corner)
        if to_left <= to_up and to_left <= to_corner:
            guess = left
        else:
            guess = up if to_up <= to_corner else corner
        out[k] = (value + guess) & 0xFF
    return np.frombuffer(out, np.uint8)
