"""One batch ahead: fetched in a thread while the present one is worked on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

# what a thread fetched: for which indices, and the function that hands it over
_Fetched = tuple[torch.Tensor, Callable[[], Any]]


class OneAhead:
    """Holds at most one batch that somebody expected to be asked for.

    A batch is a function of its indices, so an expectation that comes true gives what a fetch
    gives, and one that does not costs only the work. An error in the thread is no error: whoever
    really asks meets it himself.

    Args:
        fetch: From indices, on the host, to a batch; in the thread of whoever asks.
        fetch_early: The same from the other thread, as a function that hands the batch over.
    """

    def __init__(
        self,
        fetch: Callable[[torch.Tensor], Any],
        fetch_early: Callable[[torch.Tensor], Callable[[], Any]],
    ) -> None:
        self._fetch, self._fetch_early = fetch, fetch_early
        self._pool: ThreadPoolExecutor | None = None
        self._pending: Future[_Fetched | None] | None = None

    def expect(self, indices: Callable[[], torch.Tensor | None]) -> None:
        """Begin to fetch what `indices`, called in the thread, gives; None is nothing.

        It takes the place of what was expected before.
        """
        if self._pending is not None:
            self._pending.cancel()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="reticent-records")
        self._pending = self._pool.submit(self._work, indices)

    def _work(self, indices: Callable[[], torch.Tensor | None]) -> _Fetched | None:
        wanted = indices()
        return None if wanted is None else (wanted, self._fetch_early(wanted))

    def fetch(self, indices: torch.Tensor) -> Any:
        """The batch of these indices: the expected one if it is that, else fetched now."""
        pending = self._pending
        if pending is not None and not pending.cancelled():
            try:
                found = pending.result()
            except Exception:  # raised again below if it was no accident
                found, self._pending = None, None
            if found is not None and torch.equal(found[0], indices):
                self._pending = None
                return found[1]()
        return self._fetch(indices)
