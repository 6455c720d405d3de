"""`reticent train --data FILE`, from the file to the ledger, and again on a resumed run."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from reticent.cli import app, main
from reticent.cli.own_data import load_own
from reticent.cli.preparing import RECORDS_FILE, STATISTICS_FILE
from reticent.cli.settings import resolve
from reticent.training import Training
from reticent.training.checkpoint import CHECKPOINT

from ..small_encoder import write_image_encoder
from .calling import call, refuse, runner
from .own_files import write_people, write_pictures, write_reviews
from .test_standardise import resume

STATED = (
    *("--target", "ill", "--classes", "no,yes", "--bounds", "age=0..120"),
    *("--bounds", "income=0..1000000", "--columns", "city:category", "--columns", "note:text:64"),
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))
    return tmp_path


def run_json(folder: Path | str) -> dict[str, Any]:
    return json.loads((Path(folder) / "run.json").read_text())


def train(*words: object) -> dict[str, Any]:
    """Train, and what was said; warnings go elsewhere."""
    shown = call("train", *words, "--device", "cpu", "--json")
    return json.loads(shown[shown.index("{") :])


def crash(*words: object) -> None:
    """A command that ends before its first release, as a killed one would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "finish", lambda *_, **__: 1 / 0)
        result = runner.invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, ZeroDivisionError), result.output


def test_a_mixed_table_is_learned_and_its_statistics_are_paid_for(here: Path) -> None:
    write_people(here / "people.csv", 3000)
    shown = train(
        "--data", "people.csv", "--target", "ill", "--columns", "note:text:64", "--coin-seed", 1
    )
    assert shown["accuracy"] > 0.9
    assert shown["epsilon"] <= 3
    run = run_json("runs/people-dpsgd")
    ledger = run["ledger"]
    assert [e["purpose"] for e in ledger["entries"]] == [
        "channel means",
        "channel variances",
        "training",
    ]
    assert ledger["entries"][0]["charge"]["rate"] == 1.0
    notes = " ".join(ledger["notes"])
    for said in ("list of classes was learned", "age, income, city hold", "private statistics"):
        assert said in notes
    settings = run["config"]["settings"]
    assert run["conduct"]["draws"][0]["rate"] == 1.0  # all records in every release
    assert settings["data"] == "people.csv"
    private = json.loads((here / "runs/people-dpsgd" / RECORDS_FILE).read_text())
    assert private["paths"] == {"data": str(here / "people.csv")}


def test_what_is_public_costs_nothing_and_is_not_noted(here: Path) -> None:
    write_people(here / "people.csv")
    shown = train("--data", "people.csv", *STATED, "--coin-seed", 1, "--out", "run")
    assert shown["accuracy"] > 0.9
    ledger = run_json("run")["ledger"]
    assert [entry["purpose"] for entry in ledger["entries"]] == ["training"]
    assert not any("learned" in note or "inferred" in note for note in ledger["notes"])
    assert any("numbers in the file and a public seed" in note for note in ledger["notes"])


def test_texts_are_learned(here: Path) -> None:
    write_reviews(here / "reviews.jsonl")
    shown = train("--data", "reviews.jsonl", "--target", "label", "--coin-seed", 1)
    assert shown["accuracy"] > 0.9


def test_pictures_are_learned_and_no_copies_kept(here: Path) -> None:
    write_pictures(here / "pictures")
    words = ("--data", "pictures", "--classes", "across,down", "--features", "scattering")
    shown = train(*words, "--epsilon", 8, "--coin-seed", 1, "--steps", 20)
    assert shown["epsilon"] <= 8
    assert not list(here.glob("home/**/*.npy"))
    assert run_json("runs/pictures-dpsgd")["config"]["settings"]["features"] == "scattering"


