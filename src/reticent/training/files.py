"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from reticent.errors import CheckpointError

CHECKPOINT = "checkpoint.secret.pt"
CHECKPOINT_FORMAT = "reticent-checkpoint/1"


def write_atomically(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write beside `path`, flush to disk, then rename: a reader sees the old file or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
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


def write_json(path: Path, data: Any) -> None:
    """Write JSON for people and machines; NaN and infinity are not JSON and are refused."""
    text = json.dumps(data, indent=2, allow_nan=False, ensure_ascii=False)
    write_atomically(path, (text + "\n").encode())


def write_checkpoint(folder: Path, data: dict[str, Any]) -> None:
    """Write the checkpoint, readable by its owner alone: it holds the coins' key."""
    buffer = io.BytesIO()
    torch.save({"format": CHECKPOINT_FORMAT, **data}, buffer)
    write_atomically(folder / CHECKPOINT, buffer.getvalue(), mode=0o600)


def read_checkpoint(folder: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code in it."""
    path = folder / CHECKPOINT
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CheckpointError(f"{str(folder)!r} has no checkpoint to resume from") from None
    except Exception as error:
        raise CheckpointError(
            f"checkpoint {str(path)!r} cannot be read ({type(error).__name__}): it is truncated or "
            "was not written by this library"
        ) from error
    if not isinstance(data, dict) or data.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(f"checkpoint {str(path)!r}: not in format {CHECKPOINT_FORMAT!r}")
    return data
