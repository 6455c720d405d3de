"""Records hold runs of the tables' own settings; all others are set aside, with the reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reticent.reproduction.tables import parse

from .small import SMALL

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
RESULTS = BENCHMARKS / "results"
RECORD = "reproduce-small.json"


def read(folder):
    return json.loads((folder / RECORD).read_text())


@pytest.mark.parametrize("path", sorted(RESULTS.glob("reproduce-*.json")), ids=lambda p: p.stem)
def test_records_are_of_the_settings_that_tables_have(path, merging):
    """Else the documents would show numbers that the command no longer gives."""
    assert not merging.outdated(json.loads(path.read_text(encoding="utf-8")))


def test_runs_of_settings_that_were_given_up_are_set_aside(
    bench, merging, small_file, tmp_path, monkeypatch
):
    asked = bench.asked_of([small_file], rows=["DPSGD", "SGD"])
    bench.measure(asked, tmp_path, device="cpu")
    before = read(tmp_path)
    table = parse(SMALL, before["table"], small_file)
    monkeypatch.setattr(merging, "load", lambda name: table)
    assert merging.set_aside("no reason", tmp_path) == 0
    assert read(tmp_path) == before
    other = parse(SMALL.replace("[6.0, 3.0]", "[6.0, 4.0]"), before["table"], small_file)
    monkeypatch.setattr(merging, "load", lambda name: other)
    assert merging.set_aside("a better rate", tmp_path) == 1
    after = read(tmp_path)
    assert len(after["entries"]) == len(before["entries"]) - 1
    (group,) = json.loads((tmp_path / "set-aside.json").read_text())["groups"]
    (run,) = group["runs"]
    (gone,) = (line for line in before["entries"] if line not in after["entries"])
    assert group["why"] == "a better rate"
    assert run["measures"]["accuracy"]["seeds"] == gone["measures"]["accuracy"]["seeds"]
    assert (run["row"], run["column"]) == ("DPSGD", gone["column"])
    assert run["settings"]["noise"] == 3.0
    assert (run["runs"][0]["steps"], run["runs"][0]["machine"]) == (
        gone["runs"][0]["steps"],
        before["machines"][0],
    )
    assert merging.set_aside("again", tmp_path) == 0


def test_nothing_leaves_the_records_before_it_is_kept(
    bench, merging, small_file, tmp_path, monkeypatch
):
    bench.measure(bench.asked_of([small_file], rows=["DPSGD"]), tmp_path, device="cpu")
    before = read(tmp_path)
    other = parse(SMALL.replace("[6.0, 3.0]", "[6.0, 4.0]"), before["table"], small_file)
    monkeypatch.setattr(merging, "load", lambda name: other)
    (tmp_path / "set-aside.json").write_text("broken")
    with pytest.raises(ValueError, match="Expecting value"):
        merging.set_aside("a better rate", tmp_path)
    assert read(tmp_path) == before
