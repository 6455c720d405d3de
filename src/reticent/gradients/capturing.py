"""A function of tensors as a CUDA graph: recorded once for each shape, then replayed.

Small models spend more time on telling the device what to do than on doing it. A graph is told
once; a replay is one call. Its memory is fixed: inputs are copied to where it reads them, outputs
are copied from where it writes them.
"""

from __future__ import annotations

import gc
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reticent.errors import ReticentError

# Poisson batches come in a few sizes; older graphs make room for newer ones.
MOST_GRAPHS = 16
# Libraries prepare themselves on first calls, which must not be recorded.
WARM_UPS = 2


_ALL: weakref.WeakSet[Captured] = weakref.WeakSet()


@contextmanager
def _never_waiting() -> Iterator[None]:
    """An error where the host asks for a value: that cannot be recorded."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Another graph that happens to be cleared away would spoil the recording."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _renew_generator(device: torch.device) -> None:
    """A recording that failed leaves the device's generator waiting for its end.

    It gets a new state; graphs recorded earlier still hold the old one and must be recorded again.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    generator.graphsafe_set_state(generator.clone_state())
    for captured in _ALL:
        captured._graphs.clear()


@dataclass(frozen=True, eq=False)
class _Graph:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    outputs: list[Tensor]


class Captured:
    """`function(*tensors)`, a tuple of tensors, replayed from graphs where that is possible.

    The function must compute the same thing every time: from the tensors given, from memory that
    stays where it is (parameters), and from the default generator of the device. Whatever else it
    depends on belongs into the `key` of the call.
    """

    def __init__(self, function: Callable[..., Sequence[Tensor]]) -> None:
        self.function = function
        #: why graphs are not used, where they are not
        self.reason = ""
        self._graphs: OrderedDict[Hashable, _Graph] = OrderedDict()
        self._rooms: dict[Hashable, Tensor] = {}
        self._side: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._recording = False
        _ALL.add(self)

    def __call__(self, *tensors: Tensor, key: Hashable = ()) -> list[Tensor]:
        """What the function returns for these tensors; the results are the caller's own."""
        device = tensors[0].device
        if self.reason or device.type != "cuda":
            return list(self.function(*tensors))
        shapes = tuple((t.shape, t.dtype, t.device) for t in tensors)
        found = self._graphs.get((key, shapes))
        if found is None:
            found = self._recorded(tensors, device)
            if found is None:
                return list(self.function(*tensors))
            self._graphs[key, shapes] = found
            if len(self._graphs) > MOST_GRAPHS:
                self._graphs.popitem(last=False)
        else:
            self._graphs.move_to_end((key, shapes))
        for room, tensor in zip(found.inputs, tensors, strict=True):
            room.copy_(tensor, non_blocking=True)
        found.graph.replay()
        return [output.clone() for output in found.outputs]

    def _recorded(self, tensors: Sequence[Tensor], device: torch.device) -> _Graph | None:
        """A new graph; None where there can be none, and then none is tried again.

        The function is called only after this has returned: an error keeps all that was computed
        before it in memory, and often it was memory that was missing.
        """
        state = torch.cuda.get_rng_state(device)
        try:
            return self._capture(tensors, device)
        except ReticentError:
            raise
        except Exception as error:  # whatever a model does that a graph cannot
            self.give_up(f"it cannot be recorded as a CUDA graph ({error})")
            torch.cuda.synchronize(device)
            if self._recording:
                _renew_generator(device)
            self._recording = False
            return None
        finally:
            torch.cuda.set_rng_state(state, device)

    def give_up(self, reason: str) -> None:
        """Call the function itself from now on."""
        self.reason = reason
        self._graphs.clear()
        self._rooms.clear()

    def _capture(self, tensors: Sequence[Tensor], device: torch.device) -> _Graph:
        inputs = [self._room(number, tensor) for number, tensor in enumerate(tensors)]
        for room, tensor in zip(inputs, tensors, strict=True):
            room.copy_(tensor)
        if self._side is None:
            self._side, self._pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        side = self._side
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS - 1):
                self.function(*inputs)
            with _never_waiting():  # or the recording would fail, which leaves a mess
                results: Sequence[Tensor] = self.function(*inputs)
            outputs = [result.clone() for result in results]
            del results
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._recording = True
        # the same stream: libraries keep work space for each. Another thread may be copying records
        chosen = torch.cuda.graph(graph, self._pool, side, capture_error_mode="thread_local")
        with _no_collection(), chosen:
            for output, result in zip(outputs, self.function(*inputs), strict=True):
                output.copy_(result)
        self._recording = False
        return _Graph(graph, inputs, outputs)

    def _room(self, number: int, like: Tensor) -> Tensor:
        """Where graphs read an input; smaller batches read the beginning of the same memory."""
        if like.ndim == 0:
            place: Hashable = (number, like.dtype)
        else:
            place = (number, like.dtype, like.shape[1:])
        held = self._rooms.get(place)
        if held is None or (like.ndim and len(held) < len(like)):
            held = self._rooms[place] = torch.empty_like(
                like, memory_format=torch.contiguous_format
            )
        return held[: len(like)] if like.ndim else held
