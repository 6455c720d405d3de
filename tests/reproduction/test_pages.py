"""Pages of the published tables, and the frontier, say what the records say."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from reticent.reproduction.jobs import Outcome, job_of
from reticent.reproduction.tables import load

RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"


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
    assert summary.endswith("| 157 | 4 | 3 | 2 | 0 | 1 | 0 |")
    assert " 3 numbers are compared, of 3 settings" in text
    assert "- DPSUR: its published ε is not a bound: an accepted update costs more" in text
    assert "- Not run yet on CIFAR-10, or not wholly: DPSUR (published), DPSUR (repaired)" in text
    assert "4 minutes of trainings on P, PyTorch 2.13" in text
    assert "(#dpsur-table2)" in text
    assert "\n## dpsur table2\n" in text
    # not reached: one number as published, and what is left of another within its ε
    assert "| FMNIST | DPSUR (published) | 2: 85.10 (89.34) | 2 | no |" in text
    assert "| FMNIST | DPSUR (sound) | 1: 80.10 (88.38) | 2 | no |" in text
    assert text.count("](#dpsur-table2) | FMNIST |") == 2
    assert "with the first 3" not in text
    # notes are the table's of today, as its settings are
    assert f"- {table.notes[0]}" in text
    assert "an old note" not in tables.page([{**record, "notes": ["an old note"]}])


def test_seeds_that_differ_too_much_decide_nothing(tables):
    record = {"percent": ["accuracy"]}

    def judged(mean, deviation, seeds=3):
        found = {"published": 70.0, "mean": mean, "deviation": deviation}
        found["seeds"] = {str(seed): mean for seed in range(seeds)}
        return tables.compared(record, {"measures": {"accuracy": found}}, "accuracy")

    assert not judged(70.5, None, seeds=1).unclear
    assert not judged(70.5, 1.7).unclear  # a standard error of 0.98
    assert judged(70.5, 1.8).unclear
    assert judged(66.0, 5.0).unclear  # 2.9 twice is more than the 3 points that are missing
    assert not judged(66.0, 2.5).unclear
    assert not judged(66.0, 5.0, seeds=12).unclear


def test_rows_with_more_seeds_say_what_the_first_gave(bench, tables):
    table = load("dpsur/table2")
    values = {("DPSGD-HF", "sound", 1): 84.0, ("DPSGD-HF", "sound", 2): 88.0}
    made = made_up(table, values, seeds=(0, 1, 2))
    made |= made_up(table, {("DPSGD-HF", "sound", 1): 86.0}, seeds=(5,))
    text = tables.page([json.loads(json.dumps(bench.compact(table, made, [0, 1, 2, 5])))])
    # 84.0, 84.2, 84.4 and 87.0
    assert "DPSGD-HF, 1: 84.20 with the first 3, 84.90 with all 4; printed 85.54." in text
    assert text.count("with the first 3") == 1


def test_attacks_have_an_interval_and_their_updates(tables):
    record = json.loads((RESULTS / "reproduce-dpsur-table4.json").read_text())
    text = tables.page([record])
    entry = next(e for e in record["entries"] if (e["row"], e["column"]) == ("DPSGD", 1))
    low, high = entry["measures"]["shadow.auc"]["intervals"]["0"]
    part = text.partition("shadow.auc")[2]
    assert f"| {low:.4f} to {high:.4f} | {entry['runs'][0]['steps']} |" in part
    assert "| 95 % of one seed | updates |" in part
    assert "| within 1 point |" not in part
    assert "- The attacked model had 16666 records." in text


def test_a_flaw_may_be_of_some_data_sets_only(tables):
    text = tables.page([json.loads((RESULTS / "reproduce-dpis-table3.json").read_text())])
    assert "- DP-SGD-HF on MNIST and CIFAR-10: its published ε is not a bound: in the" in text
    assert "- DPIS: its published ε is not a bound: noisy sums" in text


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
