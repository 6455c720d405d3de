import math

import pytest
import torch
from scipy import stats
from torch import nn

import reticent as rt
from reticent.errors import OptionError
from reticent.gradients import Automatic, Flat, Normalised, PerLayer
from reticent.methods import CLIPPING_STYLES, build, clipping_by_name
from reticent.privacy import NonPrivate, SampledGaussian

INPUTS = torch.randn(400, 6, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()


def trained(clip, **changes):
    torch.manual_seed(0)
    options = {
        "method": rt.DPSGD(batch=100, clip=clip, noise=2.0),
        "budget": rt.Budget(8, 1e-3),
        "steps": 30,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.5),
        "coins": rt.Coins.from_seed(1),
        "device": "cpu",
        **changes,
    }
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    return rt.run(model, (INPUTS, TARGETS), **options)


@pytest.mark.parametrize("style", CLIPPING_STYLES)
def test_every_clipping_style_learns_at_the_same_charge(style):
    training = trained(clipping_by_name(style, 1.0))
    result = training.finish()
    assert [entry.charge for entry in result.ledger.entries] == [SampledGaussian(0.25, 2.0)]
    assert rt.evaluate(result.model, (INPUTS, TARGETS))["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("clip", "sensitivity"),
    [(0.3, 0.3), (Automatic(0.7), 0.7), (Normalised(2.0), 2.0), (PerLayer(1.5), 1.5)],
)
def test_noise_is_scaled_by_what_the_sum_states(clip, sensitivity):
    """The noise that reached the parameters, against its distribution (false alarm 1e-6)."""
    training = trained(clip, optimizer=lambda p: torch.optim.SGD(p, lr=1.0), steps=20)
    drawn = []
    sums = []
    original = training.run.clipped_sum

    def spy(indices, clipping):
        total = original(indices, clipping)
        sums.append(total.flat.clone())
        return total

    training.run.clipped_sum = spy
    before = training.run.state.parameters.values.clone()
    for _ in training:
        after = training.run.state.parameters.values.clone()
        drawn.append((before - after) * 100 - sums[-1])
        before = after
    noise = torch.cat(drawn).double().numpy() / (2.0 * sensitivity)
    assert len(noise) == 20 * 74
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], len(noise)) / len(noise)
    assert low < (noise**2).mean() < high
    assert stats.kstest(noise, "norm").pvalue > 1e-6


def test_quantile_splits_the_noise_so_that_both_releases_cost_one():
    style = rt.Quantile(count_noise=5.0)
    gradient_noise, count_noise = style.split(2.0, batch=100)
    # independent Gaussian releases of multipliers z1 and z2 compose to (z1^-2 + z2^-2)^-1/2
    assert (gradient_noise**-2 + (count_noise / 0.5) ** -2) ** -0.5 == pytest.approx(2.0)
    assert gradient_noise > 2.0
    assert rt.Quantile().split(2.0, batch=200)[1] == 10.0
    with pytest.raises(OptionError, match="count_noise"):
        rt.DPSGD(batch=100, clip=rt.Quantile(count_noise=0.9), noise=2.0)


def test_quantile_finds_the_quantile():
    style = rt.Quantile(initial=20.0, quantile=0.5, rate=0.3, count_noise=5.0)
    training = trained(
        style, steps=60, budget=rt.Budget(30, 1e-3), optimizer=lambda p: torch.optim.SGD(p, lr=1e-6)
    )
    for _ in training:
        pass
    run = training.run
    bound = float(run.state.public["clip"])
    norms = run.clipped_sum(torch.arange(400), Flat(1.0), "model again").norms
    share = float((norms <= bound).double().mean())
    assert 0.4 < share < 0.6


def test_quantile_stays_between_its_limits():
    style = rt.Quantile(initial=1.0, quantile=0.0, rate=5.0, low=0.5, high=2.0, count_noise=5.0)
    training = trained(style)
    for _ in training:
        assert 0.5 <= float(training.run.state.public["clip"]) <= 2.0
    assert float(training.run.state.public["clip"]) == 0.5


def test_price_and_names():
    assert rt.DPSGD(batch=10, noise=1.0).price(100) == ((SampledGaussian(0.1, 1.0), "training"),)
    assert isinstance(rt.DPSGD(batch=10, noise=0).price(100)[0][0], NonPrivate)
    assert build("dpsgd", batch=10, clip=0.5, clipping="automatic") == rt.DPSGD(
        batch=10, clip=Automatic(0.5)
    )
    with pytest.raises(OptionError, match="noise"):
        rt.DPSGD(batch=10).price(100)
    with pytest.raises(OptionError, match="flavour"):
        build("dpsgd", batch=10, flavour=1)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": 2.5}, "batch"),
        ({"batch": 10, "clip": 0}, "clip"),
        ({"batch": 10, "clip": "tight"}, "clip"),
        ({"batch": 10, "noise": -1}, "noise"),
        ({"batch": 10, "noise": math.nan}, "noise"),
        ({"batch": 10, "noise": 1.0, "clip": math.inf}, "clip"),
    ],
)
def test_bad_options_are_named(options, name):
    with pytest.raises(OptionError, match=name):
        rt.DPSGD(**options)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"initial": 0}, "initial"),
        ({"quantile": 1.2}, "quantile"),
        ({"rate": 0}, "rate"),
        ({"count_noise": -1}, "count_noise"),
        ({"low": 0}, "low"),
    ],
)
def test_bad_quantile_options_are_named(options, name):
    with pytest.raises(OptionError, match=name):
        rt.Quantile(**options)


def test_a_run_without_a_bound_can_be_saved(tmp_path):
    data = (torch.randn(20, 3), torch.randint(0, 2, (20,)))
    result = rt.train(
        nn.Linear(3, 2),
        data,
        method=rt.DPSGD(batch=5, clip=float("inf"), noise=0.0),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        steps=2,
        folder=tmp_path,
    )
    assert result.to_json()["method"]["clip"] == {"style": "flat", "bound": None}
    assert rt.training.read_run(tmp_path)["conduct"]["noise"][0]["sensitivity"] == [None, None]
