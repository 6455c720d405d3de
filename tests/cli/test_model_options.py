"""Options of a model: by flag, by file, by recipe, and what goes with another model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reticent.cli.building import build_model
from reticent.cli.settings import resolve
from reticent.data import load
from reticent.models.inputs import PublicScale

from .calling import call, refuse


def test_a_flag_reaches_the_model_and_the_record(tmp_path: Path) -> None:
    small = ("--model", "linear-head", "--steps", "1", "--batch", "1437", "--out", tmp_path / "run")
    call("train", *small, "--model-option", "bias=false", "--model-option", "zero=true")
    found = json.loads((tmp_path / "run" / "run.json").read_text())
    text = json.dumps(found)
    assert '"model_options": {"bias": false, "zero": true}' in text


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("bias", "--model-option = 'bias': must be NAME=VALUE"),
        ("groups=nope", "--model-option groups = 'nope': must be a number"),
        ("depth=3", "linear-head has no such option; beside its shape it takes: groups, bias"),
    ],
)
def test_what_a_model_does_not_take_is_named(option: str, says: str, tmp_path: Path) -> None:
    told = refuse(
        *("train", "--model", "linear-head", "--model-option", option, "--out", tmp_path / "run")
    )
    assert says in told
    assert not (tmp_path / "run").exists()


def test_images_are_scaled_by_public_numbers_where_nothing_else_is_said(tmp_path: Path) -> None:
    start = resolve(None, {"data": "cifar10"})
    assert (start.model, start.model_options) == ("cifar-cnn", {"inputs": "imagenet"})
    plain = resolve(None, {"data": "cifar10", "model_options": {"inputs": "plain"}})
    assert plain.model_options == {"inputs": "plain"}
    path = tmp_path / "mine.toml"
    path.write_text('[model_options]\ninputs = "plain"')
    assert resolve(path, {"data": "cifar10"}).model_options == {"inputs": "plain"}
    # they belong to that model
    assert resolve(None, {"data": "cifar10", "model": "wrn-16-4"}).model_options == {}
    features = resolve(None, {"data": "cifar10", "features": "scattering"})
    assert (features.model, features.model_options) == ("scatter-cnn", {})


def test_the_scale_is_the_first_layer() -> None:
    settings = resolve(None, {"data": "cifar10"})
    digits = load("digits")
    images = digits.train[0].repeat(1, 3, 4, 4)
    colour = digits.__class__((images, digits.train[1]), digits.test, digits.info)
    assert isinstance(next(build_model(settings, colour).children()), PublicScale)
