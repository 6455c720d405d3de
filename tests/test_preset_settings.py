"""Settings that papers leave open: the presets have what was chosen on held-out records."""

import importlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from reticent.cli.settings import resolve
from reticent.reproduction.tables import load

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RECORD = json.loads((BENCHMARKS / "results" / "preset-settings.json").read_text())


def searched_entry(search):
    """One of the entries that are searched."""
    (entry,) = (
        entry
        for _, entry in search.searched(["dpis/table3"])
        if (entry.row, entry.data, entry.column) == ("DP-SGD-TS", "cifar10", 1)
    )
    return entry


@pytest.fixture
def search(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("preset_settings")


@pytest.mark.parametrize("row", RECORD["rows"], ids=lambda row: f"{row['row']} {row['data']}")
def test_presets_have_the_chosen_settings(row, search):
    (entry,) = (
        entry
        for entry in load(row["table"]).entries()
        if (entry.row, entry.data, entry.column) == (row["row"], row["data"], row["column"])
    )
    assert search.changed(entry.settings, row["chosen"]) == entry.settings
    assert row["start"] == entry.settings.model_options.get("start", "torch")
    tried = [{k: v for k, v in one.items() if k != "accuracies"} for one in row["tried"]]
    assert row["chosen"] == search.best(tried, [one["accuracies"] for one in row["tried"]])


def test_every_searched_row_has_candidates_that_settings_take(search):
    found = list(search.searched())
    assert {name for name, _ in found} == set(search.SEARCHED)
    for _, entry in found:
        for candidate in search.candidates(entry.settings):
            assert search.changed(entry.settings, candidate) != replace(entry.settings, seed=99)


def test_candidates_are_compared_on_records_that_are_not_trained_on(search, monkeypatch):
    seen = {}

    def train_many(models, data, **options):
        seen["trained"] = data
        return [type("Result", (), {"model": model}) for model in models]

    class HeldOut:
        def __init__(self, data, device):
            seen["held out"] = data

        def __call__(self, model):
            return {"accuracy": 0.5}

    monkeypatch.setattr(search, "train_many", train_many)
    monkeypatch.setattr(search, "HeldOut", HeldOut)
    settings = resolve(
        None, {"data": "digits", "method": "sign-sgd", "epsilon": 2.0, "epochs": 1.0}
    )
    found = search.accuracies(settings, [{"lr": 0.1}, {"lr": 0.2}], 300, "cpu", seeds=3)
    assert found == [[50.0] * 3] * 2
    inputs = [*seen["trained"][0], *seen["held out"][0]]
    assert len(seen["held out"][1]) == 300
    from reticent import data

    train = data.load("digits").train[0]
    assert len(inputs) == len(train)
    assert all(bool((one == other).all()) for one, other in zip(inputs, train, strict=True))


def test_a_rate_that_moves_nothing_loses(search):
    settings = resolve(
        None,
        {
            "data": "digits",
            "method": "sign-sgd",
            "epsilon": 8.0,
            "epochs": 2.0,
            "batch": 400,
            "model": "linear",
        },
    )
    tried = [{"lr": 1e-7}, {"lr": 0.01}]
    found = search.accuracies(settings, tried, 300, "cpu", seeds=1)
    assert search.best(tried, found) == {"lr": 0.01}


def test_a_candidate_that_the_budget_does_not_afford_is_not_trained(search, monkeypatch):
    trained = []

    def train_many(models, data, **options):
        trained.extend(options["method"])
        return [type("Result", (), {"model": model}) for model in models]

    monkeypatch.setattr(search, "train_many", train_many)
    settings = resolve(
        None, {"data": "digits", "method": "dpagd", "epsilon": 1.0, "epochs": 20.0, "lr": 1.0}
    )
    tried = [{"method_options": {"choice_epsilon": epsilon}} for epsilon in (0.01, 50.0)]
    found = search.accuracies(settings, tried, 300, "cpu", seeds=2)
    assert [len(one) for one in found] == [2, 0]
    assert [method.choice_epsilon for method in trained] == [0.01, 0.01]
    assert search.best(tried, [[0.0, 0.0], []]) == tried[0]
    assert search.accuracies(settings, tried[1:], 300, "cpu", seeds=2) == [[]]


def test_a_search_that_was_cut_off_goes_on(search, tmp_path):
    entry = searched_entry(search)
    first, record = search.Search("dpis/table3", entry), search.Record(tmp_path)
    count = len(first.tried)
    assert first.parts(2)[0] == [0, 1]
    record.remember(first.take([0, 1], ([[40.0], [60.0]], 8.0)))
    assert first.row() is None
    with (tmp_path / "preset-settings.jsonl").open("a") as file:
        file.write('{"table": "dpis/ta')  # killed while it wrote

    later = search.Search("dpis/table3", entry)
    later.recall(search.Record(tmp_path).tried(), seeds=1)
    assert later.parts(0) == [list(range(2, count))]
    record.remember(later.take(range(2, count), ([[50.0]] * (count - 2), 6.0)))
    row = later.row()
    assert row["chosen"] == first.tried[1]
    assert row["seconds"] == pytest.approx(14.0, abs=0.5)
    record.finish(row)
    record.finish(row)
    kept = json.loads((tmp_path / "preset-settings.json").read_text())
    assert [one["column"] for one in kept["rows"]] == [1]
    assert kept["replaced"] == []  # the same search, finished again
    search.Record(tmp_path).finish({**row, "tried": row["tried"][:2]})
    kept = json.loads((tmp_path / "preset-settings.json").read_text())
    assert [len(one["tried"]) for one in kept["rows"]] == [2]
    assert kept["replaced"] == [json.loads(json.dumps(row))]

    for other in (
        search.Search("dpis/table3", entry, "bf16"),  # another precision
        search.Search("dpsur/table2", entry),
    ):
        other.recall(record.tried(), seeds=1)
        assert other.parts(0) == [list(range(count))]
    more = search.Search("dpis/table3", entry)
    more.recall(record.tried(), seeds=3)  # with more seeds it begins anew
    assert more.row() is None


def test_what_a_finished_search_has_measured_is_not_measured_again(search, monkeypatch):
    entry = searched_entry(search)
    settings = entry.settings
    fixed = {"batch": settings.batch, "lr": settings.lr}
    counts = (settings.epochs, 2.0 * settings.epochs, 3.0 * settings.epochs)
    monkeypatch.setattr(
        search, "candidates", lambda _: [{**fixed, "epochs": count} for count in counts]
    )
    first = search.Search("dpis/table3", entry)
    count = len(first.tried)
    # an earlier search varied the epochs alone, and had one number that is no candidate now
    tried = [
        {"epochs": settings.epochs, "accuracies": [50.0]},
        {"epochs": 1.5, "accuracies": [9.0]},
    ]
    row = {**first.place, "tried": tried, "precision": None, "seconds": 10.0}
    first.reuse([row], seeds=1)
    known = {"batch": settings.batch, "lr": settings.lr, "epochs": settings.epochs}
    (place,) = (k for k, one in enumerate(first.tried) if one == known)
    assert first.parts(0) == [[k for k in range(count) if k != place]]
    first.take(first.parts(0)[0], ([[40.0]] * (count - 1), 6.0))
    found = first.row()
    assert found["chosen"] == known
    assert found["seconds"] == pytest.approx(11.0)
    assert found["tried"][place]["accuracies"] == [50.0]

    for other in (
        {**row, "precision": "bf16"},
        {**row, "column": 3},
        {**row, "start": "torch"},
        {**row, "held_out": 5},
        {**row, "tried": [{**tried[0], "accuracies": [50.0, 50.0]}]},  # with other seeds
        {**row, "tried": [{**tried[0], "lr": 3.0}]},
    ):
        again = search.Search("dpis/table3", entry)
        again.reuse([other], seeds=1)
        assert again.parts(0) == [list(range(count))]
