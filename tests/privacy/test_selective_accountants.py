"""ε of selected releases: bounds in their order, limits that are known, charges that mix."""

import math
from dataclasses import replace
from functools import cache

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from reticent.errors import AccountingError, BudgetError, OptionError
from reticent.privacy import (
    ACCOUNTANTS,
    Budget,
    Ledger,
    NonPrivate,
    SampledGaussian,
    SelectiveGaussian,
    trials_for,
)
from reticent.privacy.accountants import (
    ORDERS,
    composed_pld,
    pld_epsilon,
    rdp_epsilon,
    rdp_to_epsilon,
)
from reticent.privacy.selective_exact import exact_capacity, exact_epsilon
from reticent.privacy.selective_instance import instance_epsilon
from reticent.privacy.selective_rdp import selective_rdp
from reticent.privacy.statements import state

from .selective_oracle import passing, renyi_of_tilt

DELTA = 1e-5


def charge(rate=1024 / 60000, multiplier=2.0, valid_rate=256 / 60000, valid_noise=1.3, beta=-1.0):
    trials = trials_for(beta, valid_noise)
    return SelectiveGaussian(rate, multiplier, valid_rate, valid_noise, beta, trials)


MNIST = charge()


def in_order(one, count, delta=DELTA):
    exact = exact_epsilon(one, count, None, delta)
    by_pld = pld_epsilon(((one, count),), delta)
    by_rdp = rdp_epsilon(((one, count),), delta)
    lower = instance_epsilon(one, count, delta)
    assert 0 < lower <= exact <= min(by_pld, by_rdp)
    return lower, exact, max(by_pld, by_rdp)


@pytest.mark.parametrize(
    ("beta", "valid_noise"),
    [(-2.0, 1.3), (-1.0, 0.5), (-1.0, 3.0), (0.0, 0.8), (1.0, 1.3)],
)
def test_instance_exact_pld_and_rdp_are_in_order(beta, valid_noise):
    _, exact, loosest = in_order(charge(valid_noise=valid_noise, beta=beta), 24)
    assert loosest < 1.5 * exact


@pytest.mark.parametrize(
    "one",
    [
        charge(2048 / 60000, 4.0),
        charge(2048 / 60000, 2.15, valid_noise=0.8),
        charge(8192 / 50000, 5.67, 256 / 50000, 1.1),
        charge(1024 / 25000, 2.0, 256 / 25000, 0.9),
    ],
)
def test_in_order_at_published_settings(one):
    lower, exact, _ = in_order(one, 40)
    assert exact < 1.02 * lower


def test_the_mnist_row():
    exact = exact_epsilon(MNIST, 576, None, DELTA)
    lower = instance_epsilon(MNIST, 576, DELTA)
    assert 1.177 < lower <= exact < 1.20
    assert exact < pld_epsilon(((MNIST, 576),), DELTA) == pytest.approx(1.284, abs=0.002)
    assert rdp_epsilon(((MNIST, 576),), DELTA) == pytest.approx(1.292, abs=0.002)


# -- limits ---------------------------------------------------------------------------------------


@cache
def plain(rate, multiplier, count, delta):
    accountant = PLDAccountant(value_discretization_interval=1e-5)
    accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(multiplier)), count)
    return accountant.get_epsilon(delta)


@pytest.mark.parametrize(
    "off", [{"valid_noise": 1e7}, {"valid_rate": 1e-9, "beta": 40.0}, {"beta": 40.0}]
)
def test_without_selection_it_is_the_sampled_gaussian(off):
    one, count = charge(**off), 100
    known = plain(one.rate, one.multiplier, count, DELTA)
    exact = exact_epsilon(one, count, None, DELTA)
    assert known * (1 - 1e-4) <= exact <= known * 1.005
    assert known * (1 - 1e-4) <= pld_epsilon(((one, count),), DELTA) <= known * 1.003
    for order in (2.0, 4.0, 32.0):
        known = SampledGaussian(one.rate, one.multiplier).rdp((order,))[0]
        assert known * (1 - 1e-6) <= one.rdp((order,))[0] <= known * 1.01 + 1e-9


# -- Rényi ----------------------------------------------------------------------------------------

RENYI = [
    (0.02, 2.0, 0.004, 1.3, -1.0),
    (0.3, 1.0, 0.5, 0.4, 0.0),
    (1.0, 3.0, 0.1, 0.8, 1.0),
    (0.95, 1.5, 1.0, 1.0, -1.0),
    (1e-4, 0.8, 1e-3, 0.6, -1.0),
    (1e-3, 20.0, 1e-6, 5.0, 2.0),
]


