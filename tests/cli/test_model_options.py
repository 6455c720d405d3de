"""Options of a model: by flag, by file, by recipe, and what goes with another model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reticent.cli.building import build_model
from reticent.cli.naming import in_flags
from reticent.cli.settings import resolve
from reticent.data import load, lookup
from reticent.data.datasets import Splits
from reticent.errors import OptionError
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


def test_reviews_without_public_vectors_have_one_for_every_word() -> None:
    info = lookup("imdb-first")
    tokens = torch.tensor([[0] * 79 + [info.vocabulary + 2]])
    labels = torch.tensor([1])
    splits = Splits((tokens, labels), (tokens, labels), info)
    for options in ({}, {"words": "trained"}):
        settings = resolve(None, {"data": "imdb-first", "model_options": options})
        assert build_model(settings, splits)(tokens).shape == (1, 2)
    few = resolve(None, {"data": "imdb-first", "model_options": {"vocabulary": 20_004}})
    assert build_model(few, splits)(tokens).shape == (1, 2)


def test_the_first_words_of_reviews_start_like_the_last() -> None:
    for method in ("dpsgd", "dpsur", "dpis"):
        first, last = (
            resolve(None, {"data": data, "method": method}) for data in ("imdb-first", "imdb")
        )
        assert first == replace(last, data="imdb-first")
        assert first.model == "imdb-bilstm"


def test_the_scale_is_the_first_layer() -> None:
    settings = resolve(None, {"data": "cifar10"})
    digits = load("digits")
    images = digits.train[0].repeat(1, 3, 4, 4)
    colour = digits.__class__((images, digits.train[1]), digits.test, digits.info)
    assert isinstance(next(build_model(settings, colour).children()), PublicScale)


@pytest.mark.parametrize("name", ["seed", "classes", "input_shape", "activation", "name"])
def test_what_is_set_elsewhere_is_no_option(name: str) -> None:
    told = refuse("train", "--model", "linear-head", "--model-option", f"{name}=3")
    assert f"--model-option {name} = 3: linear-head has no such option" in told


def test_options_of_flag_file_and_recipe_stand_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[model_options]\nzero = false\nbias = true")
    best = {"data": "imdb", "recipe": "best", "model_options": {"bias": False}}
    assert resolve(path, best).model_options == {"bias": False, "zero": False}


def test_compare_hands_them_on_and_refuses_others_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    words = ("compare", "--data", "digits", "--methods", "dpsgd", "--epsilon", "3", "--seeds", "1")
    small = (*words, "--steps", "1", "--batch", "1437", "--model", "linear-head")
    told = refuse(*small, "--model-option", "foo=1", "--out", tmp_path / "no")
    assert "--model-option foo = 1: linear-head has no such option" in told
    assert not list(tmp_path.iterdir())
    call(*small, "--model-option", "bias=false", "--out", tmp_path / "out")
    held = [path.read_text() for path in (tmp_path / "out").rglob("*.json")]
    assert any('"bias": false' in text for text in held)


def test_options_of_one_name_are_told_apart() -> None:
    error = OptionError("longest", 2, "must be at least 3")
    flags = {"set": "--set", "feature": "--feature"}
    assert in_flags(error, flags).startswith("--set longest = 2")  # of dpagd
    error.of = "feature"
    assert in_flags(error, flags).startswith("--feature longest = 2")
