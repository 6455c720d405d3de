"""How many records go through the model at once: what fits, measured on made-up inputs.

No record's value is read: what a piece of so many records takes depends on the model, the loss and
the records' shape alone.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from reticent import gradients
from reticent.data.records import Records
from reticent.data.transfer import free_memory
from reticent.errors import ReticentError
from reticent.methods.base import Method
from reticent.methods.dpsur import TOGETHER
from reticent.training.explaining import ran_out
from reticent.training.host_memory import available
from reticent.training.run import rounder

# The share of the free memory that a piece may take. On the host only tensors are counted: with the
# libraries' own scratch and the allocator's gaps, a small CNN took 1.6 times as much.
DEVICE_SHARE, HOST_SHARE = 0.8, 0.25
# Pieces of more records than this no longer gain on a CPU: they leave its caches.
MOST_ON_HOST = 512
# Larger tensors are slow on a CPU: what glibc's allocator takes from the system anew each time
# (32 MiB and more) comes as pages that have to be cleared first.
MOST_IN_A_TENSOR = 31 * 2**20
# For a method that does not say how many records it draws.
MOST_ON_DEVICE = 2048
# Pieces of more records than this no longer gain on a device.
MOST_AT_ONCE = 16_384
# On how many made-up records a piece is measured; a line through these gives the rest.
DEVICE_SIZES, HOST_SIZES = (8, 32, 128), (4, 16)

# What a release takes beside its pieces, for each parameter: the optimizer's vectors, an average,
# the sum, its noise and their total in double precision, a state to come back to.
BYTES_PER_PARAMETER = 64

Measure = Callable[[int], int]


class MemoryShortageError(ReticentError, MemoryError):
    """Not even the smallest piece fits, or a release needed more than there was."""


@dataclass(frozen=True)
class Piece:
    """How many records a piece has, and what so many made-up ones took; None: not measured."""

    microbatch: int
    bytes: int | None = None


def choose_microbatch(
    model: nn.Module,
    loss_fn: Any,
    records: Records,
    method: Method,
    device: torch.device,
    path: str = "auto",
) -> Piece:
    """The largest piece that fits, up to what the method asks for at once."""
    one = records.one()
    clipping = getattr(method, "clipping", 1.0)

    def work(size: int) -> None:
        inputs, targets = gradients.synthetic_like(*one, n=size)
        room = _another(inputs) if device.type == "cuda" else None  # where a graph reads them
        found = gradients.clipped_sum(model, loss_fn, inputs, targets, clipping, path=path)
        found.flat().double()
        del room

    kept = BYTES_PER_PARAMETER * sum(p.numel() for p in model.parameters() if p.requires_grad)
    with _untouched(model, device):
        if device.type == "cuda":
            limit = int(DEVICE_SHARE * free_memory(device)) - kept
            return _on_device(work, limit, method, device)
        free = available() if device.type == "cpu" else None
        return _on_host(work, None if free is None else int(HOST_SHARE * free) - kept)


def _another(inputs: Any) -> list[torch.Tensor]:
    return [
        torch.empty_like(leaf) for leaf in tree_flatten(inputs)[0] if isinstance(leaf, torch.Tensor)
    ]


def _on_device(
    work: Callable[[int], None], limit: int, method: Method, device: torch.device
) -> Piece:
    def measure(size: int) -> int:
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        try:
            work(size)
            return torch.cuda.max_memory_allocated(device) - before
        finally:
            torch.cuda.reset_peak_memory_stats(device)

    most, passes = asked_at_once(method)
    # a pass over several draws together takes up to 1.25 pieces for each of them
    all_at_once = most if passes == 1 else rounder(math.ceil(1.25 * passes * most))
    size, taken = largest(
        measure, limit, all_at_once, DEVICE_SIZES, down=_rounded_down, verify=True
    )
    torch.cuda.empty_cache()  # what was tried is not what will be used
    size = size if passes == 1 else max(int(size / (1.25 * passes)), 1)
    return Piece(min(_rounded_down(size), most), taken)


def asked_at_once(method: Method) -> tuple[int, int]:
    """How many records one draw has at most, but for one in 10^8, and draws in a pass (CUDA)."""
    batch = method.drawn
    if batch is None:
        return MOST_ON_DEVICE, 1
    together = getattr(method, "together", 1)
    most = min(rounder(math.ceil(batch + 6 * math.sqrt(batch))), MOST_AT_ONCE)
    return most, TOGETHER if together is None else together


def _rounded_down(size: int) -> int:
    """So that no piece is padded beyond it."""
    return size - size % (1 << max(size.bit_length() - 5, 0))


def _on_host(work: Callable[[int], None], limit: int | None) -> Piece:
    tallies: dict[int, Tally] = {}

    def measure(size: int) -> int:
        if size not in tallies:
            with Tally() as tally:
                work(size)
            tallies[size] = tally
        return tallies[size].peak

    try:
        size, taken = largest(measure, limit, MOST_ON_HOST, HOST_SIZES, down=_power_of_two)
        if (most := _power_of_two(_of_small_tensors(tallies))) < size:
            size = most
            peaks = {tried: tally.peak for tried, tally in tallies.items()}
            taken = peaks.get(size) or _line(peaks)(size)
    except MemoryShortageError:
        raise
    except Exception:  # the model was tried before: it is the counting that it does not stand
        return Piece(MOST_ON_HOST)
    return Piece(size, taken)


def _of_small_tensors(tallies: Mapping[int, Tally]) -> int:
    """How many records keep each tensor that grows with them within `MOST_IN_A_TENSOR`."""
    low, high = min(tallies), max(tallies)
    if low == high:  # which of them grow is not known
        return MOST_ON_HOST
    few = tallies[low].sizes
    growing = [
        size for size in tallies[high].sizes if size * low % high == 0 and size * low // high in few
    ]
    return max(MOST_IN_A_TENSOR * high // max(growing, default=1), 1)


def _power_of_two(size: int) -> int:
    return 1 << (size.bit_length() - 1)


def largest(
    measure: Measure,
    limit: int | None,
    most: int,
    sizes: Sequence[int],
    *,
    down: Callable[[int], int],
    verify: bool = False,
) -> tuple[int, int]:
    """The largest size up to `most` whose bytes stay within `limit`, and those bytes.

    They are taken from a line through the measurements at small `sizes`, which lies nowhere below
    them; `down` makes a size round. With `verify` the size is tried, and lowered until it fits.
    """
    found: dict[int, int] = {}
    for size in (1, *sizes):
        if size > most or (size == 1 and most >= min(sizes)):
            continue
        try:
            found[size] = _measured(measure, size)
        except MemoryShortageError:
            break
    if not found:
        found[1] = _measured(measure, 1)
    size = _within(found, limit, most)
    while True:
        if size == 0:
            size, verify = 1, True  # the line may lie too high
        size = down(size)
        if size not in found and not verify:
            return size, _line(found)(size)
        try:
            taken = found[size] if size in found else _measured(measure, size)
        except MemoryShortageError:
            if size == 1:
                raise
            size //= 2
            continue
        if limit is None or taken <= limit:
            return size, taken
        if size == 1:
            raise MemoryShortageError(
                f"microbatch = 1: one record alone takes {taken / 2**20:.0f} MiB, and there are "
                f"{max(limit, 0) / 2**20:.0f} MiB for it; free memory, or use a smaller model"
            )
        found[size] = taken
        size = _within(found, limit, size - 1)


def _line(found: dict[int, int]) -> Callable[[int], int]:
    """Bytes by size: a line along the measurements, nowhere below them."""
    low, high = min(found), max(found)
    slope = max((found[high] - found[low]) / (high - low), 0.0) if high > low else found[low] / low
    base = max(taken - slope * size for size, taken in found.items())
    return lambda size: math.ceil(base + slope * size)


def _within(found: dict[int, int], limit: int | None, most: int) -> int:
    """The largest size up to `most` where the line stays within the limit; 0 if none does."""
    line = _line(found)
    if limit is None or line(most) <= limit:
        return most
    low, high = 0, most  # the line rises: low fits, or is 0, and high does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if line(middle) <= limit else (low, middle)
    return low


def _measured(measure: Measure, size: int) -> int:
    try:
        return measure(size)
    except Exception as error:
        if not ran_out(error):
            raise
        raise MemoryShortageError(
            f"microbatch = {size}: does not fit into memory beside the model: {error}"
        ) from error


class Tally(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make while it is on.

    Attributes:
        peak: how many there were at most.
        sizes: how many single tensors have.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self.sizes: set[int] = set()
        self._live = 0
        self._alive: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_flatten(out)[0]:
            if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided:
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        """Tensors share storages; each is counted until its last tensor has gone."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._alive:
            return

        def gone(_: Any) -> None:
            del self._alive[key]
            self._live -= size

        self._alive[key] = weakref.ref(storage, gone)
        self.sizes.add(size)
        self._live += size
        self.peak = max(self.peak, self._live)


@contextmanager
def _untouched(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Leave the model, its gradients and the generators as they were."""
    generators = [torch.default_generator]
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        generators.append(torch.cuda.default_generators[index])
    before = [generator.get_state() for generator in generators]
    try:
        with gradients.isolating.as_found(model):
            yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)


def explain_shortage(error: BaseException, release: int, microbatch: int) -> MemoryShortageError:
    """What to do about a release that ran out of memory.

    It is not tried again with smaller pieces: some of its coins are used, and dropout masks belong
    to pieces, so it would be another release with the same noise.
    """
    return MemoryShortageError(
        f"microbatch = {microbatch}: release {release} ran out of memory. Begin again with a "
        "smaller one, or resume the run where more memory is free: a resumed run keeps its "
        "microbatch, since other pieces with the same coins would be another release with the same "
        f"noise. {error}"
    )


def peak_memory(device: torch.device) -> int | None:
    """The most that this process took: allocations on a CUDA device, resident memory on the host.

    Private: it depends on how many records were drawn.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(ImportError):  # not on Windows
        import resource
        import sys

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return None
