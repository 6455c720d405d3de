"""The report: numbers against hand-made outcomes, and Markdown that says what the JSON says."""

from __future__ import annotations

import json
import re
import statistics

import pytest
import torch

from reticent import features
from reticent.reproduction.drawing import draw
from reticent.reproduction.jobs import Outcome, job_of
from reticent.reproduction.listing import describe
from reticent.reproduction.reports import cell_text, epsilon_pair, markdown, report, write_report
from reticent.reproduction.running import run_jobs
from reticent.reproduction.tables import parse

from .small import ATTACKS, SMALL

ACCURACIES = {0: 90.25, 1: 91.75, 2: 92.0}


def table():
    return parse(SMALL, "small", "small.toml")


def outcomes(found, seeds=(0, 1, 2)):
    """Of all entries but DPIS at ε = 3; one of them failed for one seed."""
    made = {}
    for entry in found.entries():
        for seed in seeds:
            key = job_of(found, entry, seed).key
            if (entry.row, entry.column) == ("DPIS", 3):
                continue
            if (entry.row, entry.column, seed) == ("DPIS", 1, 2):
                made[key] = Outcome(key, "failed", error="diverged")
                continue
            private = entry.row != "SGD"
            made[key] = Outcome(
                key,
                values={"accuracy": ACCURACIES[seed]},
                claimed_epsilon=entry.settings.epsilon if private else None,
                sound_epsilon=0.991 + 0.001 * seed if private else None,
                seconds=1.0,
                steps=6,
            )
    return made


def small_report():
    found = table()
    return report(found, found.entries(), outcomes(found), seeds=[0, 1, 2])


def test_means_and_deviations():
    entries = small_report()["entries"]
    first = entries[0]["measures"]["accuracy"]
    assert first["mean"] == pytest.approx(statistics.mean(ACCURACIES.values()))
    assert first["deviation"] == pytest.approx(statistics.stdev(ACCURACIES.values()))
    assert first["seeds"] == {"0": 90.25, "1": 91.75, "2": 92.0}
    assert (first["published"], first["published_deviation"]) == (91.0, 0.5)
    assert entries[0]["sound_epsilon"] == 0.993  # the largest, which holds for all
    assert entries[0]["claimed_epsilon"] == 1.0
    assert entries[2]["seeds"] == [0, 1]
    assert entries[2]["failed"] == {"2": "diverged"}
    assert entries[3]["measures"]["accuracy"]["mean"] is None
    assert (entries[4]["sound_epsilon"], entries[4]["claimed_epsilon"]) == (None, None)
    assert "epsilon" in entries[0]["settings"]
    assert "epsilon" not in entries[4]["settings"]  # SGD has none


def test_texts_of_a_cell():
    entries = small_report()["entries"]
    assert cell_text(entries[0], "accuracy") == "91.33 ± 0.95 (91.00)"
    assert cell_text(entries[2], "accuracy") == "91.00 ± 1.06"
    assert cell_text(entries[3], "accuracy") == "– (92.00)"
    assert epsilon_pair(entries[0]) == "1.00 / 1.00"  # rounded up
    assert epsilon_pair(entries[4]) == "–"
    leaking = {**entries[0], "sound_epsilon": None}
    assert epsilon_pair(leaking) == "1.00 / none"


def test_the_markdown_says_what_the_json_says(tmp_path):
    found = small_report()
    write_report(found, tmp_path)
    read = json.loads((tmp_path / "table.json").read_text())
    assert read == json.loads(json.dumps(found))
    text = (tmp_path / "table.md").read_text()
    assert text == markdown(read)
    rows = [line for line in text.splitlines() if line.startswith("| DPSGD |")]
    cells = [cell.strip() for cell in rows[0].split("|")[2:-1]]
    for cell, entry in zip(cells, read["entries"][:2], strict=True):
        mean, deviation, published = map(float, re.findall(r"[\d.]+", cell))
        numbers = entry["measures"]["accuracy"]
        assert mean == pytest.approx(numbers["mean"], abs=0.005)
        assert deviation == pytest.approx(numbers["deviation"], abs=0.005)
        assert published == numbers["published"]
    assert "| accuracy, % | ε = 1 | ε = 3 |" in text
    assert "- DPIS: sums cost more." in text
    assert "DPIS on digits, 1, seed 2: diverged" in text
    assert "Seeds of an entry: 2 to 3; the paper averages 5." in text
    assert "- Made up." in text


