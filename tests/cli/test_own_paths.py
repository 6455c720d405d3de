"""Where one's own data are: kept for whoever holds them, found again, told to nobody else."""

from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from reticent.cli.own_data import RECORDS_FILE, hidden_paths, located, published
from reticent.report.folder import read_folder
from reticent.training.checkpoint import CHECKPOINT

from .calling import call, refuse
from .own_files import write_people, write_pictures
from .test_own_data import STATED, crash

QUICK = ("--device", "cpu", "--quiet", "--steps", 2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ann").mkdir()
    monkeypatch.chdir(tmp_path / "ann")
    return tmp_path / "ann"


def test_no_file_that_may_be_passed_on_names_a_folder(here: Path) -> None:
    write_people(here / "people.csv")
    write_people(here / "later.csv", 40)
    call("train", "--data", here / "people.csv", "--test", "later.csv", *STATED, *QUICK)
    run = here / "runs" / "people-dpsgd"
    for path in run.iterdir():
        assert (str(here).encode() in path.read_bytes()) == (path.name == RECORDS_FILE), path.name
    assert stat.S_IMODE((run / RECORDS_FILE).stat().st_mode) == 0o600
    for name in ("run.json", "settings.json"):
        kept = json.loads((run / name).read_text())
        settings = kept["config"]["settings"] if name == "run.json" else kept
        assert (settings["data"], settings["data_options"]["test"]) == ("people.csv", "later.csv")
    assert "nothing found" in call("audit", run, "--attacks", "none", "--canaries", 0)


def test_records_that_have_moved_are_found_beside_the_command_or_asked_for(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_people(here / "people.csv")
    crash("train", "--data", "people.csv", *STATED, "--out", "run", "--device", "cpu")
    (here / "run" / CHECKPOINT).touch()  # as later on
    moved = here.parent / "bob"
    shutil.move(here, moved)
    monkeypatch.chdir(here.parent)
    said = refuse("train", "--resume", moved / "run")
    assert f"were read from '{here / 'people.csv'}', which is not there now" in said
    (here.parent / "people.csv").write_text(
        (moved / "people.csv").read_text().replace("Oslo", "Rome", 1)
    )
    assert "the records have changed" in refuse("train", "--resume", moved / "run")
    (moved / "run" / RECORDS_FILE).unlink()
    assert "says where the records of this run are" in refuse("train", "--resume", moved / "run")


def test_the_last_name_is_enough_where_the_file_lies_beside_the_command(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_people(here / "people.csv")
    call("train", "--data", "people.csv", *STATED, *QUICK, "--out", "run")
    moved = shutil.move(here, here.parent / "bob")
    monkeypatch.chdir(moved)
    assert "nothing found" in call("audit", "run", "--attacks", "none", "--canaries", 0)


def test_a_folder_called_like_a_data_set_stays_a_folder(here: Path) -> None:
    pictures = write_pictures(here / "digits")
    words = ("--data", "./digits", "--classes", "across,down", "--features", "scattering")
    call("train", *words, *QUICK, "--out", "run")
    settings = json.loads((here / "run" / "settings.json").read_text())
    assert settings["data"] == "./digits"
    assert located(here / "run", "./digits", {})[0] == str(pictures)
    report = (here / "run" / "report.html").read_text()
    assert "dpsgd on digits<" in report
    assert "licence of the data" not in report  # that of the data set of this name
    assert read_folder(here / "run").data == "digits"


def test_what_was_typed_comes_back(here: Path) -> None:
    options = {"target": str(here / "labels.npy"), "test": str(here / "t.csv"), "side": 9}
    data, shown = published(str(here / "x.npy"), options)
    assert (data, shown) == ("x.npy", {"target": "labels.npy", "test": "t.csv", "side": 9})
    for name in ("x.npy", "labels.npy", "t.csv"):
        (here / name).touch()
    held = {"paths": hidden_paths(str(here / "x.npy"), options)}
    (here / RECORDS_FILE).write_text(json.dumps(held))
    assert located(here, data, shown) == (str(here / "x.npy"), options)
    assert published("digits", {}) == ("digits", {})
    assert hidden_paths("digits", {}) == {}
    old = (str(here / "x.npy"), options)  # of a run before paths were kept apart
    assert located(here / "nowhere", *old) == old


@pytest.mark.parametrize("kept", [True, False])
def test_counts_by_class_are_kept_unless_that_is_declined(here: Path, kept: bool) -> None:
    write_people(here / "people.csv")
    words = () if kept else ("--no-confusion",)
    call("train", "--data", "people.csv", *STATED, *QUICK, *words, "--out", "run")
    run = json.loads((here / "run" / "run.json").read_text())
    assert ("held_out" in run) == kept
    assert run["config"]["settings"]["confusion"] == kept
    assert run["metrics"][-1]["accuracy"] > 0.4
    report = (here / "run" / "report.html").read_text()
    assert ("What is taken for what" in report) == kept
    assert ("Results by class were not kept" in report) != kept


def test_a_report_says_what_became_of_the_columns(here: Path) -> None:
    write_people(here / "people.csv")
    call("train", "--data", "people.csv", *STATED, *QUICK, "--n", 250, "--out", "run")
    for name in ("report.html", "MODEL_CARD.md"):
        text = (here / "run" / name).read_text()
        for said in ("how it became numbers", "0..120 to", "hashed into 64 signed counts"):
            assert said in text, (name, said)
    told = json.loads((here / "run" / "run.json").read_text())["config"]["records"]
    assert told["form"] == "table"
    assert [line[0] for line in told["columns"]] == ["age", "income", "city", "note"]
    assert not any(char.isdigit() for char in "".join(told["columns"][2][:2]))
