"""Both directions of a recurrent layer at the same time, each in a thread of its own, on the CPU.

They have nothing to do with each other before their outputs are joined, and a step of one is too
little work for PyTorch to share among threads: one loop over both leaves all cores idle but one.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# Numbers in a state: with fewer, handing over costs more than it saves; with more (PyTorch gives a
# thread at least 32,768), one loop occupies the threads by itself.
LEAST, MOST = 2**11, 2**16

_pools: dict[int, ThreadPoolExecutor] = {}
_guard = threading.Lock()


def pays(h: Tensor) -> bool:
    """Whether to take the directions of these states [D, B, H] apart."""
    if h.device.type != "cpu" or len(h) != 2 or torch.get_num_threads() < 2:
        return False
    return LEAST <= h.numel() < MOST


def each(function: Callable[[int], T]) -> list[T]:
    """`function(0)` and `function(1)`, at the same time."""

    def one(direction: int) -> T:
        with torch.no_grad():  # a thread begins with gradients on
            return function(direction)

    return list(_pool().map(one, range(2)))


def interleaved(found: Sequence[Sequence[T]]) -> list[T]:
    """What each direction has several of: the first of all, then the second of all."""
    return [one for several in zip(*found, strict=True) for one in several]


def _pool() -> ThreadPoolExecutor:
    """Two threads that compute alone; a process that was forked off has none of its parent's."""
    with _guard:
        pool = _pools.get(os.getpid())
        if pool is None:
            _pools.clear()
            threads = torch.get_num_threads()
            pool = ThreadPoolExecutor(2, "reticent", torch.set_num_threads, (1,))
            ready = threading.Barrier(2)
            list(pool.map(lambda _: ready.wait(), range(2)))
            torch.set_num_threads(threads)  # or threads to come would begin with one
            _pools[os.getpid()] = pool
        return pool
