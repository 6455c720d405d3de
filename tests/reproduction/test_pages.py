"""Pages of the published tables, and the frontier, say what the records say."""

from __future__ import annotations

import importlib
import json

from reticent.reproduction.jobs import Outcome, job_of
from reticent.reproduction.tables import load


def made_up(table, values, seeds=(0, 1)):
    """Outcomes of entries on Fashion-MNIST, by row, variant and column."""
    outcomes = {}
    for entry in table.entries(data=["fashion-mnist"]):
        value = values.get((entry.row, entry.variant, entry.column))
        for seed in seeds if value is not None else ():
            key = job_of(table, entry, seed).key
            proved = None if entry.variant == "published" else 0.99991
            outcomes[key] = Outcome(
                key,
                values={"accuracy": value + 0.2 * seed},
                claimed_epsilon=1.0,
                sound_epsilon=proved,
                seconds=30.0,
                steps=1,
                made={"versions": {"torch": "2.13"}, "processor": "P", "accelerator": None},
            )
    return outcomes


def test_the_page_compares_with_what_was_published(bench, tables):
    table = load("dpsur/table2")
    values = {
        ("DPSUR", "published", 1): 88.0,  # published: 88.38
        ("DPSUR", "published", 2): 85.0,  # 89.34
        ("DPSUR", "sound", 1): 80.0,
        ("DPSGD-HF", "sound", 1): 86.44,  # 85.54: exactly one point above with the second seed
    }
    record = bench.compact(table, made_up(table, values), [0, 1])
    text = tables.page([json.loads(json.dumps(record)), {"what": "steps"}])
    assert "| DPSUR (published) | 1 | 88.10 ± 0.14 | 2 | 88.38 | -0.28 | yes | 1 | none |" in text
    assert "| DPSUR (published) | 2 | 85.10 ± 0.14 | 2 | 89.34 | -4.24 | no | 1 | none |" in text
    assert "| DPSUR (sound) | 1 | 80.10 ± 0.14 | 2 | 88.38 | -8.28 | no | 1 | 1.0000 |" in text
    assert "| DPSGD-HF | 1 | 86.54 ± 0.14 | 2 | 85.54 | +1.00 | yes | 1 | 1.0000 |" in text
    summary = next(line for line in text.splitlines() if line.startswith("| [dpsur/table2]"))
    # as published, where a row has variants: two are near, none above, one below
    assert summary.endswith("| 128 | 4 | 3 | 2 | 0 | 1 |")
    assert "- DPSUR: its published ε is not a bound: an accepted update costs more" in text
    assert "- Not run yet on CIFAR-10, or not wholly: DPSUR (published), DPSUR (repaired)" in text
    assert "4 minutes of trainings on P, PyTorch 2.13" in text
    assert "(#dpsur-table2)" in text
    assert "\n## dpsur table2\n" in text
    # one number was not reached; that of the sound variant is no claim to be reached
    assert "| FMNIST | DPSUR | 2: 85.10 (89.34) | 2 | no |" in text
    assert text.count("](#dpsur-table2) | FMNIST |") == 1
    # notes are the table's of today, as its settings are
    assert f"- {table.notes[0]}" in text
    assert "an old note" not in tables.page([{**record, "notes": ["an old note"]}])


def test_points_of_shares_and_of_what_has_none(tables):
    entry = {"measures": {name: {"published": 0.5, "mean": 0.509} for name in ("x.auc", "ratio")}}
    record = {"percent": []}
    assert tables.compared(record, entry, "x.auc").within is True
    assert tables.compared(record, entry, "ratio").within is None
    entry["measures"]["x.auc"]["mean"] = 0.511
    assert tables.compared(record, entry, "x.auc").within is False
    entry["measures"]["x.auc"]["published"] = None
    assert tables.compared(record, entry, "x.auc") is None


def test_without_records_the_page_says_what_is_missing(tables):
    text = tables.page([])
    assert "| dpsur/table2 | Fu et al. 2024" in text
    assert "ViT-B-16 (OpenCLIP, pre-trained on LAION-2B)" in text
    assert "## dpsur" not in text
    assert "## Not reached" not in text


def test_reproduced_runs_are_on_the_frontier(bench, monkeypatch):
    points = importlib.import_module("frontier_points")
    table = load("dpsur/table2")
    values = {("DPSUR", "published", 1): 88.0, ("DPSGD-HF", "sound", 1): 86.0}
    record = json.loads(json.dumps(bench.compact(table, made_up(table, values), [0, 1])))
    (point,) = points.ours([record], "fashion-mnist")  # the other has no ε
    assert (point.what, point.mean, point.delta) == ("DPSGD-HF as in dpsur/table2", 86.1, 1e-5)
    assert not points.ours([record], "mnist")


def test_runs_that_several_tables_print_are_on_the_frontier_once(bench):
    points = importlib.import_module("frontier_points")
    found = []
    for name, wanted in (("dpis/table3", ("DPIS", 1)), ("dpis/table6", ("DPIS", 5.0))):
        table = load(name)
        values = {(wanted[0], "sound", wanted[1]): 86.0}
        found.append(json.loads(json.dumps(bench.compact(table, made_up(table, values), [0, 1]))))
    (point,) = points.ours(found, "fashion-mnist")
    assert point.what == "DPIS as in dpis/table3; also in dpis/table6 with k 5"
    (other,) = points.ours(found[1:], "fashion-mnist")
    assert other.what == "DPIS as in dpis/table6 with k 5"
    found[1]["entries"][0]["measures"]["accuracy"]["seeds"]["1"] += 0.5
    assert len(points.ours(found, "fashion-mnist")) == 2


def test_records_of_several_folders_are_joined(bench, tmp_path):
    merge = importlib.import_module("merge").merge
    table = load("dpsur/table2")
    name = bench.file_name(table, {})
    where = ("DPSGD-HF", "sound", 1)
    for folder, values, seed in (
        ("one", {where: 86.0, ("DPSGD-HF", "sound", 2): 88.0}, 0),
        ("two", {where: 87.0}, 1),
        ("kept", {("DPSGD-TS", "sound", 3): 80.0}, 0),
    ):
        record = bench.compact(table, made_up(table, values), [seed])
        record["entries"][0]["failed"] = {"7": "out of memory"}
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(json.dumps(record))
    changed = json.loads((tmp_path / "two" / name).read_text())
    changed["entries"][0]["settings"]["lr"] = 123.0  # no longer the table's
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / name).write_text(json.dumps(changed))
    folders = [tmp_path / folder for folder in ("one", "two", "three")]
    assert merge(folders, tmp_path / "kept") == [name]
    joined = json.loads((tmp_path / "kept" / name).read_text())
    found = {(one["row"], one["column"]): one for one in joined["entries"]}
    assert set(found) == {("DPSGD-HF", 1), ("DPSGD-HF", 2), ("DPSGD-TS", 3)}
    seeds = found["DPSGD-HF", 1]["measures"]["accuracy"]["seeds"]
    assert set(seeds) == {"0", "1"}
    assert not any(one["failed"] for one in joined["entries"])
