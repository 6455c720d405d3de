"""How far a comparison is, and how long it will still take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from reticent.reproduction.jobs import Outcome
from reticent.reproduction.running import ENDED, GOING, KEPT, STARTED, Event


class Outlook:
    """Follows the events of `run_jobs`.

    A job is taken to last as long as those of its kind did; one of an unknown kind, as long as all
    did on average; the one under way, as long as its steps so far suggest.

    Args:
        kinds: Of every job, by key, which others take as long.
        workers: How many run side by side.
        clock: Seconds.
    """

    def __init__(
        self,
        kinds: Mapping[str, str],
        workers: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kinds, self._workers, self._clock = dict(kinds), workers, clock
        self._lasted: dict[str, list[float]] = {}
        self._begun: dict[str, float] = {}
        self.outcomes: dict[str, Outcome] = {}
        self.going: dict[str, tuple[int, int]] = {}

    def tell(self, event: Event) -> None:
        """Take note of an event."""
        if event.what == STARTED:
            self._begun[event.key] = self._clock()
            self.going[event.key] = (0, 0)
        elif event.what == GOING:
            self.going[event.key] = (event.done, event.total)
        elif event.what in (KEPT, ENDED) and event.outcome is not None:
            self.outcomes[event.key] = event.outcome
            self.going.pop(event.key, None)
            begun = self._begun.pop(event.key, None)
            if begun is not None and event.outcome.state == "done":
                lasted = self._clock() - begun
                self._lasted.setdefault(self._kinds[event.key], []).append(lasted)

    @property
    def left(self) -> int:
        """How many jobs have no outcome."""
        return len(self._kinds) - len(self.outcomes)

    def seconds_left(self) -> float | None:
        """How long it will still take; None while nothing is known."""
        now = self._clock()
        # copies: a display asks from another thread
        lasted = {kind: statistics.fmean(times) for kind, times in list(self._lasted.items())}
        for key, (done, total) in list(self.going.items()):
            if done and total:
                guess = (now - self._begun.get(key, now)) * total / done
                lasted.setdefault(self._kinds[key], guess)
        if not lasted:
            return None
        usual = statistics.fmean(lasted.values())
        seconds = 0.0
        for key, kind in self._kinds.items():
            if key in self.outcomes:
                continue
            spent = now - self._begun.get(key, now)
            seconds += max(lasted.get(kind, usual) - spent, 0.0)
        return seconds / max(min(self._workers, self.left), 1)


def duration(seconds: float | None) -> str:
    """Seconds for people.

    >>> duration(8.2), duration(75), duration(7300), duration(None)
    ('8 s', '1 min 15 s', '2 h 1 min', 'not known yet')
    """
    if seconds is None:
        return "not known yet"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"
