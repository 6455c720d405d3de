"""How long what was not run would take, from measured steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from reticent.reproduction.tables import load

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


def timed(method, milliseconds, **settings):
    return {
        "settings": {"model": "wrn-16-4", "method": method, "method_options": {}, **settings},
        "measures": {"milliseconds": {"mean": milliseconds}},
    }


def test_hours_by_hand(tables):
    table = load("pdsgd/table3")  # 1 target and 8 shadow models; 100,000 steps of 7 batches
    deniable = timed("pd-sgd", 36.0, batch=256, method_options={"batches": 7})
    private = timed("dpsgd", 9.0, batch=4096)  # 1000, 2000 and 2000 steps
    times = {"settings": {}, "machines": [{"accelerator": "a GPU"}], "entries": [deniable]}
    hours, count, machine = tables.waiting_hours(table, {tables.TIMES: times})
    assert (hours, count, machine) == (pytest.approx(2 * 9 * 1.0), 2, "a GPU")
    both = {**times, "entries": [deniable, private]}
    hours, count, _ = tables.waiting_hours(table, {tables.TIMES: both})
    assert (hours, count) == (pytest.approx(18 + 9 * 5000 * 9e-3 / 3600), 5)
    # what was run does not wait
    place = ("row", "data", "column", "variant")
    (first,) = (vars(one) for one in table.entries() if "setting 1" in one.row)
    ran = {"entries": [{name: first[name] for name in place}]}
    hours, count, _ = tables.waiting_hours(table, {tables.TIMES: times, table.id: ran})
    assert (hours, count) == (pytest.approx(9.0), 1)


def test_other_batches_and_models_are_not_estimated(tables):
    table = load("pdsgd/table3")
    for other in (
        timed("pd-sgd", 36.0, batch=256, method_options={"batches": 8}),
        timed("dpsgd", 9.0, batch=512),
        timed("dpsgd", 9.0, batch=4096, model="wrn-28-2"),
    ):
        times = {"settings": {}, "machines": [{"processor": "one"}], "entries": [other]}
        assert tables.waiting_hours(table, {tables.TIMES: times})[:2] == (0.0, 0)
    assert tables.waiting_hours(table, {}) == (0.0, 0, "")
    assert tables.waiting_hours(load(tables.TIMES), {tables.TIMES: {}}) == (0.0, 0, "")
