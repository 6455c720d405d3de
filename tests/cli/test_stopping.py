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
from reticent.cli.settings import save_settings

from .calling import call, runner
from .own_files import write_people
from .test_own_data import STATED

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
    said = "stopped after release 0; go on with: reticent train --resume run --private-diagnostics"
    assert said in stopped.output
    call("train", "--resume", "run", "--quiet")
    models = [(here / name / "model.safetensors").read_bytes() for name in ("whole", "run")]
    assert models[0] == models[1]
