"""`reticent train --recipe best`: what it settles, what may be changed, and a whole small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reticent import data
from reticent.best import best_recipe
from reticent.cli.settings import resolve
from reticent.errors import OptionError
from reticent.features.random_images import RandomImages

from .calling import call, refuse, shown

N = 48


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def stand_in(name: str, **told: Any) -> data.Splits:
    """A few bright and dark images under the name of a data set."""
    entry = data.lookup("mnist")
    torch.manual_seed(0)
    labels = torch.arange(N + 12) % 10
    images = torch.rand(N + 12, 1, 8, 8) * 0.2
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, label % 5 : label % 5 + 3, label // 5 * 4 : label // 5 * 4 + 3] += 0.8
    return data.Splits((images[:N], labels[:N]), (images[N:], labels[N:]), entry, {})


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist", "imdb", "mnist"])
def test_the_recipe_is_taken_whole(name: str) -> None:
    n = data.lookup(name).n_train
    settings = resolve(None, {"data": name, "recipe": "best", "epsilon": 1.0})
    for key, value in best_recipe(name, 1.0, n).items():
        assert getattr(settings, key) == value
    assert (settings.method, settings.noise, settings.epsilon) == ("dpsgd", None, 1.0)
    plain = resolve(None, {"data": name, "recipe": "start", "epsilon": 1.0})
    assert plain == resolve(None, {"data": name, "epsilon": 1.0})
    assert plain.features == "none"


def test_what_is_stated_goes_before_the_recipe(tmp_path: Path) -> None:
    given = {"data": "mnist", "recipe": "best", "lr": 7.0, "seed": 3, "n": 50_000}
    settings = resolve(None, given)
    assert (settings.lr, settings.seed, settings.batch) == (7.0, 3, 50_000)
    assert settings.clip == best_recipe("mnist", 3.0, 1)["clip"]
    config = tmp_path / "mine.toml"
    config.write_text(
        'recipe = "best"\ndata = "mnist"\nepsilon = 1.0\nepochs = 20\n'
        '[feature_options]\nweights = "mine"\nridge = 3.0\n'
    )
    settings = resolve(config, {"epsilon": 2.0, "feature_options": {"ridge": 5.0}})
    assert (settings.recipe, settings.epochs, settings.steps) == ("best", 20, None)
    assert settings.lr == best_recipe("mnist", 2.0, 1)["lr"]
    assert settings.feature_options == {
        **best_recipe("mnist", 2.0, 1)["feature_options"],
        "weights": "mine",
        "ridge": 5.0,
    }


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"recipe": "better"}, "recipe = 'better': must be one of start, best"),
        (
            {"data": "cifar100"},
            "recipe = 'best': is for cifar10, .* leave it out for cifar100, for which none",
        ),
        ({"data": "cifr"}, "data = 'cifr': .*cifar10"),
        ({"features": "scattering"}, "features = 'scattering': the best recipe for mnist has"),
        ({"features": "none"}, "features = 'none': the best recipe for mnist has random-images"),
        ({"model": "mlp"}, "model = 'mlp': the best recipe for mnist has linear-head"),
        ({"method": "dpsur"}, "method = 'dpsur': the best recipe for mnist has dpsgd"),
    ],
)
def test_conflicts_are_named(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        resolve(None, {"data": "mnist", "recipe": "best", **flags})
    agreeing = {"features": "random-images", "model": "linear-head", "method": "dpsgd"}
    assert resolve(None, {"data": "mnist", "recipe": "best", **agreeing}).recipe == "best"


SMALL = ("--feature", "images=30", "--feature", "parts=3x1+1x1", "--device", "cpu")


def test_a_whole_run(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "load", stand_in)
    words = ("train", "--recipe", "best", "--data", "mnist", "--epsilon", 100, "--n", N, *SMALL)
    told = shown(*words, "--steps", 20, "--json", "--out", tmp_path / "run")
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert told["epsilon"] <= 100
    assert told["steps"] == 20
    notes = run["ledger"]["notes"]
    assert any("random-images features" in one and "nothing is charged" in one for one in notes)
    (entry,) = run["ledger"]["entries"]  # training, and nothing besides
    assert entry["count"] == 20
    settings = run["config"]["settings"]
    assert settings["recipe"] == "best"
    assert settings["feature_options"] == {
        **best_recipe("mnist", 8.0, N)["feature_options"],
        "images": 30,
        "parts": "3x1+1x1",
    }
    assert len(list((home / "features").iterdir())) == 2
    drawn = RandomImages.whitening
    monkeypatch.setattr(RandomImages, "whitening", lambda self: 1 / 0)  # found, not computed
    call(*words, "--steps", 2, "--quiet", "--out", tmp_path / "again")
    monkeypatch.setattr(RandomImages, "whitening", drawn)


def test_feature_options_as_flags(tmp_path: Path) -> None:
    small = ("train", "--batch", 200, "--steps", 2, "--noise", 8, "--device", "cpu", "--quiet")
    out = tmp_path / "run"
    call(
        *small,
        "--features",
        "scattering",
        "--feature",
        "scales=1",
        "--model",
        "linear",
        "--out",
        out,
    )
    run = json.loads((out / "run.json").read_text())
    assert run["config"]["settings"]["feature_options"] == {"scales": 1}
    assert "feature = 'scales': must be NAME=VALUE" in refuse(
        *small, "--features", "scattering", "--feature", "scales"
    )
    assert "mean nothing without features" in refuse(*small, "--feature", "scales=1")
    assert "--feature = " in refuse("train", "--resume", out, "--feature", "scales=1")
