"""Models of no use are named, and what they cost stands."""

import functools
import math
import warnings

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import DivergenceWarning, OptionError
from reticent.training.diverged import HUGE, divergence, in_words
from reticent.training.result import read_run

INPUTS = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()


def trained(lr, kind=torch.optim.SGD, model=None, **options):
    given = {
        "method": rt.DPSGD(batch=20, clip=1.0),
        "budget": rt.Budget(3, 1e-3),
        "steps": 3,
        "optimizer": lambda params: kind(params, lr=lr),
    }
    torch.manual_seed(0)
    model = nn.Linear(3, 2) if model is None else model
    return rt.train(model, (INPUTS, TARGETS), **{**given, **options})


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_run_that_diverged_is_named_and_paid_for(optimizer, tmp_path):
    with pytest.warns(DivergenceWarning, match="8 of 8 parameters are larger than 1e\\+09"):
        found = trained(1e30, optimizer, folder=tmp_path)
    assert found.diverged == {"not_finite": 0, "huge": 8, "parameters": 8, "outputs": False}
    kept = read_run(tmp_path)
    calm = trained(0.1)
    assert found.epsilon == calm.epsilon > 0  # the same charges, made or not
    assert found.steps == calm.steps == 3
    assert calm.diverged is None
    assert "diverged" not in calm.to_json()
    assert found.to_json()["diverged"] == found.diverged
    assert kept["diverged"] == found.diverged
    assert not (tmp_path / "checkpoint.secret.pt").exists()


def test_parameters_that_are_not_finite_are_counted():
    deep = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    with pytest.warns(DivergenceWarning, match="not finite"):
        found = trained(1e38, model=deep, method=rt.DPSGD(batch=20, clip=1e3))
    values = torch.cat([p.detach().flatten() for p in found.model.parameters()])
    assert found.diverged["not_finite"] == int((~values.isfinite()).sum()) > 0
    assert found.diverged["huge"] == int((values[values.isfinite()].abs() > HUGE).sum())


def test_calm_runs_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trained(0.1).diverged is None


def test_finite_parameters_with_an_infinite_loss():
    model = nn.Linear(2, 2)
    lines = [{"step": 1, "loss": math.inf}, {"step": 2, "loss": 0.3}]
    assert divergence(model, lines) is None  # it came back
    found = divergence(model, lines[:1])
    assert found == {"not_finite": 0, "huge": 0, "parameters": 6, "outputs": True}
    assert "outputs for held-out records are not finite" in in_words(found)
    assert divergence(model, [{"step": 1, "perplexity": math.inf}]) is None


def test_what_is_not_trained_does_not_count():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    for parameter in model[0].parameters():
        parameter.requires_grad_(False).fill_(math.nan)
    assert divergence(model) is None
    nn.init.constant_(model[1].bias, HUGE)
    assert divergence(model) is None  # not larger
    nn.init.constant_(model[1].bias, -2 * HUGE)
    assert divergence(model)["huge"] == 2


@pytest.mark.parametrize("value", [1e39, 1e-46])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_step_sizes_beyond_the_parameters_precision(value, optimizer):
    # the independent word: what it is in single precision
    assert float(torch.tensor(value, dtype=torch.float32)) in (0.0, math.inf)
    with pytest.raises(OptionError, match=r"lr = .*the parameters are torch.float32"):
        trained(value, optimizer)
    model = nn.Linear(3, 2)
    with pytest.raises(OptionError, match="lr = "):  # one that was made before
        trained(1.0, model=model, optimizer=optimizer(model.parameters(), lr=value))


def test_double_precision_can_do_with_more():
    data = (INPUTS.double(), TARGETS)
    with pytest.warns(DivergenceWarning):
        rt.train(
            nn.Linear(3, 2).double(),
            data,
            method=rt.DPSGD(batch=20),
            budget=rt.Budget(3, 1e-3),
            steps=1,
            optimizer=lambda params: torch.optim.SGD(params, lr=1e39),
        )


def test_weight_decay_and_a_step_size_of_zero():
    assert trained(0.0).diverged is None  # nothing moves, and that is what was asked for
    with pytest.raises(OptionError, match="weight_decay = "):
        trained(1.0, functools.partial(torch.optim.SGD, weight_decay=1e39))


@pytest.mark.parametrize("clip", [1e39, 1e19, 1e-50, 10**400])
def test_clips_that_single_precision_cannot_have(clip):
    for make in (rt.DPSGD, rt.DPSUR, rt.DPIS, rt.DPAGD, rt.SignSGD):
        with pytest.raises(OptionError, match=r"^clip = "):
            make(batch=10, clip=clip)


@pytest.mark.parametrize("noise", [1e-300, 1e16, 1e300])
def test_noise_that_floating_point_cannot_have(noise):
    with pytest.raises(OptionError, match=r"noise = .*must lie in \[1e-09, 1e\+15\]"):
        rt.DPSGD(batch=10, noise=noise)


def test_the_largest_of_all_stay_finite():
    with pytest.warns(DivergenceWarning, match="larger than"):
        found = trained(1.0, method=rt.DPSGD(batch=20, clip=1e18, noise=1e15), steps=1)
    assert found.diverged["not_finite"] == 0
