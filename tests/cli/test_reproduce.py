"""`reticent reproduce` from words to files."""

from __future__ import annotations

import json
import stat

import pytest
from typer.testing import CliRunner

from reticent import figures
from reticent.cli import app
from reticent.errors import OptionError

from .calling import call, refuse

TABLE = """
paper = "Nobody 2026"
name = "Table 1"
title = "Digits"
axis = "epsilon"
columns = [1, 3]
measures = ["accuracy"]
[data.digits]
model = "mlp"
batch = 256
steps = 5
[data.fashion-mnist]
model = "mnist-cnn"
steps = 1
[[rows]]
name = "DPSGD"
[rows.on.digits]
each = { noise = [6.0, 3.0] }
published = [91.0, 96.0]
[rows.on.fashion-mnist]
published = [81.0, 86.0]
"""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TABLE)
    return path


def words(table, tmp_path, *more):
    return ("reproduce", table, "--device", "cpu", "--out", tmp_path / "out", *more)


def run(*given):
    return CliRunner().invoke(app, [str(word) for word in given])


def test_a_table_of_ones_own(table, tmp_path):
    shown = call(*words(table, tmp_path, "--data", "digits", "--seeds", 2))
    assert "Nobody 2026" in shown
    assert "ours (published); ε claimed / proved" in shown
    out = tmp_path / "out"
    names = {path.name for path in out.iterdir()} - {"table.svg"}  # that needs matplotlib
    assert names == {"jobs", "table.json", "table.md"}
    kept = list((out / "jobs").iterdir())
    assert len(kept) == 4
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in kept)
    found = json.loads((out / "table.json").read_text())
    assert [entry["data"] for entry in found["entries"]] == ["digits"] * 2 + ["fashion-mnist"] * 2
    assert found["entries"][0]["seeds"] == [0, 1]
    assert found["entries"][2]["seeds"] == []  # was not asked for
    before = {path: path.stat().st_mtime_ns for path in kept}
    again = json.loads(call(*words(table, tmp_path, "--data", "digits", "--json")))
    assert {path: path.stat().st_mtime_ns for path in kept} == before
    first = again["entries"][0]["measures"]["accuracy"]
    assert first["seeds"] == {"0": found["entries"][0]["measures"]["accuracy"]["seeds"]["0"]}
    # the file has all that is known, the answer what was asked for
    assert json.loads((out / "table.json").read_text()) == found


def test_a_narrow_call_adds_to_the_table(table, tmp_path):
    call(*words(table, tmp_path, "--data", "digits", "--epsilon", 3))
    call(*words(table, tmp_path, "--data", "digits", "--columns", 1, "--rows", "DPSGD"))
    found = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [entry["seeds"] for entry in found["entries"][:2]] == [[0], [0]]


def test_missing_data_is_said_once_and_the_rest_is_done(table, tmp_path):
    result = run(*words(table, tmp_path, "--root", tmp_path / "nothing"))
    assert result.exit_code == 1
    assert result.stderr.count("reticent data get fashion-mnist") == 1
    found = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [entry["seeds"] for entry in found["entries"]] == [[0], [0], [], []]


def test_a_data_set_that_cannot_be_run(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TABLE.replace("[data.digits]", '[data.digits]\nmissing = "an encoder"'))
    result = run(*words(path, tmp_path, "--data", "digits"))
    assert result.exit_code == 1
    assert "missing: digits: an encoder" in result.stderr


def test_a_failed_job_is_told(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(TABLE.replace("batch = 256", "batch = 2560"))
    result = run(*words(path, tmp_path, "--data", "digits", "--json"))
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert "batch" in found["entries"][0]["failed"]["0"]
    assert "2 failed" in result.stderr


def test_another_learning_rate_is_recorded(table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ("reproduce", table, "--device", "cpu", "--data", "digits", "--epsilon", 3)
    shown = json.loads(call(*given, "--lr", 0.25, "--json"))
    assert shown["changes"] == {"lr": 0.25}
    assert (tmp_path / "reproductions" / "mine-lr0.25" / "table.json").exists()
    plain = json.loads(call(*given, "--json"))
    assert plain["changes"] == {}
    assert (tmp_path / "reproductions" / "mine" / "table.json").exists()


def test_without_matplotlib_there_is_no_figure(table, tmp_path, monkeypatch):
    def gone(path):
        raise OptionError("plot", str(path), "needs matplotlib: pip install reticent[plots]")

    monkeypatch.setattr(figures, "_matplotlib", gone)
    shown = call(*words(table, tmp_path, "--data", "digits", "--epsilon", 3))
    assert "no figure: needs matplotlib" in shown
    assert not (tmp_path / "out" / "table.svg").exists()
    assert (tmp_path / "out" / "table.md").exists()


def test_ctrl_c_says_how_to_go_on(table, tmp_path, monkeypatch):
    from reticent.reproduction import running

    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "train_group", interrupted)
    result = run(*words(table, tmp_path, "--data", "digits"))
    assert result.exit_code != 0
    assert "the same command goes on" in result.stderr


def test_the_list(tmp_path):
    shown = json.loads(call("reproduce", "--list", "--root", tmp_path, "--json"))
    by_name = {line["table"]: line for line in shown}
    assert by_name["dpsur/table2"]["data"]["mnist"] == "absent"
    assert by_name["dpsur/table2"]["variants"] == ["published", "repaired", "sound"]
    assert "dpsur/table2" in call("reproduce")
    one = call("reproduce", "dpsur/table2", "--list")
    assert "DPSGD-HF" in one
    assert "note" in one


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--epsilon", 2), "epsilon = 2.0: is not in this table, which has 1, 3"),
        (("--columns", 2), "columns = '2'"),
        (("--columns", 1, "--epsilon", 1), "columns = '1'"),
        (("--rows", "DPIS"), "rows = 'DPIS'"),
        (("--data", "mnist"), "data = 'mnist'"),
        (("--variant", "published"), "variant = 'published'"),
        (("--seeds", 0), "seeds = 0"),
        (("--workers", 0), "workers = 0"),
    ],
)
def test_bad_input_is_named(table, tmp_path, more, says):
    assert says in refuse(*words(table, tmp_path, *more))
    assert not (tmp_path / "out").exists()


def test_epsilon_is_for_tables_with_columns_of_it(tmp_path):
    assert "columns of this table are lr" in refuse(
        "reproduce", "dpsur/figure9a", "--epsilon", 3, "--out", tmp_path / "out"
    )
