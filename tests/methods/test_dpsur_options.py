"""What DPSUR costs, what it can be told, and what it keeps to itself."""

from __future__ import annotations

import math

import pytest
import torch

import reticent as rt
from reticent.errors import BudgetError, OptionError
from reticent.methods import build
from reticent.methods.published import PublishedDPSUR
from reticent.privacy import NonPrivate, SelectiveGaussian

from .problem import METHOD, N, options_with, started, weights


def test_price_and_statement():
    (charge, purpose), = METHOD.price(N)  # fmt: skip
    assert charge == SelectiveGaussian(0.25, 2.0, 40 / N, 1.0, -1.0, METHOD.most_trials)
    assert purpose == "selected updates"
    assert charge.failure < 1e-30
    result = started().finish()
    assert result.statement.accountant == "selective-exact"
    assert 0 < result.epsilon <= 8


def test_the_budget_sets_the_noise_or_the_number_of_updates():
    free = rt.DPSUR(batch=30, valid_batch=40, valid_noise=1.0, bound=0.01)
    training = started(free, steps=3, budget=rt.Budget(4, 1e-3))
    assert training.method.noise > 0
    assert 3.9 < training.finish().epsilon <= 4
    training = started(METHOD, steps=None, budget=rt.Budget(4, 1e-3))
    ledger = rt.Ledger(rt.Budget(4, 1e-3))
    charge = METHOD.price(N)[0][0]
    assert ledger.epsilon_with(((charge, training.steps),)) <= 4
    assert ledger.epsilon_with(((charge, training.steps + 1),)) > 4
    with pytest.raises(BudgetError, match="affords"):
        started(METHOD, steps=10_000)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"valid_batch": 0}, "valid_batch = 0"),
        ({"valid_noise": 0}, "valid_noise = 0"),
        ({"valid_noise": math.nan}, "valid_noise = nan"),
        ({"bound": -1}, "bound = -1"),
        ({"beta": math.inf}, "beta = inf"),
        ({"beta": -40.0}, "raise one of them"),
        ({"trials": 0}, "trials = 0"),
        ({"pad": 0}, "pad = 0"),
        ({"together": 0}, "together = 0"),
        ({"batch": 0}, "batch = 0"),
        ({"gamma": 1}, "gamma = 1: is not an option of dpsur"),
    ],
)
def test_options_that_cannot_work(options, says):
    with pytest.raises(OptionError, match=says.replace("(", r"\(")):
        build("dpsur", **{**options_with({}), **options})


def test_batches_larger_than_the_data():
    with pytest.raises(OptionError, match="valid_batch = 256: exceeds"):
        rt.DPSUR(batch=30, noise=1.0).price(N)
    with pytest.raises(OptionError, match="batch = 300: exceeds"):
        rt.DPSUR(batch=300, noise=1.0).price(N)


def test_without_noise_it_has_no_epsilon():
    method = rt.DPSUR(batch=30, noise=0, valid_batch=40, bound=0.01)
    result = started(method, budget=None, steps=2).finish()
    assert result.epsilon == math.inf


def test_what_was_published_has_no_epsilon_and_no_budget():
    method = PublishedDPSUR(**options_with({}))
    assert isinstance(method.price(N)[0][0], NonPrivate)
    with pytest.raises(OptionError, match="promises no differential privacy"):
        started(method)
    result = started(method, budget=None).finish()
    report = result.to_json()
    assert report["guarantee"] == "none"
    assert report["statement"]["epsilon"] is None
    assert report["method"]["leaky_momentum"]
    assert report["method"]["stale_validation"]
    with pytest.raises(OptionError, match="method"):
        build("dpsur-published", batch=30)


def test_trials_are_kept_only_when_asked_for():
    training = started(private_diagnostics=False)
    report = training.finish().to_json()
    assert training.run.diagnostics is None
    report["method"].pop("trials")  # the cap, a public number
    report["ledger"]["entries"][0]["charge"].pop("trials")
    assert "trials" not in str(report)


def test_a_run_that_was_stopped_goes_on_as_it_would_have(tmp_path):
    whole = started(steps=5).finish()
    first = started(steps=5, folder=tmp_path, checkpoint_every=0)
    for release in first:
        if release.step == 2:
            first.stop()
    second = started(steps=5, folder=tmp_path, resume=True, coins=None)
    assert second.run.state.step == 2
    assert torch.equal(weights(second.finish().model), weights(whole.model))
