"""Noise decay: the plan by hand, noise as charged, ε by hand, and runs that stop and go on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import reticent as rt
from reticent.errors import BudgetError, OptionError
from reticent.methods import build, decay
from reticent.methods.base import bill_of
from reticent.privacy import Budget, Ledger, SampledGaussian
from reticent.privacy.accountants import ORDERS

from .problem import N, started, weights

RATE = 30 / N
HALVING = rt.NoiseDecay(batch=30, noise=8.0, schedule="step", rate=0.5, period=1, stage=3)


def plan(method, n, steps):
    stages = method.stages(n, steps)
    assert all(purpose == "training" for price, _ in stages for _, purpose in price)
    return [(price[0][0].multiplier, count) for price, count in stages]


def test_stages_by_hand():
    assert plan(HALVING, N, 8) == [(8.0, 3), (4.0, 3), (2.0, 2)]
    # an epoch has round(120 / 30) = 4 releases
    exponential = rt.NoiseDecay(batch=30, noise=3.0, rate=0.1)
    expected = [(3.0, 4), (3.0 * math.exp(-0.1), 4), (3.0 * math.exp(-0.2), 1)]
    assert plan(exponential, N, 9) == expected
    slow = rt.NoiseDecay(batch=30, noise=3.0, schedule="step", rate=0.5, period=2)
    assert plan(slow, N, 20) == [(3.0, 8), (1.5, 8), (0.75, 4)]
    line = rt.NoiseDecay(batch=30, noise=4.0, schedule="linear", period=2, end=0.5, stage=1)
    assert plan(line, N, 10) == [(4.0, 1), (3.0, 1), (2.0, 8)]
    assert HALVING.stages(N, 0) == ()
    assert HALVING.price(N)[0][0] == SampledGaussian(RATE, 8.0)


def test_long_plans_are_charged_in_few_lines_and_never_too_little():
    method = rt.NoiseDecay(batch=30, noise=3.0, rate=1e-3, stage=1)
    stages = plan(method, N, 1001)
    assert len(stages) <= decay.MOST_STAGES
    assert sum(count for _, count in stages) == 1001
    charged = [multiplier for multiplier, count in stages for _ in range(count)]
    added = [method.multiplier(step, N) for step in range(1001)]
    assert all(c <= a < c * 1.01 for c, a in zip(charged, added, strict=True))
    assert len(plan(method, N, 200)) == 200


@pytest.mark.parametrize("clip", [1.0, rt.Quantile(count_noise=20.0)])
def test_the_noise_of_every_release_is_what_was_charged_for_it(clip):
    method = replace(HALVING, clip=clip)
    training = started(method, steps=8)
    run, seen = training.run, []
    noisy = run.noisy
    run.noisy = lambda total, m, *stream: seen.append((run.release, m)) or noisy(total, m, *stream)
    paid = []
    for _ in training:
        paid.append([e.charge.multiplier for e in run.ledger.entries][-1])
    expected = [8.0] * 3 + [4.0] * 3 + [2.0] * 2
    assert paid == expected
    if clip == 1.0:
        assert seen == list(enumerate(expected))
    else:  # two parts, together one release of the multiplier that was charged
        for step, z in enumerate(expected):
            parts = [m for release, m in seen if release == step]
            assert sum(m**-2 for m in parts) ** -0.5 == pytest.approx(z, rel=1e-12)


def test_noise_on_a_zero_gradient_has_the_charged_size():
    """The sum over no records is 0: what is released is noise. 4,000 coordinates a release.

    The variance of 4,000 squares is within 12 % of 1 but with probability 2·exp(−0.12²·4000/6) <
    1.4e-4 a tail; the coins are fixed, so the test does not flicker.
    """
    data = (torch.zeros(400, 200), torch.zeros(400, dtype=torch.long))
    method = rt.NoiseDecay(
        batch=20, clip=0.5, noise=8.0, schedule="step", rate=0.5, period=1, stage=2
    )
    training = rt.run(
        torch.nn.Linear(200, 20, bias=False),  # zero inputs have zero gradients
        data,
        method=method,
        budget=rt.Budget(8, 1e-3),
        steps=6,
        optimizer=lambda p: torch.optim.SGD(p, lr=1.0),
        coins=rt.Coins.from_seed(0),
        device="cpu",
    )
    values = training.run.state.parameters.values
    for step in range(6):
        before = values.clone()
        next(iter(training))
        spread = float((before - values).mul(20).std())
        assert spread == pytest.approx(0.5 * 8.0 * 0.5 ** (step // 2), rel=0.06)


def test_epsilon_is_that_of_the_events_composed_by_hand():
    method = rt.NoiseDecay(batch=60, noise=3.0, rate=0.3, stage=5)
    steps, n, delta = 12, 1200, 1e-5
    ledger = Ledger()
    for charge, count in bill_of(method.stages(n, steps)):
        ledger.charge(charge, "training", count=count)
    by_pld, by_rdp = PLDAccountant(value_discretization_interval=1e-4), RdpAccountant(ORDERS)
    for step in range(steps):
        event = PoissonSampledDpEvent(0.05, GaussianDpEvent(3.0 * math.exp(-0.3 * (step // 5))))
        by_pld.compose(event)
        by_rdp.compose(event)
    assert ledger.epsilon(delta, "pld") == pytest.approx(by_pld.get_epsilon(delta), rel=2e-3)
    assert ledger.epsilon(delta, "rdp") == pytest.approx(by_rdp.get_epsilon(delta), rel=1e-6)
    constant = Ledger()
    constant.charge(SampledGaussian(0.05, 3.0), "training", count=steps)
    assert constant.epsilon(delta) < ledger.epsilon(delta)


@pytest.mark.parametrize(
    "options",
    [
        {"rate": 0.2, "stage": 25},
        {"schedule": "step", "rate": 0.5, "period": 1, "stage": 25},
        {"schedule": "polynomial", "period": 4, "end": 0.3, "stage": 25},
    ],
    ids=lambda o: o.get("schedule", "exponential"),
)
def test_the_budget_is_kept_and_hardly_left(options):
    budget, n, steps = Budget(2, 1e-5), 2000, 50
    method = rt.NoiseDecay(batch=100, **options).calibrated(budget, n, steps, Ledger(budget))

    def cost(factor):
        changed = rt.NoiseDecay(batch=100, noise=method.noise * factor, **options)
        return Ledger(budget).epsilon_with(bill_of(changed.stages(n, steps)))

    assert cost(1.0) <= 2
    assert cost(0.997) > 2


def test_what_was_paid_before_leaves_less():
    budget = Budget(2, 1e-5)
    paid = Ledger(budget)
    paid.charge(SampledGaussian(1.0, 8.0), "normalisation")
    method = rt.NoiseDecay(batch=100, rate=0.2, stage=25)
    fresh, after = (method.calibrated(budget, 2000, 50, each) for each in (Ledger(budget), paid))
    assert after.noise > fresh.noise
    assert paid.epsilon_with(bill_of(after.stages(2000, 50))) <= 2


def test_no_decay_is_dpsgd_bit_for_bit():
    runs = [
        started(make, steps=6).finish()
        for make in (rt.DPSGD(batch=30, noise=2.0), rt.NoiseDecay(batch=30, noise=2.0, rate=0.0))
    ]
    assert torch.equal(*(weights(run.model) for run in runs))
    assert runs[0].ledger.to_json() == runs[1].ledger.to_json()


def test_a_run_resumed_within_a_stage_is_the_same_run(tmp_path):
    whole = started(HALVING, steps=8).finish()
    broken = started(HALVING, steps=8, folder=tmp_path)
    releases = iter(broken)
    for _ in range(4):  # one into the second stage
        next(releases)
    broken.checkpoint()
    resumed = started(HALVING, steps=8, folder=tmp_path, resume=True, coins=None).finish()
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.ledger.to_json() == whole.ledger.to_json()
    assert [(e.charge.multiplier, e.count) for e in whole.ledger.entries] == plan(HALVING, N, 8)


def test_an_early_end_pays_for_the_rest_at_its_own_prices():
    training = started(HALVING, steps=8, budget=rt.Budget(8, 1e-3))
    releases = iter(training)
    for _ in range(2):
        next(releases)
    ledger = training.result().ledger
    found = [(e.charge.multiplier, e.count, "not made" in e.purpose) for e in ledger.entries]
    assert found == [(8.0, 2, False), (8.0, 1, True), (4.0, 3, True), (2.0, 2, True)]
    assert ledger.epsilon(1e-3) == pytest.approx(
        Ledger(rt.Budget(8, 1e-3)).epsilon_with(bill_of(HALVING.stages(N, 8))), rel=1e-9
    )


def test_the_budget_decides_the_steps_or_refuses_them():
    budget = rt.Budget(4, 1e-3)
    training = started(HALVING, steps=None, budget=budget)
    ledger = Ledger(budget)
    assert ledger.affords_all(bill_of(HALVING.stages(N, training.steps)))
    assert not ledger.affords_all(bill_of(HALVING.stages(N, training.steps + 1)))
    with pytest.raises(BudgetError, match="affords"):
        started(HALVING, steps=500, budget=budget)


def test_options_by_name_and_no_noise():
    made = build("noise-decay", batch=30, noise=2.0, schedule="time", rate=0.5, stage=2)
    assert made == rt.NoiseDecay(
        batch=30, clip=made.clip, noise=2.0, schedule="time", rate=0.5, stage=2
    )
    assert made.options()["rate"] == 0.5
    with pytest.raises(OptionError, match="gamma"):
        build("noise-decay", batch=30, gamma=0.5)
    free = started(rt.NoiseDecay(batch=30, noise=0.0), budget=None).finish()
    assert math.isinf(free.ledger.epsilon(1e-5))
