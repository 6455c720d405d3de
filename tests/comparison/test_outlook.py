"""How long it will still take."""

from __future__ import annotations

from reticent.comparison.outlook import Outlook
from reticent.reproduction.jobs import Outcome
from reticent.reproduction.running import Event

KINDS = {"a0": "a", "a1": "a", "b0": "b", "b1": "b"}


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_job_lasts_as_long_as_others_of_its_kind():
    clock = Clock()
    outlook = Outlook(KINDS, clock=clock)
    assert outlook.seconds_left() is None
    outlook.tell(Event("kept", "b1", outcome=Outcome("b1")))  # says nothing about time
    assert outlook.seconds_left() is None
    outlook.tell(Event("started", "a0"))
    clock.now = 10.0
    outlook.tell(Event("ended", "a0", outcome=Outcome("a0")))
    assert outlook.left == 2
    assert outlook.seconds_left() == 20.0  # a1 as a0, b0 as all
    outlook.tell(Event("started", "b0"))
    clock.now = 12.0
    outlook.tell(Event("going", "b0", done=1, total=15))
    assert outlook.going == {"b0": (1, 15)}
    assert outlook.seconds_left() == 10.0 + 28.0
    clock.now = 42.0
    outlook.tell(Event("ended", "b0", outcome=Outcome("b0")))
    assert outlook.going == {}
    assert outlook.seconds_left() == 10.0
    outlook.tell(Event("ended", "a1", outcome=Outcome("a1")))
    assert (outlook.left, outlook.seconds_left()) == (0, 0.0)


def test_what_failed_at_once_says_nothing_about_time():
    outlook = Outlook(KINDS, clock=Clock())
    outlook.tell(Event("started", "a0"))
    outlook.tell(Event("ended", "a0", outcome=Outcome("a0", "failed")))
    assert outlook.seconds_left() is None
    assert outlook.left == 3


def test_several_workers_share_the_rest():
    clock = Clock()
    outlook = Outlook(KINDS, workers=3, clock=clock)
    outlook.tell(Event("started", "a0"))
    clock.now = 6.0
    outlook.tell(Event("ended", "a0", outcome=Outcome("a0")))
    assert outlook.seconds_left() == 6.0  # three jobs of six seconds
    outlook.tell(Event("kept", "b1", outcome=Outcome("b1")))
    outlook.tell(Event("kept", "b0", outcome=Outcome("b0")))
    assert outlook.seconds_left() == 6.0  # one job cannot be shared
