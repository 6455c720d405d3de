"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from reticent.errors import OptionError


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o644) -> Iterator[IO[bytes]]:
    """A file that takes `path`'s name only once it is whole and on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
    with contextlib.suppress(OSError):  # some file systems do not sync folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write all or nothing; a folder that cannot be written to is named."""
    try:
        with replacing(path, mode) as file:
            file.write(content)
    except OSError as error:
        raise OptionError("folder", str(path.parent), f"cannot be written to: {error}") from error


def check_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot be written to, without making it."""
    if folder.is_symlink() and not folder.exists():
        raise OptionError(option, str(folder), "is a link that leads nowhere")
    present = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not present.is_dir():
        raise OptionError(option, str(folder), f"{str(present)!r} is not a folder")
    if not os.access(present, os.W_OK | os.X_OK):
        raise OptionError(option, str(folder), f"{str(present)!r} cannot be written to")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, which need not fit into memory."""
    hashed = hashlib.sha256()
    with path.open("rb") as file:
        for piece in iter(lambda: file.read(1 << 20), b""):
            hashed.update(piece)
    return hashed.hexdigest()


def to_json(data: Any) -> bytes:
    """JSON for people and machines; NaN and infinity are not JSON and are refused."""
    return (json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def read_json(path: Path) -> Any:
    """Read JSON; what is not JSON is a ValueError, however deeply it is nested."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply") from None
