"""Ctrl-C in the middle of a run on one's own data, and the command that goes on with it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from reticent.cli import app, train
from reticent.cli.preparing import STATISTICS_FILE, Prepared
from reticent.cli.settings import save_settings

from .calling import call, refuse, runner
from .own_files import write_people
from .test_own_data import STATED, crash

WORDS = ("train", "--data", "people.csv", *STATED[:4], "--columns", "note:ignore")
LENGTH = ("--steps", 150, "--every", 150, "--device", "cpu", "--coin-seed", 5)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))
    write_people(tmp_path / "people.csv", 120)
    return tmp_path


def test_a_stopped_run_says_how_to_go_on_and_comes_to_the_same_model(here: Path) -> None:
    # statistics are paid for too: they must not be drawn a second time
    words = [str(word) for word in (*WORDS, *LENGTH)]
    call(*words, "--out", "whole", "--quiet")
    out = here / ("a folder with spaces and a name as long as " + "x" * 60)
    process = subprocess.Popen(
        [sys.executable, "-m", "reticent", *words, "--out", str(out), "--checkpoint-every", "0"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (out / "checkpoint.secret.pt").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    line = next(line for line in said.splitlines() if "go on with: " in line)
    made = torch.load(out / "checkpoint.secret.pt", weights_only=True)["state"]["step"]
    assert f"stopped after release {made};" in line
    assert made < 150
    assert not (out / "run.json").exists()
    program, *command = shlex.split(line.partition("go on with: ")[2])
    assert (program, command) == ("reticent", ["train", "--resume", str(out)])
    call(*command, "--quiet")
    models = [(folder / "model.safetensors").read_bytes() for folder in (here / "whole", out)]
    assert models[0] == models[1]
    runs = [json.loads((folder / "run.json").read_text()) for folder in (here / "whole", out)]
    for key in ("ledger", "conduct", "metrics", "statement", "held_out", "config"):
        assert runs[0][key] == runs[1][key], key
    assert not (out / "checkpoint.secret.pt").exists()


@pytest.mark.parametrize("place", ["resolve", "build_training"])
def test_ctrl_c_while_preparing_says_that_nothing_was_spent(here: Path, place: str) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, place, interrupted)
        stopped = runner.invoke(app, [str(word) for word in (*WORDS, "--out", "run", "--quiet")])
    assert stopped.exit_code == 130
    assert "stopped before the first release: nothing was released or charged" in stopped.output
    assert ("nothing was written to 'run'" in stopped.output) == (place == "build_training")
    assert "begin again with the same command" in stopped.output
    assert not (here / "run").exists()


def test_ctrl_c_before_anything_is_replaced_leaves_the_run_that_was_there(here: Path) -> None:
    words = (*WORDS, "--steps", 1, "--device", "cpu", "--quiet", "--out", "run")
    call(*words)
    before = {path.name: path.read_bytes() for path in (here / "run").iterdir()}
    assert STATISTICS_FILE in before
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build_training", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        told = [str(word) for word in (*words, "--epsilon", 2, "--overwrite")]
        stopped = runner.invoke(app, told)
    assert "nothing was written to 'run'; begin again with the same command" in stopped.output
    assert {path.name: path.read_bytes() for path in (here / "run").iterdir()} == before


def test_ctrl_c_with_a_checkpoint_and_no_release_goes_on(here: Path) -> None:
    words = ("train", "--data", "people.csv", *STATED, "--steps", 2, "--device", "cpu", "--quiet")

    def interrupted(*options: Any) -> None:
        save_settings(*options)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "save_settings", interrupted)
        stopped = runner.invoke(app, [str(word) for word in (*words, "--out", "run")])
    assert "nothing was released or charged; 'run' holds the settings and a checkpoint" in (
        stopped.output
    )
    call("train", "--resume", "run", "--quiet")


def test_ctrl_c_once_statistics_are_kept_leaves_a_run_that_goes_on(here: Path) -> None:
    words = (*WORDS, "--steps", 3, "--device", "cpu", "--coin-seed", 5, "--quiet")
    call(*words, "--out", "whole")

    def interrupted(prepared: Prepared, folder: Path) -> None:
        keep(prepared, folder)
        raise KeyboardInterrupt

    keep = Prepared.keep
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Prepared, "keep", interrupted)
        stopped = runner.invoke(app, [str(word) for word in (*words, "--out", "run")])
    assert "statistics of the columns were: they are kept in 'run'" in stopped.output
    assert "go on with: reticent train --resume run\n" in stopped.output
    before = (here / "run" / STATISTICS_FILE).read_bytes()
    call("train", "--resume", "run", "--quiet")
    assert (here / "run" / STATISTICS_FILE).read_bytes() == before
    counts = [
        e["count"] for e in json.loads((here / "run/run.json").read_text())["ledger"]["entries"]
    ]
    assert counts == [1, 1, 3]


def test_ctrl_c_of_a_resumed_run_before_its_next_release(here: Path) -> None:
    crash(*WORDS, "--out", "run", "--device", "cpu")
    before = {path.name: path.read_bytes() for path in (here / "run").iterdir()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "build_training", lambda *_, **__: signal.raise_signal(signal.SIGINT))
        stopped = runner.invoke(app, ["train", "--resume", "run"])
    assert stopped.exit_code == 130
    assert "nothing more was released or charged" in stopped.output
    assert "go on with: reticent train --resume run\n" in stopped.output
    assert {path.name: path.read_bytes() for path in (here / "run").iterdir()} == before


def test_ctrl_c_at_the_pages_says_that_the_run_is_finished(here: Path) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    words = (*WORDS, "--steps", 1, "--device", "cpu", "--quiet", "--out", "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "refresh_reports", interrupted)
        stopped = runner.invoke(app, [str(word) for word in words])
    assert "the run is finished and saved; write its pages with: reticent report run" in (
        stopped.output
    )
    assert (here / "run" / "run.json").exists()


def test_an_unfinished_run_is_not_audited_and_says_how_to_go_on(here: Path) -> None:
    crash(*WORDS, "--out", "my run", "--device", "cpu")
    for command in (
        ("audit", "my run"),
        ("predict", "my run", "--data", "x.csv", "--out", "y.csv"),
    ):
        said = refuse(*command)
        assert "is unfinished" in said
        assert "go on with: reticent train --resume 'my run'" in said
    (here / "my run" / "settings.json").unlink()
    assert "with resume=True" in refuse("audit", "my run")
    (here / "my run" / STATISTICS_FILE).unlink()
    assert "holds neither run.json nor an unfinished run" in refuse("audit", "my run")
    (here / "my run" / "settings.json").write_text("{}")
    assert "nothing was spent: begin again" in refuse("audit", "my run")
    assert "is no folder" in refuse("audit", "nowhere")


def test_a_signal_before_the_first_release_leaves_a_run_too(here: Path) -> None:
    words = (*WORDS, "--steps", 3, "--device", "cpu", "--coin-seed", 5, "--quiet")
    call(*words, "--out", "whole")

    def interrupted(*options: Any) -> None:
        save_settings(*options)
        signal.raise_signal(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train, "save_settings", interrupted)
        told = [str(word) for word in (*words, "--out", "run", "--private-diagnostics")]
        stopped = runner.invoke(app, told)
    assert stopped.exit_code == 130
    for said in (
        "stopped before the first release: no update was released or charged",
        "but the private statistics of the columns were: they are kept in 'run'",
        "; go on with: reticent train --resume run --private-diagnostics",
    ):
        assert said in stopped.output
    call("train", "--resume", "run", "--quiet")
    models = [(here / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert models[0] == models[1]
