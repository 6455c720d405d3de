"""Training on fixed features by command, and the command that computes them ahead."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from reticent import methods
from reticent.cli import app
from reticent.cli.building import build_method
from reticent.cli.settings import resolve
from reticent.data import lookup
from reticent.recipes import RECIPES, ROWS
from reticent.training import Training

from ..small_encoder import write_image_encoder
from .calling import call, refuse, runner

SMALL = ("train", "--batch", 200, "--steps", 4, "--noise", 8, "--device", "cpu", "--coin-seed", 1)


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def test_training_on_features_says_so_and_repeats(tmp_path: Path, home: Path) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    options = ("--features", "scattering", "--model", "scatter-cnn", "--quiet")
    call(*SMALL, *options, "--out", first)
    run = json.loads((first / "run.json").read_text())
    assert run["config"]["settings"]["features"] == "scattering"
    assert any("scattering features (scales 2" in note for note in run["ledger"]["notes"])
    assert len(list((home / "features").iterdir())) == 2
    call(*SMALL, *options, "--out", again)  # from the files this time
    assert (again / "model.safetensors").read_bytes() == (first / "model.safetensors").read_bytes()


def test_a_stopped_run_on_features_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--features", "scattering", "--checkpoint-every", 0, "--quiet")
    call(*SMALL, *options, "--out", tmp_path / "whole")
    finish = Training.finish
    monkeypatch.setattr(Training, "finish", lambda training, *some: (next(iter(training)), 1 / 0))
    result = runner.invoke(
        app, [str(word) for word in (*SMALL, *options, "--out", tmp_path / "half")]
    )
    assert isinstance(result.exception, ZeroDivisionError)
    monkeypatch.setattr(Training, "finish", finish)
    call("train", "--resume", tmp_path / "half", "--quiet")
    one, other = (tmp_path / name / "model.safetensors" for name in ("whole", "half"))
    assert one.read_bytes() == other.read_bytes()


def test_feature_options_come_from_the_file(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('features = "scattering"\nmodel = "linear"\n[feature_options]\nscales = 1\n')
    call(*SMALL, "--config", config, "--out", tmp_path / "run", "--quiet")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["config"]["settings"]["feature_options"] == {"scales": 1}
    config.write_text("[feature_options]\nscales = 1\n")
    assert "mean nothing without features" in refuse(*SMALL, "--config", config)
    config.write_text('features = "scattering"\n[feature_options]\ndepth = 1\n')
    said = refuse(*SMALL, "--config", config)
    assert said.startswith("feature_options.depth = 1: in config")
    assert "scattering has no such option" in said


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "scatter-cnn"), "compute them with --features scattering"),
        (("--features", "magic"), "features = 'magic': must be one of scattering"),
        (("--features", "scattering", "--model", "magic"), "model = 'magic'"),
        (("--features", "scattering", "--device", "magic"), "device = 'magic'"),
        (("--features", "scattering", "--model", "mnist-cnn"), "records have shape (81, 2, 2)"),
    ],
)
def test_what_cannot_work_is_named(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refuse("train", *words)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_recipes_know_about_features() -> None:
    plain, featured = resolve(None, {"data": "cifar10"}), {"data": "cifar10"}
    featured["features"] = "scattering"
    assert (plain.model, plain.features, plain.batch) == ("cifar-cnn", "none", 4096)
    assert resolve(None, featured).model == "scatter-cnn"
    assert resolve(None, featured).batch == 8192
    words = {"data": "imdb", "features": "word-vectors"}  # numbers, which no recurrent model takes
    assert resolve(None, words).model == "linear"
    # another model than the recipe's need not have an activation
    assert resolve(None, {**featured, "model": "scatter-linear"}).activation is None
    assert resolve(None, {"data": "mnist", "model": "linear"}).activation is None
    assert resolve(None, {"data": "mnist", "model": "mnist-cnn"}).activation == "tanh"


def test_rows_of_length_1_start_as_records_of_ones_own_do() -> None:
    own = {"images": 0.1, "text": 1.0}
    for features, kind in ROWS.items():
        stated = {"data": "imdb" if kind == "text" else "cifar10", "features": features}
        n = lookup(stated["data"]).n_train
        found = resolve(None, stated)
        assert (found.model, found.batch, found.steps, found.clip) == (
            "linear-head",
            n,
            100,
            own[kind],
        )
        assert found.model_options == {"bias": False, "zero": True}
        # half as far as a score of 1 moves by noise: lr/(1 - momentum)·clip·steps = n·μ/2
        mu = found.epsilon / math.sqrt(2 * math.log(1.25 / found.delta))
        moved = found.lr / (1 - found.momentum) * found.clip * 100
        assert moved == pytest.approx(min(0.5 * n * mu, 200 * 1000 * found.clip))
        fewer = resolve(None, {**stated, "n": 1000, "epsilon": 1.0})
        assert (fewer.batch, fewer.epsilon) == (1000, 1.0)
        assert fewer.lr < found.lr
        for data in RECIPES:
            for method in methods.names():
                one = resolve(None, {"data": data, "features": features, "method": method})
                build_method(one)
                lengths = {one.steps is None, one.epochs is None}
                assert lengths == {True, False} or one.noise is not None, (data, method)
    samples = resolve(None, {"data": "cifar10", "features": "image-encoder", "method": "dpsur"})
    assert (samples.batch, samples.valid_batch) == (6250, 1562)


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"epsilon": 0}, {"delta": 2.0}, {"n": -5}])
def test_what_a_start_is_computed_from_is_still_refused_by_its_own_name(
    wrong: dict[str, float],
) -> None:
    words = [str(word) for name, value in wrong.items() for word in (f"--{name}", value)]
    said = refuse("train", "--data", "digits", "--features", "random-images", *words)
    assert f"{next(iter(wrong))} = {next(iter(wrong.values()))}" in said


def test_an_encoder_of_images_needs_no_other_word(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_image_encoder(tmp_path / "tiny.pt2", side=8)
    words = ("--data", "digits", "--features", "image-encoder", "--feature", "encoder=tiny.pt2")
    shown = json.loads(call("train", *words, "--coin-seed", 1, "--device", "cpu", "--json"))
    assert shown["epsilon"] <= 3
    assert shown["accuracy"] > 0.5


def test_list_and_show() -> None:
    cards = json.loads(call("features", "list", "--json"))
    kinds = [
        "scattering",
        "random-images",
        "image-encoder",
        "word-vectors",
        "word-clusters",
        "sentence-encoder",
    ]
    assert [one["name"] for one in cards] == kinds
    for one in cards:
        assert one == json.loads(call("features", "show", one["name"], "--json"))
    card = cards[0]
    assert card == json.loads(call("features", "show", "scattering", "--json"))
    assert [option["name"] for option in card["options"]] == ["scales", "angles", "order"]
    assert "scattering" in call("features", "list")
    shown = call("features", "show", "scattering")
    assert "nothing is learned" in " ".join(shown.split())
    assert "features = 'magic'" in refuse("features", "show", "magic")


def test_compute_fills_the_folder(home: Path) -> None:
    words = ("features", "compute", "digits", "--option", "scales=1", "--device", "cpu")
    row = json.loads(call(*words, "--json"))
    assert row["computed"]
    assert row["options"] == {"scales": 1, "angles": 8, "order": 2}
    assert row["train"]["shape"] == [1437, 9, 4, 4]
    assert Path(row["train"]["path"]).parent == home / "features"
    assert not json.loads(call(*words, "--json"))["computed"]
    assert "found" in call(*words)
    assert "computed in" in call(*words, "--root", home / "elsewhere")
    assert "scales = 'two': must be a number" in refuse(
        "features", "compute", "digits", "--option", "scales=two"
    )
    assert "NAME=VALUE" in refuse("features", "compute", "digits", "--option", "scales")
    assert "magic" in refuse("features", "compute", "digits", "magic")
