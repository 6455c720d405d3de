"""What newcomers do wrong: errors and warnings that name the right thing, and show no cell."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reticent.cli.preparing import STATISTICS_FILE
from reticent.data.own.reading import IN_TRAINING

from .calling import app, call, refuse, runner

STATED = (
    *("--target", "ill", "--classes", "no,yes", "--bounds", "age=0..120"),
    *("--columns", "city:category:Rome,Oslo"),
)
QUICK = ("--device", "cpu", "--quiet", "--coin-seed", 3, "--steps", 3)
RECORD = "66,m,slept well,no"


def rows(count: int = 40) -> list[str]:
    return [
        f"{20 + k},{'Rome' if k % 3 else 'Oslo'},{'yes' if k > 20 else 'no'}" for k in range(count)
    ]


@pytest.fixture(autouse=True)
def people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("people.csv").write_text("\n".join(["age,city,ill", *rows()]))
    Path("bare.csv").write_text("\n".join([RECORD, *["54,f,coughs,yes"] * 30]))
    return tmp_path


def train(*words: object) -> str:
    call("train", "--data", "people.csv", *STATED, *QUICK, *words)
    return "runs/people-dpsgd"


def test_a_file_without_a_header_shows_no_cell() -> None:
    told = refuse("train", "--data", "bare.csv", "--target", "ill", "--classes", "no,yes")
    assert "is the first line a record?" in told
    predicted = refuse("predict", train(), "--data", "bare.csv", "--out", "told.csv")
    Path("bare.csv").write_text("66,m,m,no\n54,f,f,yes\n")
    twice = refuse("train", "--data", "bare.csv", "--target", "ill")
    assert "put a header above the records" in twice
    for text in (told, predicted, twice):
        assert not any(cell in text for cell in ("66", "slept well", "'m'"))


def test_predictions_do_not_replace_the_run_or_what_is_no_file() -> None:
    run = train()
    before = Path(run, "run.json").read_bytes()
    words = ("predict", run, "--data", "people.csv", "--overwrite", "--out")
    assert "belongs to the run" in refuse(*words, f"{run}/run.json")
    Path("link.csv").symlink_to(f"{run}/run.json")
    assert "is no plain file" in refuse(*words, "link.csv")
    assert Path(run, "run.json").read_bytes() == before
    call(*words, f"{run}/predictions.csv")
    call(*words, f"{run}/predictions.csv")


def test_test_records_that_were_trained_on_are_told() -> None:
    Path("some.csv").write_text("\n".join(["age,city,ill", *rows()[5:20], *rows()[25:30]]))
    words = ("train", "--data", "people.csv", *STATED, *QUICK, "--overwrite")
    ended = runner.invoke(app, [str(word) for word in (*words, "--test", "some.csv")])
    assert "most test records are" in ended.stderr
    for path in Path("runs/people-dpsgd").iterdir():  # one training record may decide it
        assert IN_TRAINING.encode()[:20] not in path.read_bytes()
    Path("other.csv").write_text(
        "\n".join(
            ["age,city,ill", *(f"{70 + k},Rome,{'yes' if k % 2 else 'no'}" for k in range(9))]
        )
    )
    ended = runner.invoke(app, [str(word) for word in (*words, "--test", "other.csv")])
    assert ended.exit_code == 0
    assert "most test records" not in ended.stderr
    for name, count in (("twins.csv", 40), ("more.csv", 12)):  # few values, many twins
        lines = [f"{('Rome', 'Oslo')[k % 2]},{('no', 'yes')[k % 2]}" for k in range(count)]
        Path(name).write_text("\n".join(["city,ill", *lines]))
    words = ("train", "--data", "twins.csv", "--target", "ill", "--classes", "no,yes", *QUICK)
    words += ("--columns", "city:category:Rome,Oslo", "--test", "more.csv")
    ended = runner.invoke(app, [str(word) for word in words])
    assert ended.exit_code == 0
    assert "most test records" not in ended.stderr


def test_the_flag_at_fault_is_named() -> None:
    words = ("train", "--data", "people.csv", *STATED)
    Path("scans").mkdir()
    assert "--test = " in refuse(*words, "--test", "scans")
    assert "--recipe = 'best'" in refuse(*words, "--recipe", "best")
    assert "--model = 'mnist-cnn'" in refuse(*words, "--model", "mnist-cnn")
    assert "--epsilon = 1e-300" in refuse(*words, "--epsilon", "1e-300")
    assert "--n and --dimension" in refuse("plan", "--data", "people.csv", "--epsilon", 3)


def test_a_cell_that_is_no_number_has_no_flag_in_predict() -> None:
    run = train()
    Path("new.csv").write_text("age,city\n30,Rome\nold,Oslo\n")
    told = refuse("predict", run, "--data", "new.csv", "--out", "told.csv")
    assert "line 3, column 'age': is not a number" in told
    assert "--columns" not in told


def test_what_is_missing_of_a_run_that_was_passed_on_is_named() -> None:
    words = ("--target", "ill", "--classes", "no,yes", "--columns", "city:category:Rome,Oslo")
    call(
        *("train", "--data", "people.csv", *words, "--columns", "age:numeric", "--standardise"),
        *("--epsilon", 30, *QUICK),
    )
    Path("runs/people-dpsgd", STATISTICS_FILE).unlink()
    told = refuse("predict", "runs/people-dpsgd", "--data", "people.csv", "--out", "told.csv")
    assert f"has no {STATISTICS_FILE}" in told
    Path("runs/people-dpsgd/settings.json").unlink()
    assert "give the whole folder" in refuse("audit", "runs/people-dpsgd")


def test_a_model_that_diverged_says_so_with_its_predictions() -> None:
    run = train("--lr", 1e30)
    words = ("predict", run, "--data", "people.csv", "--out", "told.csv", "--json")
    shown = call(*words)
    assert "diverged" in json.loads(shown[shown.index("{") :])["remarks"][0]


def test_an_epsilon_that_promises_nothing_is_told() -> None:
    words = ("train", "--data", "people.csv", *STATED, *QUICK, "--epsilon", 500)
    ended = runner.invoke(app, [str(word) for word in words])
    assert ended.exit_code == 0
    assert "promises next to nothing" in ended.stderr


def test_every_command_says_that_it_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reticent.cli.plan._subject", stopped)
    ended = runner.invoke(app, ["plan", "--n", "100"])
    assert ended.exit_code == 130
    assert ended.stderr.count("stopped") == 1


def test_a_comparison_that_is_stopped_while_planning_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("reticent.comparison.plans.check", stopped)
    words = ["compare", "--data", "digits", "--methods", "dpsgd,sgd", "--epsilon", "1"]
    ended = runner.invoke(app, words)
    assert ended.exit_code == 130
    assert ended.stderr.count("stopped") == 1
    assert "nothing more was trained or charged; go on with: reticent compare" in ended.stderr
