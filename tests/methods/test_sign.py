"""Sign methods: their recurrences by hand, their price, and that signs are of what was released."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import OptionError
from reticent.methods import CLIPPING_STYLES, build, clipping_by_name
from reticent.privacy import SampledGaussian

INPUTS = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
METHODS = {"sign-sgd": rt.SignSGD, "sign-adam": rt.SignAdam}


def training(method, steps=20, lr=0.05, **changes):
    torch.manual_seed(0)
    options = {
        "budget": rt.Budget(8, 1e-3),
        "steps": steps,
        "optimizer": lambda p: torch.optim.SGD(p, lr=lr),
        "coins": rt.Coins.from_seed(1),
        "device": "cpu",
        **changes,
    }
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    return rt.run(model, (INPUTS, TARGETS), method=method, **options)


def walked(method, released, lr=0.5):
    """Where the parameters are after each of these noisy sums, from 0."""
    started = training(method, steps=len(released), lr=lr)
    run = started.run
    run.state.parameters.values.zero_()
    size = run.state.parameters.values.numel()
    places = []
    for step in released:
        full = torch.zeros(size, dtype=torch.float64)
        full[: len(step)] = torch.tensor(step, dtype=torch.float64)
        run.step(method.direction(run, full))
        places.append(run.state.parameters.values[: len(step)].tolist())
    return places


def test_sign_sgd_by_hand():
    method = rt.SignSGD(batch=100, noise=2.0)
    places = walked(method, [[3.0, -0.001], [-7.0, -2.0], [0.0, 1e9]])
    assert places == [[-0.5, 0.5], [0.0, 1.0], [0.0, 0.5]]


def test_sign_of_an_average_by_hand():
    """m ← 0.5 m + 0.5 g: 2, then 2·½ − 1·½ = ½, then ¼ − 2 = −1¾."""
    method = rt.SignSGD(batch=100, noise=2.0, momentum=0.5)
    assert walked(method, [[4.0], [-1.0], [-4.0]]) == [[-0.5], [-1.0], [-0.5]]


def test_sign_adam_by_hand():
    """Signs 1, −1, −1 with β₁ = ½, β₂ = ¾: m̂ = 1, −⅓, −5/7; v̂ = 1 throughout."""
    method = rt.SignAdam(batch=100, noise=2.0, beta1=0.5, beta2=0.75, eps=1e-8)
    places = walked(method, [[9.0], [-0.1], [-2.0]], lr=1.0)
    steps = [1.0, -1 / 3, -5 / 7]
    expected = [-sum(steps[: i + 1]) / (1 + 1e-8) for i in range(3)]
    assert [place[0] for place in places] == pytest.approx(expected, abs=1e-6)


def test_sign_adam_second_moment_where_signs_are_zero():
    """Signs 1, 0: m̂₂ = (½·½)/¾, v̂₂ = (¾·¼)/(1 − 9/16)."""
    method = rt.SignAdam(batch=100, noise=2.0, beta1=0.5, beta2=0.75, eps=0.1)
    places = walked(method, [[1.0], [0.0]], lr=1.0)
    first = 1 / (1 + 0.1)
    second = (0.25 / 0.75) / (math.sqrt(0.1875 / 0.4375) + 0.1)
    assert places[1][0] == pytest.approx(-(first + second), rel=1e-6)


def test_sign_adam_equals_adam_on_signs():
    method = rt.SignAdam(batch=100, noise=2.0)
    torch.manual_seed(3)
    released = torch.randn(12, 4).tolist()
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    adam = torch.optim.Adam([weight], lr=0.5, betas=(0.9, 0.999), eps=1e-8)
    for step in released:
        weight.grad = torch.tensor(step, dtype=torch.float64).sign()
        adam.step()
    assert walked(method, released)[-1] == pytest.approx(weight.tolist(), rel=1e-4)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("style", CLIPPING_STYLES)
def test_the_charge_is_that_of_dpsgd_and_every_clipping_style_learns(name, style):
    method = METHODS[name](batch=100, clip=clipping_by_name(style, 1.0), noise=2.0)
    result = training(method, steps=30).finish()
    assert [entry.charge for entry in result.ledger.entries] == [SampledGaussian(0.25, 2.0)]
    assert rt.evaluate(result.model, (INPUTS, TARGETS))["accuracy"] > 0.8


def test_signs_are_of_the_noisy_sum():
    """The step is the sign of clipped sum plus noise·C·N(0, 1): the mean with that noise is not."""
    method = rt.SignSGD(batch=100, clip=0.5, noise=2.0)
    started = training(method, steps=1, lr=1.0)
    run = started.run
    before = run.state.parameters.values.clone()
    seen = []
    noisy = run.noisy
    run.noisy = lambda total, multiplier: (
        seen.append((total, noisy(total, multiplier))) or seen[-1][1]
    )
    next(iter(started))
    total, released = seen[0]
    assert total.sensitivity == 0.5
    moved = before - run.state.parameters.values
    torch.testing.assert_close(moved, released.sign().float(), rtol=0, atol=1e-6)
    drawn = run.coins.normal(tuple(released.shape), "noise", 0, 0, dtype=torch.float64)
    torch.testing.assert_close(released, total.flat + 2.0 * 0.5 * drawn)


@pytest.mark.parametrize("name", METHODS)
def test_a_resumed_run_goes_on_with_its_moments(name, tmp_path):
    options = {"momentum": 0.9} if name == "sign-sgd" else {}
    method = METHODS[name](batch=100, noise=2.0, **options)
    whole = training(method, steps=6).finish()
    broken = training(method, steps=6, folder=tmp_path)
    releases = iter(broken)
    for _ in range(3):
        next(releases)
    broken.checkpoint()
    resumed = training(method, steps=6, folder=tmp_path, resume=True, coins=None).finish()
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_options_by_name_and_what_is_refused():
    made = build("sign-adam", batch=64, noise=1.0, beta1=0.8)
    assert isinstance(made, rt.SignAdam)
    assert made.options()["beta1"] == 0.8
    assert build("sign-sgd", batch=64, momentum=0.5).options()["momentum"] == 0.5
    for changes in ({"beta1": 1.0}, {"beta2": -0.1}, {"eps": 0.0}):
        with pytest.raises(OptionError, match=next(iter(changes))):
            rt.SignAdam(batch=64, **changes)
    with pytest.raises(OptionError, match="momentum"):
        rt.SignSGD(batch=64, momentum=1.0)
    with pytest.raises(OptionError, match="beta1"):
        build("sign-sgd", batch=64, beta1=0.5)
