"""How long what was not run would take, from measured steps."""

from __future__ import annotations

import importlib

import pytest

from reticent.reproduction.tables import load


def timed(method, milliseconds, **settings):
    return {
        "settings": {"model": "wrn-16-4", "method": method, "method_options": {}, **settings},
        "measures": {"milliseconds": {"mean": milliseconds}},
    }


@pytest.fixture
def waiting(bench):
    return importlib.import_module("reproduction_waiting")


def test_hours_by_hand(waiting):
    table = load("pdsgd/table3")  # 1 target and 8 shadow models; 100,000 steps of 7 batches
    deniable = timed("pd-sgd", 36.0, batch=256, method_options={"batches": 7})
    private = timed("dpsgd", 9.0, batch=4096)  # 1000, 2000 and 2000 steps
    times = {"settings": {}, "machines": [{"accelerator": "a GPU"}], "entries": [deniable]}
    hours, count, machine = waiting.waiting_hours(table, {waiting.TIMES: times})
    assert (hours, count, machine) == (pytest.approx(2 * 9 * 1.0), 2, "a GPU")
    both = {**times, "entries": [deniable, private]}
    hours, count, _ = waiting.waiting_hours(table, {waiting.TIMES: both})
    assert (hours, count) == (pytest.approx(18 + 9 * 5000 * 9e-3 / 3600), 5)
    # what was run does not wait
    place = ("row", "data", "column", "variant")
    (first,) = (vars(one) for one in table.entries() if "setting 1" in one.row)
    ran = {"entries": [{name: first[name] for name in place}]}
    hours, count, _ = waiting.waiting_hours(table, {waiting.TIMES: times, table.id: ran})
    assert (hours, count) == (pytest.approx(9.0), 1)


def test_other_batches_and_models_are_not_estimated(waiting):
    table = load("pdsgd/table3")
    for other in (
        timed("pd-sgd", 36.0, batch=256, method_options={"batches": 8}),
        timed("dpsgd", 9.0, batch=512),
        timed("dpsgd", 9.0, batch=4096, model="wrn-28-2"),
    ):
        times = {"settings": {}, "machines": [{"processor": "one"}], "entries": [other]}
        assert waiting.waiting_hours(table, {waiting.TIMES: times})[:2] == (0.0, 0)
    assert waiting.waiting_hours(table, {}) == (0.0, 0, "")
    assert waiting.waiting_hours(load(waiting.TIMES), {waiting.TIMES: {}}) == (0.0, 0, "")
