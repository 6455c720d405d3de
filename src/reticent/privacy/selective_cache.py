"""Results of the recursion on the disk: seconds of work in a few kilobytes each.

A file is used only if its name, its stated key and its checksum agree; anything else is computed
anew. A folder that cannot be written to costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from reticent.files import replacing

ENVIRONMENT = "RETICENT_CACHE"
FORMAT = 5  # raised whenever the same key comes to mean other numbers

Profiles = tuple[tuple[np.ndarray, np.ndarray, float], tuple[np.ndarray, np.ndarray, float]]


def folder() -> Path:
    """$RETICENT_CACHE, else the user's cache folder."""
    if os.environ.get(ENVIRONMENT):
        return Path(os.environ[ENVIRONMENT]).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "reticent" / "accounting"


def load_or(key: tuple[object, ...], compute: Callable[[], Profiles]) -> Profiles:
    """What is kept under the key, or what `compute` gives, which is then kept."""
    found = _load(key)
    if found is None:
        found = compute()
        store(key, found)
    return found


def store(key: tuple[object, ...], profiles: Profiles) -> None:
    """Keep the profiles under this key."""
    _write(key, [np.concatenate([[lost], r, h]) for r, h, lost in profiles])


def load_count(key: tuple[object, ...]) -> int | None:
    """A number of releases kept under the key, or None."""
    found = _read(key, 1)
    return None if found is None else int(found[0][0])


def store_count(key: tuple[object, ...], count: int) -> None:
    """Keep a number of releases under this key."""
    _write(key, [np.array([float(count)])])


def _load(key: tuple[object, ...]) -> Profiles | None:
    found = _read(key, 2)
    if found is None:
        return None
    profiles = []
    for values in found:
        half = (len(values) - 1) // 2
        profiles.append((values[1 : half + 1], values[half + 1 :], float(values[0])))
    return profiles[0], profiles[1]


def _write(key: tuple[object, ...], arrays: list[np.ndarray]) -> None:
    body = io.BytesIO()
    np.save(body, np.frombuffer(_stated(key), dtype=np.uint8))
    for array in arrays:
        np.save(body, array)
    content = body.getvalue()
    try:
        with replacing(_path(key)) as file:
            file.write(hashlib.blake2b(content).digest() + content)
    except OSError:
        pass  # computed again next time


def _read(key: tuple[object, ...], count: int) -> list[np.ndarray] | None:
    try:
        content = _path(key).read_bytes()
    except OSError:
        return None
    digest, body = content[:64], content[64:]
    if hashlib.blake2b(body).digest() != digest:
        return None
    stream = io.BytesIO(body)
    if np.load(stream, allow_pickle=False).tobytes() != _stated(key):
        return None
    return [np.load(stream, allow_pickle=False) for _ in range(count)]


def _stated(key: tuple[object, ...]) -> bytes:
    return json.dumps([FORMAT, *key]).encode()


def _path(key: tuple[object, ...]) -> Path:
    return folder() / f"selection_{hashlib.blake2b(_stated(key), digest_size=12).hexdigest()}.bin"
