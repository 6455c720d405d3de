"""Scripts of `benchmarks/` as modules, and a small table in a file."""

import importlib
from pathlib import Path

import pytest

from .small import SMALL

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("reproductions")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("reproduction_tables")


@pytest.fixture
def merging(bench):
    return importlib.import_module("merge")


@pytest.fixture
def small_file(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return str(path)