def test_a_single_value_stands_in_every_column():
    text = markdown(small_report())
    assert "| SGD | 91.33 ± 0.95 (99.00) | 91.33 ± 0.95 (99.00) |" in text


def test_changes_are_said():
    found = table()
    changed = report(found, found.entries(), outcomes(found), seeds=[0], changes={"lr": 0.25})
    assert all(entry["seeds"] == [] for entry in changed["entries"])  # other jobs
    assert "Changed for all entries: lr = 0.25." in markdown(changed)


def test_data_that_cannot_be_run_is_listed():
    text = SMALL.replace('title = "Digits"\nmodel', 'missing = "an encoder"\nmodel')
    found = parse(text, "small", "small.toml")
    made = report(found, found.entries(), {}, seeds=[0])
    assert "Not run: an encoder" in markdown(made)
    assert "– (91.00)" in markdown(made)


def test_a_file_that_only_the_user_can_bring_is_asked_for(tmp_path):
    """Listed as wanting, run by the same command where it is there, and no failure."""
    text = SMALL.replace(
        'title = "Digits"\nmodel',
        'title = "Digits"\nfeatures = "image-encoder"\n'
        f'feature_options = {{ encoder = "{tmp_path}/e.pt2", inputs = "half", length = 9.0 }}\n'
        'bring = "Export it in three lines"\nmodel',
    )
    found = parse(text, "small", "small.toml")
    assert {entry.missing for entry in found.entries()} == {None}
    assert describe(found)["data"] == {"digits": "needs a file of yours"}
    jobs = [job_of(found, entry, 0) for entry in found.entries()]
    done = run_jobs(jobs, tmp_path / "out", device="cpu")
    assert {outcome.state for outcome in done.values()} == {"missing"}
    made = report(found, found.entries(), done, seeds=[0])
    said = markdown(made)
    assert "e.pt2': there is no such file here" in said
    assert "Not run: Export it in three lines" in said
    assert "– (91.00)" in said
    assert "failed" not in said
    with torch.random.fork_rng(devices=[]):
        net = torch.nn.Sequential(torch.nn.Conv2d(3, 9, 3, 2), torch.nn.Flatten())
    features.export_encoder(net, tmp_path / "e.pt2", side=8)
    assert describe(found)["data"] == {"digits": "here"}
    (again,) = run_jobs(jobs[-1:], tmp_path / "out", device="cpu", root=str(tmp_path)).values()
    assert again.state == "done"
    assert again.values["accuracy"] > 30  # of ten classes
    # a job is of what the file holds, and says so: another network is another job
    key, (note,) = jobs[-1].key, again.notes
    assert jobs[-1].brought() in note
    assert str(tmp_path) not in json.dumps(jobs[-1].content())
    torch.nn.init.ones_(net[0].weight)
    features.export_encoder(net, tmp_path / "e.pt2", side=8)
    assert jobs[-1].key != key
    assert jobs[-1].brought() not in note


def test_shares_in_percent_where_the_paper_has_them():
    text = ATTACKS.replace("attacks =", 'percent = ["shadow.accuracy"]\nattacks =')
    found = parse(text, "attacks", "attacks.toml")
    entry = found.entries()[0]
    key = job_of(found, entry, 0).key
    values = {"accuracy": 90.0, "shadow.accuracy": 0.55, "best.auc": 0.5}
    outcome = Outcome(key, values=values, intervals={"shadow.accuracy": (0.5, 0.6)})
    numbers = report(found, [entry], {key: outcome}, seeds=[0])["entries"][0]["measures"]
    assert numbers["shadow.accuracy"]["mean"] == pytest.approx(55.0)
    assert numbers["shadow.accuracy"]["intervals"] == {"0": pytest.approx([50.0, 60.0])}
    assert numbers["accuracy"]["mean"] == 90.0
    assert numbers["best.auc"]["mean"] == 0.5


def test_the_figure_is_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib")
    found = small_report()
    for name in ("one.svg", "two.svg"):
        draw(found, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    text = (tmp_path / "one.svg").read_text()
    for word in ("DPSGD", "DPIS", "SGD", "Digits", "accuracy, %"):
        assert f">{word}<" in text
