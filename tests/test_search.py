"""The search trains as the library does, and the best recipes are what it found."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import reticent as rt
from reticent import data, models
from reticent.best import RECIPES, best_recipe, names
from reticent.cli.building import budget_of, build_method
from reticent.cli.settings import resolve
from reticent.coins import Coins
from reticent.errors import OptionError
from reticent.gradients.clipping import slack_for
from reticent.privacy import SampledGaussian
from reticent.training.optimizers import by_name

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
N, WIDTH, CLASSES = 60, 7, 3


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_alone", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    known = set(sys.modules)
    module = loaded("search")
    for name in {"machine"} - known:
        sys.modules.pop(name, None)
    return module


@pytest.fixture
def records() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(N, WIDTH)
    x[: N // 2] /= x[: N // 2].norm(dim=1, keepdim=True)  # and some that are longer than others
    return x, (x @ torch.randn(WIDTH, CLASSES)).argmax(1)


def by_library(
    records: tuple[torch.Tensor, torch.Tensor],
    steps: int,
    *,
    noise: float,
    lr: float,
    clip: float,
    coins: Coins | None = None,
) -> torch.Tensor:
    """The recipe's model, trained by `rt.train`: weights [d, classes]."""
    model = models.build(
        "linear-head", classes=CLASSES, input_shape=(WIDTH,), bias=False, zero=True
    )
    result = rt.train(
        model,
        records,
        method=rt.DPSGD(batch=N, clip=clip, noise=noise),
        budget=None if noise == 0 else rt.Budget(1e6, 1e-5),
        steps=steps,
        optimizer=by_name("sgd", lr=lr, momentum=0.9, weight_decay=0.0),
        coins=coins,
        device="cpu",
    )
    (weight,) = result.model.state_dict().values()
    return weight.T


# by which the library clips below its bound, against rounding
SLACK = slack_for(torch.float32, torch.device("cpu"))


def as_library(noise: float, rate: float, clip: float) -> tuple[float, float, float]:
    """Settings of the search that have this learning rate and noise, and the library's slack."""
    return noise / (1 - SLACK), rate * (1 - SLACK), clip * (1 - SLACK)


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal to float32's rounding of the largest weight, which some steps amplify."""
    assert found.shape == expected.shape
    assert float((found - expected).abs().max()) < 3e-6 * float(expected.abs().max())


SETTINGS = [(0.0, 5.0, 0.1), (0.0, 40.0, 0.3), (0.0, 2.0, 5.0)]  # the last cuts nearly nothing


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_without_noise_weights_are_those_of_the_library(
    search: ModuleType, records: tuple[torch.Tensor, torch.Tensor], steps: int
) -> None:
    found = search.trained(records, CLASSES, steps, [as_library(*one) for one in SETTINGS])
    for weights, (noise, rate, clip) in zip(found, SETTINGS, strict=True):
        expected = by_library(records, steps, noise=noise, lr=rate / clip, clip=clip)
        assert_same(weights, expected)


