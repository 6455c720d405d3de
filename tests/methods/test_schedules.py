"""Schedules by hand, and clip bounds that follow them."""

from __future__ import annotations

import functools
import math

import pytest
import torch

import reticent as rt
from reticent.errors import OptionError
from reticent.methods import Schedule, build
from reticent.privacy import SampledGaussian

from .problem import N, started, weights


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule("constant"), [1, 1, 1, 1]),
        (Schedule("exponential", rate=0.5), [1, math.exp(-0.5), math.exp(-1), math.exp(-1.5)]),
        (Schedule("exponential", rate=0.5, end=0.5), [1, math.exp(-0.5), 0.5, 0.5]),
        (Schedule("step", rate=0.5, period=2), [1, 1, 0.5, 0.5, 0.25]),
        (Schedule("polynomial", rate=2, period=4, end=0.2), [1, 0.65, 0.4, 0.25, 0.2, 0.2]),
        (Schedule("linear", period=4, end=0.2), [1, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (Schedule("time", rate=1.0), [1, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_factors_by_hand(schedule, expected):
    assert [schedule.factor(t) for t in range(len(expected))] == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("shape", ["exponential", "polynomial", "time"])
def test_rate_0_is_exactly_1(shape):
    assert {Schedule(shape, rate=0, period=3).factor(t) for t in range(9)} == {1.0}


def test_a_stage_is_an_epoch_unless_it_is_said():
    assert Schedule().length(n=60_000, batch=2048) == 29
    assert Schedule().length(n=100, batch=90) == 1
    assert Schedule(stage=7).length(n=60_000, batch=2048) == 7


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"schedule": "cosine"}, "schedule = 'cosine'"),
        ({"rate": -1.0}, "rate = -1.0"),
        ({"schedule": "step", "rate": 1.5}, "rate = 1.5"),
        ({"schedule": "step", "rate": 0.0}, "rate = 0.0"),
        ({"schedule": "linear", "rate": 2.0}, "rate = 2.0"),
        ({"period": 0}, "period = 0"),
        ({"period": 1.5}, "period = 1.5"),
        ({"end": 0.0}, "end = 0.0"),
        ({"end": 1.5}, "end = 1.5"),
        ({"stage": 0}, "stage = 0"),
    ],
)
def test_bad_options_are_named(options, named):
    for make in (Schedule, rt.Scheduled, lambda **o: rt.NoiseDecay(batch=10, **o)):
        with pytest.raises(OptionError, match=named):
            make(**options)
    moving = {f"clip_{name}": value for name, value in options.items()}
    with pytest.raises(OptionError, match=f"clip_{named}"):
        build("dpsgd", batch=10, **{"clip_schedule": "exponential", **moving})


@pytest.mark.parametrize(
    "kind", [rt.DPSGD, rt.SignSGD, rt.SignAdam, rt.NoiseDecay, rt.DPSUR], ids=lambda m: m.name
)
def test_bounds_follow_and_the_charge_does_not(kind):
    """Each release's sum states the bound of the day, and is charged as with a constant one."""
    make = functools.partial(kind, **({"valid_batch": 40} if kind is rt.DPSUR else {}))
    clip = rt.Scheduled("linear", period=2, end=0.5, stage=2, initial=2.0)
    training = started(make(batch=30, clip=clip, noise=2.0), steps=6)
    seen, summed = [], training.run.clipped_sum

    def watched(indices, clipping, *rest):
        total = summed(indices, clipping, *rest)
        seen.append((training.run.release, clipping.bound, total.sensitivity))
        assert torch.linalg.vector_norm(total.flat) <= len(indices) * clipping.bound
        return total

    training.run.clipped_sum = watched
    training.run.clipped_sums = lambda draws, clipping: [watched(d, clipping) for d in draws]
    result = training.finish()
    bounds = [2.0, 2.0, 1.5, 1.5, 1.0, 1.0]
    assert {(release, bound) for release, bound, _ in seen} == set(enumerate(bounds))
    assert all(bound == stated for _, bound, stated in seen)
    still = make(batch=30, clip=2.0, noise=2.0)
    assert [e.charge for e in result.ledger.entries] == [
        charge for price, _ in still.stages(N, 6) for charge, _ in price
    ]


def test_the_noise_is_the_multiplier_times_the_bound_of_the_day():
    clip = rt.Scheduled("step", rate=0.5, period=1, stage=1, initial=4.0)
    training = started(rt.DPSGD(batch=30, clip=clip, noise=2.0), steps=3)
    seen, noisy = [], training.run.noisy

    def watched(total, multiplier):
        released = noisy(total, multiplier)
        drawn = training.run.coins.normal(
            tuple(released.shape), "noise", training.run.release, 0, dtype=torch.float64
        )
        torch.testing.assert_close(
            released - total.flat, drawn * 2.0 * 4.0 * 0.5**training.run.release
        )
        seen.append(multiplier)
        return released

    training.run.noisy = watched
    result = training.finish()
    assert seen == [2.0] * 3
    assert [(e.charge, e.count) for e in result.ledger.entries] == [
        (SampledGaussian(30 / N, 2.0), 3)
    ]


def test_a_schedule_that_stands_still_is_flat_clipping():
    still = rt.Scheduled("constant", initial=0.7)
    runs = [started(rt.DPSGD(batch=30, clip=c, noise=2.0)).finish() for c in (0.7, still)]
    assert torch.equal(weights(runs[0].model), weights(runs[1].model))


def test_bounds_by_name():
    made = build("sign-sgd", batch=10, clip=2.0, clip_schedule="step", clip_rate=0.5, clip_stage=3)
    assert made.clip == rt.Scheduled("step", 0.5, stage=3, initial=2.0)
    assert made.options()["clip"] == {"style": "scheduled", **vars(made.clip)}
    with pytest.raises(OptionError, match=r"clip_rate = 0\.5: means nothing without clip_schedule"):
        build("dpsgd", batch=10, clip_rate=0.5)
    with pytest.raises(OptionError, match="clip_schedule = 'linear': is for flat clipping"):
        build("dpsgd", batch=10, clipping="automatic", clip_schedule="linear")
    with pytest.raises(OptionError, match="clip = -1"):
        build("dpsgd", batch=10, clip=-1.0, clip_schedule="linear")
    with pytest.raises(OptionError, match="initial = inf"):
        rt.Scheduled(initial=math.inf)