@pytest.mark.parametrize("order", [1.01, 1.7, 6.0, 60.0, 300.0])
@pytest.mark.parametrize("setting", RENYI)
def test_no_tilt_has_a_larger_renyi_divergence(setting, order):
    rng = np.random.default_rng(0)
    bound = selective_rdp(*setting[:3], *passing(*setting[:2:-1]), order)
    # sums on the grid are off by about 1e-13
    slack = 1e-12 / (order - 1)
    largest = max(renyi_of_tilt(rng, setting, order) for _ in range(12))
    assert largest <= bound * (1 + 1e-9) + slack


def test_curves_between_knots_are_chords_above_the_bound():
    orders = (1.05, 2.2, 7.3, 41.0, 300.0, 1000.0)
    curve = MNIST.rdp(orders)
    for order, value in zip(orders, curve, strict=True):
        assert MNIST.rdp((order,))[0] <= value * (1 + 1e-9)
    assert np.all(np.isfinite(MNIST.rdp(ORDERS)))
    assert math.isinf(MNIST.rdp((*ORDERS, 2000.0))[-1])
    # ratios beyond floating point say infinity instead of breaking
    strong = charge(multiplier=0.5)
    assert math.isinf(strong.rdp((900.0,))[0])
    assert math.isfinite(rdp_epsilon(((strong, 3),), DELTA))


# -- ordinary charges -----------------------------------------------------------------------------


def test_ordinary_charges_compose_with_the_recursion():
    off, other = charge(valid_noise=1e7), SampledGaussian(0.05, 3.0)
    rest = composed_pld(((other, 50),), DELTA)
    mixed = exact_epsilon(off, 40, rest, DELTA)
    known = pld_epsilon(((SampledGaussian(off.rate, off.multiplier), 40), (other, 50)), DELTA)
    assert known * (1 - 1e-3) <= mixed <= known * 1.01
    # only a few of the others: close to the recursion alone, and never below
    little = composed_pld(((SampledGaussian(0.001, 5.0), 1),), DELTA)
    alone = exact_epsilon(MNIST, 40, None, DELTA)
    assert alone <= exact_epsilon(MNIST, 40, little, DELTA) < 1.02 * alone


def test_both_directions_meet_their_own_ordinary_charges():
    # at rates below 1 the directions differ: mixing them up would go below the plain composition
    other = SampledGaussian(0.02, 0.9)
    rest = composed_pld(((other, 20),), DELTA)
    off = charge(rate=1e-6, valid_noise=1e7)
    assert exact_epsilon(off, 1, rest, DELTA) >= pld_epsilon(((other, 20),), DELTA) * (1 - 1e-6)


def test_the_rounding_of_the_others_is_taken_from_delta(monkeypatch):
    bill = ((MNIST, 20), (SampledGaussian(0.05, 3.0), 50))
    before = state(bill, DELTA, "selective-exact").epsilon
    monkeypatch.setattr("reticent.privacy.statements.FFT_ERROR_PER_RELEASE", 1e-7)
    assert state(bill, DELTA, "selective-exact").epsilon > before
    monkeypatch.setattr("reticent.privacy.statements.FFT_ERROR_PER_RELEASE", 1e-6)
    assert math.isinf(state(bill, DELTA, "selective-exact").epsilon)


# -- capacity -------------------------------------------------------------------------------------


def test_capacity_is_the_most_releases_within_epsilon():
    epsilon = 0.25
    most = exact_capacity(MNIST, 0, None, epsilon, DELTA)
    assert exact_epsilon(MNIST, most, None, DELTA) <= epsilon
    # on its own grid one release more may come out a hair tighter
    assert exact_epsilon(MNIST, most + 2, None, DELTA) > epsilon
    assert exact_capacity(MNIST, 10, None, epsilon, DELTA) == most - 10
    assert exact_capacity(MNIST, most + 3, None, epsilon, DELTA) == 0
    rest = composed_pld(((SampledGaussian(0.02, 5.0), 5),), DELTA)
    assert 0 < exact_capacity(MNIST, 0, rest, epsilon, DELTA) < most
    ledger = Ledger(Budget(epsilon, DELTA))
    assert abs(ledger.capacity(MNIST) - most) <= 1
    ledger.charge(MNIST, "training", count=ledger.capacity(MNIST))
    assert ledger.epsilon(DELTA) <= epsilon
    with pytest.raises(BudgetError):
        ledger.charge(MNIST, "training", count=2)


