"""Fetching one file over HTTP: resumed where it stopped, checked before it gets its name.

A download grows in `<name>.part`. Only a complete file whose checksum agrees is renamed, so
whatever carries the real name is whole.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from reticent.errors import DataError

Progress = Callable[[int, int | None], None]

SIZE_LIMIT = 2 * 2**30
_CHUNK = 2**18
_BUSY = frozenset({408, 429, 500, 502, 503, 504})


class _Retry(Exception):
    """The transfer stopped in a way that another attempt may cure."""


def download(
    url: str,
    path: Path,
    *,
    md5: str | None = None,
    sha256: str | None = None,
    progress: Progress | None = None,
    timeout: float = 30.0,
    attempts: int = 3,
    pause: float = 1.0,
) -> Path:
    """Fetch `url` into `path`, continuing an earlier attempt if there is one.

    Raises `DataError` when the address cannot be reached, answers with an error, or delivers a
    file whose checksum differs; a file with the wrong checksum is deleted, not kept.
    """
    if not url.startswith(("http://", "https://")):
        raise DataError(f"{url}: expected an http or https address")
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    trouble = ""
    for attempt in range(attempts):
        if attempt:
            time.sleep(pause * attempt)
        resumed = part.exists() and part.stat().st_size > 0
        try:
            _transfer(url, part, progress, timeout)
        except _Retry as error:
            trouble = str(error)
            continue
        trouble = checksum_trouble(part, md5=md5, sha256=sha256)
        if not trouble:
            part.replace(path)
            return path
        part.unlink()
        if not resumed:
            break  # a fresh copy that differs will differ again
    raise DataError(f"{url}: {trouble}")


def checksum_trouble(path: Path, *, md5: str | None = None, sha256: str | None = None) -> str:
    """What is wrong with the file's checksums; empty when nothing is."""
    for kind, expected in (("md5", md5), ("sha256", sha256)):
        if expected is None:
            continue
        digest = hashlib.new(kind, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(2**20):
                digest.update(chunk)
        if digest.hexdigest() != expected:
            return f"expected {kind} {expected}, found {digest.hexdigest()}; the file was deleted"
    return ""


def _transfer(url: str, part: Path, progress: Progress | None, timeout: float) -> None:
    """One attempt: append to `part` until the whole file is there."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "reticent"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as response:
            if response.status == 206 and not _continues(response, start):
                part.unlink(missing_ok=True)
                raise _Retry("the server continued from another place than was asked")
            if response.status != 206:
                start = 0  # the server sent the whole file
            length = response.headers.get("Content-Length")
            total = start + int(length) if length and length.isdigit() else None
            done = _append(response, part, start, total, progress)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing left to send: the old part is of no use
            part.unlink(missing_ok=True)
            raise _Retry("the server could not continue the earlier download") from error
        if error.code in _BUSY:
            raise _Retry(f"the server answered {error.code} {error.reason}") from error
        raise DataError(f"{url}: the server answered {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        if isinstance(error.reason, socket.gaierror):  # no such name, or no network at all
            raise DataError(f"{url}: cannot be reached ({error.reason})") from error
        raise _Retry(f"cannot be reached ({error.reason})") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Retry(f"the transfer broke off ({error})") from error
    if total is not None and done != total:
        raise _Retry(f"expected {total} bytes, found {done}")


def _continues(response: http.client.HTTPResponse, start: int) -> bool:
    return response.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _append(
    response: http.client.HTTPResponse,
    part: Path,
    start: int,
    total: int | None,
    progress: Progress | None,
) -> int:
    done = start
    with part.open("ab" if start else "wb") as file:
        while chunk := response.read(_CHUNK):
            done += len(chunk)
            if done > SIZE_LIMIT:
                raise DataError(f"{part}: expected at most {SIZE_LIMIT} bytes, found more")
            file.write(chunk)
            if progress is not None:
                progress(done, total)
    return done
