"""Copies between host and device that the host does not wait for.

Only pinned host memory can be copied while the host goes on. PyTorch keeps what was pinned once and
hands it out again when the copies from it are done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map


class Landing:
    """Tensors on their way to the host; `wait` for what was enqueued before them, and no more."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self._event: torch.cuda.Event | None = None
        if tensors[0].device.type != "cuda":
            self._tensors = [tensor.cpu() for tensor in tensors]
            return
        self._tensors = [pinned(tensor.shape, tensor.dtype) for tensor in tensors]
        for here, there in zip(self._tensors, tensors, strict=True):
            here.copy_(there, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record(torch.cuda.current_stream(tensors[0].device))

    def wait(self) -> list[torch.Tensor]:
        """The tensors, on the host."""
        if self._event is not None:
            self._event.synchronize()
        return self._tensors


def pinned(shape: torch.Size | tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Room on the host from or to which CUDA copies without anybody waiting."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


class Sender:
    """Brings batches from the host to a device: at once, or early and beside the present work."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: torch.cuda.Stream | None = None

    def send(self, batch: Any) -> Any:
        """The batch on the device, for work that is enqueued after this call."""
        return tree_map(self._moved, batch)

    def send_early(self, batch: Any) -> Callable[[], Any]:
        """Begin to copy, from any thread; the function that comes back hands the batch over."""
        if self.device.type != "cuda":
            moved = self.send(batch)
            return lambda: moved
        with torch.cuda.device(self.device):
            if self._stream is None:
                self._stream = torch.cuda.Stream(self.device)
            with torch.cuda.stream(self._stream):
                moved = self.send(batch)
                copied = torch.cuda.Event()
                copied.record(self._stream)

        def hand_over() -> Any:
            user = torch.cuda.current_stream(self.device)
            user.wait_event(copied)
            for leaf in tree_flatten(moved)[0]:
                if isinstance(leaf, torch.Tensor):
                    leaf.record_stream(user)  # its memory is not free before the user is done
            return moved

        return hand_over

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.device == self.device:
            return value
        if self.device.type == "cuda" and value.device.type == "cpu" and not value.is_pinned():
            value = pinned(value.shape, value.dtype).copy_(value)
        return value.to(self.device, non_blocking=True)


def free_memory(device: torch.device) -> int:
    """Bytes of a CUDA device that PyTorch could still hand out; no more than this process's share.

    The share is that of `torch.cuda.set_per_process_memory_fraction`.
    """
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    own = int(torch.cuda.memory.get_per_process_memory_fraction(device.index) * total) - reserved
    return max(min(free, own), 0) + reserved - torch.cuda.memory_allocated(device)