def test_pictures_are_read_as_large_as_an_encoder_takes_them(here: Path, monkeypatch) -> None:
    write_pictures(here / "pictures")
    write_image_encoder(here / "tiny.pt2", side=12)
    words = ("--data", "pictures", "--classes", "across,down", "--feature", "encoder=tiny.pt2")
    words = (*words, "--features", "image-encoder")
    shown = train(*words, "--epsilon", 8, "--coin-seed", 1, "--out", "runs/seen")
    assert shown["epsilon"] <= 8
    assert shown["accuracy"] > 0.9
    settings = run_json("runs/seen")["config"]["settings"]
    assert settings["data_options"]["side"] == 12
    call("predict", "runs/seen", "--data", "pictures", "--out", "seen.csv")
    assert len((here / "seen.csv").read_text().splitlines()) == 61
    # by that encoder alone, wherever it is now
    kept = (here / "tiny.pt2").read_bytes()
    again = ("predict", "runs/seen", "--data", "pictures", "--out", "again.csv")
    write_image_encoder(here / "tiny.pt2", side=12, rows=7)
    assert "made with other files than are named now" in refuse(*again)
    (here / "tiny.pt2").unlink()
    assert "there is no such file here" in refuse(*again)
    assert not (here / "again.csv").exists()
    (here / "encoders").mkdir()
    (here / "encoders" / "tiny.pt2").write_bytes(kept)
    monkeypatch.setenv("RETICENT_IMAGE_ENCODERS", str(here / "encoders"))
    call(*again)
    assert (here / "again.csv").read_text() == (here / "seen.csv").read_text()
    monkeypatch.delenv("RETICENT_IMAGE_ENCODERS")
    (here / "tiny.pt2").write_bytes(kept)
    train(*words, "--side", 9, "--steps", 1, "--out", "runs/small")
    assert run_json("runs/small")["config"]["settings"]["data_options"]["side"] == 9
    # a table has no images, and is told so
    write_people(here / "people.csv")
    table = ("--data", "people.csv", "--target", "ill", "--classes", "no,yes")
    said = refuse("train", *table, *words[4:])
    assert "takes images" in said
    assert "side" not in said


def test_an_encoder_that_is_not_there_is_missed_before_records_are_read(here: Path) -> None:
    write_pictures(here / "pictures")
    words = ("--data", "pictures", "--features", "image-encoder", "--feature", "encoder=none.pt2")
    assert "encoder = 'none.pt2': there is no such file" in refuse("train", *words)
    assert "name a file with an image encoder" in refuse("train", *words[:4])


def test_the_table_and_the_warning_are_shown_first(here: Path) -> None:
    write_people(here / "people.csv")
    shown = call(
        "train", "--data", "people.csv", "--target", "ill", "--steps", 2, "--device", "cpu"
    )
    table = shown.index("how it becomes")
    assert table < shown.index("releases of about")
    assert "charged" in shown
    assert "list of classes was learned" in shown


def test_statistics_that_are_mostly_noise_are_warned_of(here: Path) -> None:
    write_people(here / "people.csv")
    words = ("train", "--data", "people.csv", "--target", "ill", "--steps", 2, "--device", "cpu")
    said = call(*words, "--columns", "note:ignore", "--quiet", "--out", "one")
    assert "2 column(s) without bounds are mostly noise" in said
    said = call(*words, "--bounds", "0..1000000", "--quiet", "--out", "two")
    assert "mostly noise" not in said


def test_a_run_is_resumed_on_the_same_records_alone(here: Path, monkeypatch) -> None:
    path = write_people(here / "people.csv")
    words = ("train", "--data", "people.csv", "--target", "ill", "--device", "cpu", "--quiet")
    crash(*words, "--out", "run")
    assert (here / "run" / STATISTICS_FILE).exists()
    assert stat.S_IMODE((here / "run" / RECORDS_FILE).stat().st_mode) == 0o600
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    before = path.read_text()
    path.write_text(before.replace("coughs", "sneezes", 1))
    assert "the records have changed" in refuse("train", "--resume", here / "run", "--quiet")
    path.write_text(before)
    resume(here / "run")
    assert [e["count"] for e in run_json(here / "run")["ledger"]["entries"]] == [1, 1, 100]


def test_records_read_for_the_settings_are_not_taken_for_a_resumed_run(here: Path) -> None:
    path = write_people(here / "people.csv")
    settings = resolve(None, {"data": "people.csv", "data_options": {"target": "ill"}})
    path.write_text(path.read_text().replace(",no\n", ",yes\n", 1))
    labels = [
        load_own(settings.data, settings.data_options, fresh=fresh) for fresh in (True, False)
    ]
    counts = [int(splits.train[1].sum() + splits.test[1].sum()) for splits in labels]
    assert counts[0] == path.read_text().count(",yes\n") == counts[1]


def test_an_audit_finds_the_same_records_and_notices_others(here: Path) -> None:
    path = write_people(here / "people.csv")
    train("--data", "people.csv", *STATED, "--steps", 5, "--out", "run")
    audit = ("audit", "run", "--attacks", "none", "--canaries", 0, "--device", "cpu")
    assert "nothing found" in call(*audit)
    path.write_text(path.read_text().replace("Oslo", "Bonn", 1))
    assert "the records have changed" in refuse(*audit)


