"""What a model or a loss says when it cannot take records, with what would work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from reticent.errors import ModelError, ReticentError
from reticent.gradients.batches import tensors


@contextmanager
def explained(what: str, hint: str = "") -> Iterator[None]:
    """Whatever goes wrong inside becomes a `ModelError` that says what did, and the hint.

    Not a shortage of memory, which is no fault of model or records: others know what to do then.
    """
    try:
        yield
    except ReticentError:
        raise
    except Exception as error:
        if ran_out(error):
            raise
        kind = "" if type(error) is RuntimeError else f"{type(error).__name__}: "
        raise ModelError(f"{what}: {kind}{error}{hint and f'; {hint}'}") from error


def ran_out(error: BaseException) -> bool:
    """Whether memory was what was missing, on a device or on the host."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)


def shape_of(value: Any) -> str:
    """Shape and type of one example."""
    if isinstance(value, torch.Tensor):
        return f"{tuple(value.shape[1:])} ({str(value.dtype).removeprefix('torch.')})"
    return type(value).__name__


def other_precision(model: nn.Module, inputs: Any) -> str:
    """What to do where the records are of another type than the model computes in."""
    own = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    if own is None or all(leaf.dtype == own for leaf in tensors(inputs)):
        return ""
    computes = f"the model computes in {str(own).removeprefix('torch.')}"
    to = "float" if own == torch.float32 else str(own).removeprefix("torch.")
    if any(leaf.is_floating_point() and leaf.dtype != own for leaf in tensors(inputs)):
        return f"{computes}: give it records of that type, by .to({own}), or bring it to theirs"
    return f"{computes}: whole numbers and truth values as its inputs need .{to}()"