@pytest.mark.parametrize("clip", [0.1, 0.3])
def test_with_the_same_noise_too(
    search: ModuleType,
    records: tuple[torch.Tensor, torch.Tensor],
    clip: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, noise, rate = 5, 2.5, 10.0
    drawn: list[torch.Tensor] = []
    normal = Coins.normal

    def watching(coins: Coins, shape: Any, stream: str, *where: int, **how: Any) -> torch.Tensor:
        made = normal(coins, shape, stream, *where, **how)
        if stream == "noise":
            drawn.append(made)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(Coins, "normal", watching)
        expected = by_library(
            records, steps, noise=noise, lr=rate / clip, clip=clip, coins=Coins.from_seed(3)
        )
    assert len(drawn) == steps
    later = iter(drawn)
    monkeypatch.setattr(
        torch, "randn_like", lambda total: next(later).reshape(CLASSES, WIDTH).T[None]
    )
    (found,) = search.trained(records, CLASSES, steps, [as_library(noise, rate, clip)])
    assert_same(found, expected)
    # and noise there was: without it, weights are elsewhere
    quiet = by_library(records, steps, noise=0.0, lr=rate / clip, clip=clip)
    assert float((found - quiet).abs().max()) > 0.1


def test_large_data_are_summed_in_parts(
    search: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(20_011, 2)
    y = (x[:, 0] > 0).long()
    (found,) = search.trained((x, y), 2, 1, [(0.0, 1.0, 0.1)])
    error = torch.full((20_011, 2), 0.5) - nn.functional.one_hot(y, 2)
    gradients = x[:, :, None] * error[:, None]
    norms = gradients.flatten(1).norm(dim=1)
    clipped = gradients * (0.1 / norms).clamp(max=1)[:, None, None]
    torch.testing.assert_close(found, -clipped.sum(0) / 0.1 / 20_011, rtol=1e-4, atol=1e-6)


def test_noise_is_what_the_library_takes_for_that_epsilon(
    search: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "EPSILONS", (0.5, 3.0))
    for epsilon, noise in search.noises(50).items():
        budget = rt.Budget(epsilon, search.DELTA)
        planned = rt.DPSGD(batch=N, clip=0.1).calibrated(budget, N, 50, rt.Ledger(budget))
        assert planned.noise == noise
        ledger = rt.Ledger()
        ledger.charge(SampledGaussian(1.0, noise), "training", count=50)
        assert 0.98 * epsilon < ledger.epsilon(1e-5) <= epsilon


def test_rows_say_how_often_held_out_records_are_right(
    search: ModuleType, records: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "EPSILONS", (1.0, 1e4))
    x, y = records
    rows = search.trials((x, y), (x[:20], y[:20]), CLASSES, 30)
    assert len(rows) == 2 * len(search.RATES) * len(search.CLIPS)
    best = search._best(rows)
    assert [row["epsilon"] for row in best] == [1.0, 1e4]
    assert best[1]["accuracy"] > 80
    assert all(row["accuracy"] <= best[row["epsilon"] == 1e4]["accuracy"] for row in rows)


def test_the_recipes_are_written_from_the_results() -> None:
    best = loaded("best")
    assert best.FILE.read_text() == best.text()
    for path in BENCHMARKS.glob("results/search-*.json"):
        found = json.loads(path.read_text())
        name, _, features = found["data"].partition("+")
        n = data.lookup(name).n_train
        for row in found["chosen"]:
            recipe = best_recipe(name, row["epsilon"], n, features or None)
            assert recipe["lr"] * recipe["clip"] == pytest.approx(row["rate"], rel=1e-6)
            assert (recipe["steps"], recipe["batch"]) == (row["steps"], n)
            assert recipe["feature_options"] == found["options"]


def test_features_that_a_user_brings_have_a_recipe_of_their_own() -> None:
    own = best_recipe("imdb", 1.0, 25_000, "sentence-encoder")
    assert own["features"] == "sentence-encoder"
    assert best_recipe("imdb", 1.0, 25_000)["features"] == "word-clusters"
    assert best_recipe("imdb", 1.0, 25_000, "scattering")["features"] == "word-clusters"
    stated = {"data": "imdb", "recipe": "best", "features": "sentence-encoder"}
    settings = resolve(None, {**stated, "feature_options": {"encoder": "here"}})
    assert settings.feature_options == {**own["feature_options"], "encoder": "here"}
    assert (settings.steps, settings.lr) == (own["steps"], own["lr"]) or settings.epsilon != 1
    with pytest.raises(
        OptionError, match="features = 'sentence-encoder': the best recipe for mnist"
    ):
        resolve(None, {**stated, "data": "mnist"})


def test_a_recipe_is_for_the_largest_searched_epsilon_below() -> None:
    assert RECIPES == ("start", "best")
    assert set(names()) == {"cifar10", "fashion-mnist", "imdb", "mnist"}
    searched = (0.5, 1.0, 2.0, 3.0, 4.0, 8.0)
    by_epsilon = {e: best_recipe("mnist", e, 60_000) for e in searched}
    for asked, taken in ((0.1, 0.5), (0.99, 0.5), (1.0, 1.0), (2.9, 2.0), (7.9, 4.0), (100, 8.0)):
        assert best_recipe("mnist", asked, 60_000) == by_epsilon[taken]
    assert by_epsilon[1.0] != by_epsilon[2.0]
    by_epsilon[1.0]["feature_options"]["ridge"] = "changed"  # a copy: nobody else sees that
    assert best_recipe("mnist", 1.0, 60_000)["feature_options"]["ridge"] == 1.0
    with pytest.raises(OptionError, match="data = 'digits': must be one of cifar10"):
        best_recipe("digits", 1.0, 1437)


@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist", "imdb", "mnist"])
def test_every_release_sees_every_record(name: str) -> None:
    settings = resolve(None, {"data": name, "recipe": "best", "epsilon": 2.0})
    n = data.lookup(name).n_train
    method, budget = build_method(settings), budget_of(settings)
    assert settings.batch == n
    assert budget == rt.Budget(2.0, 1e-5)
    planned = method.calibrated(budget, n, settings.steps, rt.Ledger(budget))
    ((charge, _),) = planned.price(n)
    assert charge.rate == 1.0
    assert settings.to_json()["recipe"] == "best"