def test_where_the_recursion_proves_nothing_the_others_speak():
    assert math.isinf(exact_epsilon(MNIST, 20_000, None, DELTA))
    assert math.isinf(exact_epsilon(MNIST, 10, None, 1e-14))
    assert math.isinf(exact_epsilon(MNIST, 10, None, -1e-14))
    wild = charge(rate=0.5, multiplier=0.3, valid_rate=0.5)
    assert math.isinf(exact_epsilon(wild, 20, None, DELTA))
    spoken = state(((MNIST, 20_000),), DELTA, None)
    assert math.isfinite(spoken.epsilon)
    assert spoken.accountant != "selective-exact"
    # no sampling, and very little of anything
    assert math.isfinite(exact_epsilon(charge(rate=1.0, multiplier=5.0), 3, None, DELTA))
    assert exact_epsilon(charge(1e-5, 50.0, 1e-6, 100.0, 0.0), 10, None, DELTA) < 1e-3


# -- ledgers --------------------------------------------------------------------------------------


def test_statements_name_the_accountant_and_know_aliases():
    bill = ((MNIST, 20),)
    assert state(bill, DELTA, None).accountant == "selective-exact"
    for plain_name in ("pld", "rdp"):
        named = state(bill, DELTA, f"selective-{plain_name}")
        assert named == state(bill, DELTA, plain_name)
        assert named.accountant == f"selective-{plain_name}"
    exact = state(bill, DELTA, "selective-exact").epsilon
    assert exact <= min(state(bill, DELTA, name).epsilon for name in ("pld", "rdp"))
    assert not any("paper" in name for name in ACCOUNTANTS)


def test_a_ledger_with_selected_releases_survives_json():
    ledger = Ledger(Budget(1.0, DELTA))
    ledger.charge(MNIST, "training", count=20)
    ledger.charge(SampledGaussian(1.0, 30.0), "normalisation")
    again = Ledger.from_json(ledger.to_json())
    assert again.to_json() == ledger.to_json()
    assert again.entries[0].charge == MNIST
    assert again.statement(DELTA) == ledger.statement(DELTA)
    assert ledger.accountants == ("selective-exact", "selective-pld", "selective-rdp")


def test_refusals():
    two = ((MNIST, 3), (charge(beta=0.0), 3))
    with pytest.raises(AccountingError, match="one kind of selected release"):
        state(two, DELTA, "selective-exact")
    assert state(two, DELTA, None).accountant in ("selective-pld", "selective-rdp")
    with pytest.raises(AccountingError, match="none"):
        state(((SampledGaussian(0.1, 1.0), 1),), DELTA, "selective-exact")
    with pytest.raises(AccountingError, match="privacy-loss distribution"):
        state(((MNIST, 3), (NonPrivate("test"), 1)), DELTA, "selective-exact")
    with pytest.raises(OptionError, match="beta"):
        charge(beta=-9.0, valid_noise=0.5)
    for field in ({"rate": 0.0}, {"multiplier": -1.0}, {"valid_rate": 2.0}, {"valid_noise": 0.0}):
        with pytest.raises(OptionError, match=next(iter(field))):
            charge(**field)
    with pytest.raises(OptionError, match="trials"):
        SelectiveGaussian(0.1, 1.0, 0.1, 1.0, 0.0, 0)


def test_failures_are_paid_from_delta():
    low, _ = MNIST.passing
    assert MNIST.failure == pytest.approx((1 - low) ** MNIST.trials, rel=1e-9)
    assert MNIST.failure < 1e-30 <= (1 - low) ** (MNIST.trials - 2)
    count, trials = 10, math.ceil(math.log(1e-8) / math.log(1 - low))
    few = replace(MNIST, trials=trials)
    epsilon = state(((few, count),), DELTA, "rdp").epsilon
    spent = (1 + math.exp(epsilon)) * count * few.failure
    assert spent < DELTA
    assert rdp_epsilon(((few, count),), DELTA - spent) <= epsilon * (1 + 1e-12)
    assert epsilon > rdp_epsilon(((few, count),), DELTA)
    once = SelectiveGaussian(0.01, 2.0, 0.01, 1.3, -1.0, 1)
    assert math.isinf(state(((once, 1),), DELTA, None).epsilon)


def test_adaptive_charges_leave_only_the_filter():
    ledger = Ledger(Budget(2.0, DELTA), filter_order=8.0)
    ledger.charge(MNIST, "training", count=5, adaptive=True)
    assert ledger.accountants == ("filter",)
    statement = ledger.statement(DELTA)
    assert statement.accountant == "filter"
    assert statement.epsilon == 2.0
    divergence = 5 * MNIST.rdp((8.0,))[0]
    known = rdp_to_epsilon(8.0, divergence, DELTA)
    assert known < ledger.epsilon_with((), "filter") < known + 1e-3
    with pytest.raises(AccountingError, match="filter"):
        ledger.statement(DELTA, "selective-exact")
