"""Reading other people's files without trusting them.

Archives are read member by member into memory and never unpacked to disk, so a hostile path has
nowhere to go; it is refused all the same, because a data archive that holds one is not the archive
it claims to be. Sizes are capped before anything is decompressed in full.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, cast

from reticent.errors import DataError

MEMBER_LIMIT = 512 * 2**20  # the largest real member is a 293 MiB table of word vectors
TOTAL_LIMIT = 2 * 2**30
COUNT_LIMIT = 200_000  # the largest real archive holds about 100,000 reviews
_GZIP_MAGIC = b"\x1f\x8b"
_BROKEN = (tarfile.TarError, EOFError, zlib.error, OSError, UnicodeError, OverflowError)


@dataclass(frozen=True)
class Blob:
    """The bytes of one file and the name to use for it in messages."""

    name: str
    data: bytes


def read_file(path: Path, limit: int = MEMBER_LIMIT) -> Blob:
    """Read a loose file of at most `limit` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if len(data) > limit:
        raise DataError(f"{path}: expected at most {limit} bytes, found more")
    return Blob(str(path), data)


def unzip(blob: Blob, limit: int) -> Blob:
    """Undo gzip where the bytes are gzipped; at most `limit` bytes may come out."""
    if not blob.data.startswith(_GZIP_MAGIC):
        return blob
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(blob.data)) as file:
            data = file.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{blob.name}: expected a complete gzip file, found {error}") from error
    if len(data) > limit:
        raise DataError(f"{blob.name}: expected {limit} bytes at most once unzipped, found more")
    return Blob(blob.name, data)


def read_tar(path: Path, wanted: Callable[[str], str | None]) -> dict[str, Blob]:
    """Read the members for which `wanted(member name)` gives a key, under those keys.

    Every member is inspected, wanted or not: absolute paths, `..`, links, devices, sparse files
    and oversized members are refused with the archive and the member named.
    """
    found: dict[str, Blob] = {}
    try:
        with path.open("rb") as raw:
            zipped = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            # gzip.GzipFile and not tarfile's own stream mode, which skips the CRC at the end
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if zipped else raw)
            with tarfile.open(fileobj=stream, mode="r|", errors="strict") as archive:
                total = 0
                for count, member in enumerate(archive):
                    total += member.size
                    _inspect(path, member, count, total)
                    key = wanted(member.name) if member.isreg() else None
                    if key is None:
                        continue
                    if key in found:
                        raise DataError(f"{path}: expected one {key}, found {member.name} as well")
                    found[key] = _read_member(path, archive, member)
            _drain(path, stream, TOTAL_LIMIT - min(total, TOTAL_LIMIT))
    except DataError:
        raise
    except _BROKEN as error:
        raise DataError(f"{path}: expected a complete tar archive, found {error}") from error
    return found


def _inspect(path: Path, member: tarfile.TarInfo, count: int, total: int) -> None:
    where = PurePosixPath(member.name)
    if where.is_absolute() or ".." in where.parts or "\\" in member.name:
        raise DataError(f"{path}: member {member.name!r} points outside the archive; refused")
    if not (member.isdir() or member.type in (tarfile.REGTYPE, tarfile.AREGTYPE)):
        raise DataError(
            f"{path}: member {member.name!r} is a link, device or special file; "
            "expected only plain files and folders"
        )
    if member.size > MEMBER_LIMIT or total > TOTAL_LIMIT or count >= COUNT_LIMIT:
        raise DataError(
            f"{path}: member {member.name!r} takes the archive past what is read "
            f"({MEMBER_LIMIT} bytes a member, {TOTAL_LIMIT} in all, {COUNT_LIMIT} members)"
        )


def _read_member(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Blob:
    file = archive.extractfile(member)
    data = file.read() if file is not None else b""
    if len(data) != member.size:
        raise DataError(
            f"{path}: member {member.name!r} should hold {member.size} bytes, found {len(data)}"
        )
    return Blob(f"{path}!{member.name}", data)


def _drain(path: Path, stream: IO[bytes], limit: int) -> None:
    """Read to the end, so that gzip compares its checksum with what came out."""
    while chunk := stream.read(2**20):
        limit -= len(chunk)
        if limit < 0:
            raise DataError(f"{path}: expected the archive to end, found more than {TOTAL_LIMIT}")
