from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from reticent import models
from reticent.cli.models import app
from reticent.errors import OptionError

runner = CliRunner()


def test_list_names_every_model() -> None:
    result = runner.invoke(app, ["list"], env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    for name in models.names():
        assert name in result.output
    assert "26,010" in result.output


def test_list_json() -> None:
    result = runner.invoke(app, ["list", "--json"])
    rows = {row["name"]: row for row in json.loads(result.output)}
    assert tuple(rows) == models.names()
    assert rows["mnist-cnn"]["trained"] == 26_010
    assert rows["imdb-bilstm"]["frozen"] == 2_000_000
    assert rows["mnist-cnn"]["input_shape"] == [1, 28, 28]


@pytest.mark.parametrize("name", models.names())
def test_show(name: str) -> None:
    plain = runner.invoke(app, ["show", name], env={"COLUMNS": "160"})
    assert plain.exit_code == 0, plain.output
    assert plain.output.startswith(f"{name}: ")
    shown = json.loads(runner.invoke(app, ["show", name, "--json"]).output)
    assert f"{shown['trained']:,} trained" in plain.output
    assert sum(layer["trained"] for layer in shown["layers"]) == shown["trained"]
    assert sum(layer["frozen"] for layer in shown["layers"]) == shown["frozen"]
    assert shown["layers"][-1]["output"] == [shown["classes"]]


def test_show_an_unknown_model() -> None:
    result = runner.invoke(app, ["show", "nothing"])
    assert result.exit_code != 0
    assert isinstance(result.exception, OptionError)
    assert "must be one of cifar-cnn" in str(result.exception)
