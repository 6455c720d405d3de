"""Checkpoints: all that is needed to go on, the key of the coins included."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch

from reticent.errors import CheckpointError
from reticent.files import write_atomically

CHECKPOINT = "checkpoint.secret.pt"
CHECKPOINT_FORMAT = "reticent-checkpoint/1"


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
