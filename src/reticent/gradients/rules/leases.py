"""Memory on the CPU that a layer takes in every step and need not ask the system for each time.

What a step frees goes back to the system, which hands out the same pages again one by one, zeroed:
for a recurrent layer that takes as long as a third of its arithmetic. On a GPU PyTorch keeps freed
memory itself.
"""

from __future__ import annotations

import threading

import torch
from torch import Tensor

#: bytes kept for later, at most
KEPT = 2**28
SMALLEST = 2**20  # bytes; the system's own allocator keeps less than this

_spare: list[Tensor] = []  # the one used last at the end
_lock = threading.RLock()  # a lease may end while another begins, in the same thread


class Lease:
    """Memory in use until the lease is dropped; nobody may keep a tensor of it for longer."""

    def __init__(self) -> None:
        self._held: list[Tensor] = []

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        """Memory of this shape, of the type and device of `like`."""
        count = torch.Size(shape).numel()
        size = count * like.element_size()
        if like.device.type != "cpu" or size < SMALLEST:
            return like.new_empty(shape)
        whole = _spare_of(size)
        if whole is None:  # a quarter of a power of two: the next batch may be a little larger
            step = 2 ** max(size.bit_length() - 3, 0)
            whole = torch.empty(-(-size // step) * step, dtype=torch.uint8)
        self._held.append(whole)
        return whole[:size].view(like.dtype).view(shape)

    def __del__(self) -> None:
        with _lock:
            _spare.extend(self._held)
            while sum(len(whole) for whole in _spare) > KEPT:
                del _spare[0]


def taken_from(lease: Lease | None, like: Tensor, *shape: int) -> Tensor:
    """Memory of a lease, or where there is none, memory that one may keep."""
    return like.new_empty(shape) if lease is None else lease.empty(like, *shape)


def _spare_of(size: int) -> Tensor | None:
    """The memory used last that is large enough, and not twice as large."""
    with _lock:
        for place in reversed(range(len(_spare))):
            if size <= len(_spare[place]) < 2 * size:
                return _spare.pop(place)
    return None


def spare_bytes() -> int:
    """How much is kept for later."""
    with _lock:
        return sum(len(whole) for whole in _spare)


def forget() -> None:
    """Give what is kept back to the system."""
    with _lock:
        _spare.clear()
