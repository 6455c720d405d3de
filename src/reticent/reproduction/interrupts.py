"""Ctrl-C ends a training after the release under way, with a checkpoint; a second one, at once."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from reticent.training import Training

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """What SIGINT and SIGTERM do while this is open; nothing changes outside the main thread."""

    def __init__(self) -> None:
        self._training: Training | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupts:
        try:
            self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        except ValueError:  # not in the main thread
            self._before = {}
        return self

    def __exit__(self, *about: object) -> None:
        self._restore()

    @contextmanager
    def watching(self, training: Training) -> Iterator[None]:
        """While a training runs, a signal stops it gently."""
        self._training = training
        try:
            yield
        finally:
            self._training = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._restore()
        if self._training is None:
            raise KeyboardInterrupt
        self._training.stop()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before = {}
