"""Every file that a run folder can hold is in the table of what may be passed on."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest

from .calling import call
from .own_files import write_people
from .test_own_data import crash

PAGE = Path(__file__).parents[2] / "docs" / "own-data.md"
WORDS = ("train", "--data", "people.csv", "--target", "ill", "--columns", "note:ignore")


def table() -> dict[str, str]:
    """What the page says of each file."""
    part = PAGE.read_text().partition("\n## What may be passed on\n")[2].partition("\n## ")[0]
    lines = re.findall(r"^\| `([^`]+)` \| (\w+) \|", part, re.MULTILINE)
    return dict(lines)


def test_the_page_names_every_file_of_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_people(tmp_path / "people.csv", 120)
    quick = ("--device", "cpu", "--quiet", "--steps", 2)
    call(*WORDS, *quick, "--private-diagnostics", "--out", "run")
    words = ("--attacks", "likelihood-ratio", "--shadows", 2, "--canaries", 0, "--releases", 0)
    call("audit", "run", *words, "--duplicates", "report", "--device", "cpu", "--quiet")
    crash(*WORDS, *quick, "--out", "begun")
    call("train", "--resume", "begun", "--quiet")  # its checkpoint is gone again
    finished = {path.name for path in tmp_path.glob("run/*")}
    told = table()
    assert finished | {"checkpoint.secret.pt"} == set(told)
    assert {path.name for path in tmp_path.glob("begun/*")} <= set(told)
    for name, answer in told.items():
        path = tmp_path / "run" / name
        if path.is_file():  # who may not have it cannot read it, either
            private = stat.S_IMODE(path.stat().st_mode) == 0o600
            assert private == (answer != "yes"), name
        else:
            assert answer in ("no", "never")