@pytest.mark.parametrize("method", ["dpsgd", "sgd"])
def test_an_audit_of_the_books_alone_looks_at_the_records_too(here: Path, method: str) -> None:
    path = write_people(here / "people.csv")
    train("--data", "people.csv", *STATED, "--steps", 5, "--method", method, "--out", "run")
    audit = ("audit", "run", "--attacks", "none", "--canaries", 0, "--device", "cpu")
    audit += ("--releases", 0) if method == "dpsgd" else ()
    assert "not compared" not in call(*audit)
    before = path.read_text()
    path.write_text(before.replace("Oslo", "Bonn", 1))
    kept = (here / "run" / "audit.json").read_bytes()
    assert "the records have changed" in refuse(*audit)
    assert (here / "run" / "audit.json").read_bytes() == kept
    path.unlink()  # as for somebody who was given the folder and not the records
    if method == "dpsgd":
        said = call(*audit)
        assert "the records were not compared" in said
        assert "nothing found" in said
    path.write_text(before)
    (here / "run" / RECORDS_FILE).unlink()
    if method == "dpsgd":
        assert "the records were not compared" in call(*audit)


def test_records_without_a_fingerprint_are_refused(here: Path) -> None:
    write_people(here / "people.csv")
    crash("train", "--data", "people.csv", *STATED, "--out", "run", "--device", "cpu")
    (here / "run" / CHECKPOINT).touch()  # as later on
    (here / "run" / RECORDS_FILE).unlink()
    settings = json.loads((here / "run" / "settings.json").read_text())
    settings["data"] = str(here / "people.csv")  # as runs of long ago named it
    (here / "run" / "settings.json").write_text(json.dumps(settings))
    assert "nobody can tell whether the records are those" in refuse("train", "--resume", "run")


def test_runs_with_the_same_coins_are_the_same(here: Path) -> None:
    write_people(here / "people.csv")
    for out in ("one", "two"):
        train("--data", "people.csv", *STATED, "--steps", 5, "--coin-seed", 7, "--out", out)
    weights = [(here / out / "model.safetensors").read_bytes() for out in ("one", "two")]
    assert weights[0] == weights[1]


def test_settings_of_a_file_and_flags_on_top(here: Path) -> None:
    write_people(here / "people.csv")
    (here / "mine.toml").write_text(
        'data = "people.csv"\nmodel = "mlp"\nsteps = 3\nstandardise = false\n'
        '[data_options]\ntarget = "city"\nclasses = ["no", "yes"]\n'
    )
    train("--config", "mine.toml", "--target", "ill", "--out", "run")
    settings = run_json("run")["config"]["settings"]
    assert settings["data_options"] == {"target": "ill", "classes": ["no", "yes"]}
    assert (settings["model"], settings["model_options"], settings["steps"]) == ("mlp", {}, 3)
    assert not settings["standardise"]
    assert [e["purpose"] for e in run_json("run")["ledger"]["entries"]] == ["training"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data", "people.csv"), "must be a column of"),
        (("--data", "people.csv", "--target", "sick"), "age, income, city, note, ill"),
        (("--data", "people.csv", "--target", "ill", "--classes", "a,b"), "is not one of"),
        (("--data", "people.csv", *STATED, "--standardise"), "standardise = True: every column"),
        (("--data", "people.csv", *STATED, "--side", 9), "side = 9: means nothing for tables"),
        (("--data", "nowhere.csv", "--target", "x"), "nowhere.csv: there is no such file"),
        (("--data", "nothing"), "data = 'nothing': must be one of"),
        (("--target", "x"), "target = 'x': means nothing for the data set digits"),
        (
            ("--data", "people.csv", "--target", "ill", "--recipe", "best"),
            "--recipe = 'best': is for",
        ),
        (("--data", "people.csv", *STATED, "--epsilon", -1), "epsilon = -1"),
        (("--data", "people.csv", *STATED, "--method", "nope"), "nope"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing(here: Path, words, message) -> None:
    write_people(here / "people.csv")
    assert message in refuse("train", *words)
    assert [path.name for path in here.iterdir()] == ["people.csv"]


def test_an_error_is_one_line_and_exit_code_2(here: Path, monkeypatch, capsys) -> None:
    (here / "bad.csv").write_text("a,b\n1,2\n3\n")
    monkeypatch.setattr(sys, "argv", ["reticent", "train", "--data", "bad.csv", "--target", "b"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error:")
    assert "line 3 has 1 fields" in said
    assert "\n" not in said


def test_a_resumed_run_takes_no_options_of_data(here: Path) -> None:
    assert "data_options" in refuse("train", "--resume", "run", "--target", "x")


@pytest.mark.parametrize("method", ["dpis", "dpsur", "sgd", "noise-decay"])
def test_other_methods_start_too(here: Path, method: str) -> None:
    write_people(here / "people.csv")
    extra = {"noise-decay": ("--set", "rate=0.1")}.get(method, ())
    words = ("--data", "people.csv", *STATED, "--method", method, "--steps", 3, *extra)
    call("train", *words, "--device", "cpu", "--quiet", "--out", "run")
