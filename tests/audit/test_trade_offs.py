"""Trade-off functions against their definitions and the tests that attain them."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from reticent.audit.trade_offs import (
    Gaussian,
    GaussianTradeOff,
    Lines,
    PureApproximate,
    ScaledLedger,
    gaussian_epsilon,
)
from reticent.errors import AccountingError, OptionError
from reticent.privacy import (
    Budget,
    Ledger,
    NonPrivate,
    SampledGaussian,
    SampledPure,
    SelectiveGaussian,
)

PROBABILITIES = [0.0, 1e-12, 1e-6, 0.01, 0.3, 0.5, 0.9, 0.999, 1.0]


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 1e-3), (6.0, 0.1), (500.0, 0.0)])
def test_lines_are_those_of_approximate_privacy(epsilon, delta):
    for r in PROBABILITIES:
        a = 1 - r
        steep = math.exp(min(epsilon, 300))
        wanted = max(0.0, 1 - delta - steep * a, (r - delta) / steep)
        found = Lines((epsilon,), (delta,)).needed(r)
        assert found <= wanted + 1e-300
        if epsilon < 100:
            assert found == pytest.approx(wanted, rel=1e-9, abs=1e-11)


def test_gaussian_curves_are_attained_and_symmetric():
    mu = 1.3
    curve = GaussianTradeOff(mu)
    for t in np.linspace(-6, 8, 29):
        r, next_door = norm.sf(t - mu), norm.sf(t)
        assert curve.needed(r) <= next_door
        assert curve.needed(r) == pytest.approx(next_door, rel=1e-6)
        # f is its own inverse: the complement of an event says the same
        assert curve.needed(1 - next_door) == pytest.approx(1 - r, rel=1e-6, abs=1e-12)
    assert curve.needed(0.0) == 0
    assert 1 - 1e-9 < curve.needed(1.0) <= 1


@pytest.mark.parametrize("mu", [0.05, 1.0, 5.0])
def test_epsilon_of_a_gaussian_is_that_of_other_people(mu):
    wanted = pld.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=1e-4
    ).get_epsilon_for_delta(1e-5)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(wanted, abs=2e-3)
    assert Gaussian().epsilon(mu, 1e-5) == gaussian_epsilon(mu, 1e-5)


def test_epsilon_of_a_gaussian_at_the_ends():
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_epsilon(0.01, 0.5) == 0
    assert gaussian_epsilon(1.0, 0.0) == math.inf


def test_a_ledger_of_full_batches_is_gaussian():
    family = ScaledLedger.of([(SampledGaussian(1.0, 4.0), 9)])
    for factor in (0.5, 1.0, 2.0):
        found, wanted = family.at(factor), GaussianTradeOff(factor * 3 / 4)
        for r in (1e-6, 1e-3, 0.1, 0.5, 0.9, 0.999):
            assert found.needed(r) <= wanted.needed(r) * (1 + 1e-9)
            assert found.needed(r) == pytest.approx(wanted.needed(r), rel=2e-2)


def test_a_ledger_of_sampled_releases_is_attained_by_the_likelihood_test():
    rate, noise = 0.3, 0.8
    curve = ScaledLedger.of([(SampledGaussian(rate, noise), 1)]).at(1.0)

    def inside(t):
        return (1 - rate) * norm.sf(t / noise) + rate * norm.sf((t - 1) / noise)

    for t in np.linspace(0.2, 3, 8):
        with_it, without = inside(t), norm.sf(t / noise)
        # rare events that tell that the record was in
        assert curve.needed(with_it) <= without
        assert curve.needed(with_it) == pytest.approx(without, rel=3e-2)
        # and the complement, in the other direction
        assert curve.needed(1 - without) <= 1 - with_it
    for t in np.linspace(-3, 3, 13):  # events that tell that it was out
        assert curve.needed(norm.cdf(t / noise)) <= 1 - inside(t)
        assert curve.needed(1 - inside(t)) <= norm.cdf(t / noise)


def test_less_noise_is_a_weaker_guarantee():
    family = ScaledLedger.of([(SampledGaussian(0.2, 1.0), 5)])
    curves = [family.at(factor) for factor in (0.5, 1.0, 2.0)]
    for r in (1e-4, 0.1, 0.5, 0.9):
        first, second, third = (curve.needed(r) for curve in curves)
        assert first > second > third


def test_factor_one_is_the_ledger():
    ledger = Ledger(Budget(8, 1e-5))
    ledger.charge(SampledGaussian(0.1, 1.5), "a", count=3)
    ledger.charge(SampledGaussian(0.1, 1.5), "b", count=2)
    ledger.charge(SampledGaussian(1.0, 9.0), "c")
    family = ScaledLedger.of(ledger)
    assert family.epsilon(1.0, 1e-5) == ledger.epsilon(1e-5)
    assert family.scaled(2.0) == ((SampledGaussian(0.1, 0.75), 5), (SampledGaussian(1.0, 4.5), 1))
    # at the ledger's own δ the curve says what the ledger states
    epsilon = ledger.epsilon(1e-5)
    line = Lines((epsilon,), (1e-5,))
    r = 3e-5
    assert family.at(1.0).needed(r) >= 0.95 * line.needed(r)


def test_selected_releases_have_a_curve_too():
    charge = SelectiveGaussian(0.2, 3.0, 0.1, 1.3, -1.0, 400)
    family = ScaledLedger.of([(charge, 2)])
    assert family.scaled(3.0)[0][0].multiplier == 1.0
    assert 0 < family.at(1.0).needed(0.5) < 0.5


def test_what_has_no_curve_is_refused():
    adaptive = Ledger(Budget(8, 1e-5), filter_order=4.0)
    adaptive.charge(SampledGaussian(0.1, 2.0), "training", adaptive=True)
    with pytest.raises(AccountingError, match="filter"):
        ScaledLedger.of(adaptive)
    for charge in (SampledPure(0.5, 0.1), NonPrivate("none")):
        with pytest.raises(AccountingError, match=charge.kind):
            ScaledLedger.of([(charge, 1)])
    with pytest.raises(OptionError, match="bill"):
        ScaledLedger.of([])
    with pytest.raises(OptionError, match="number"):
        ScaledLedger.of([(SampledGaussian(1.0, 1.0), 1)]).at(0.0)


def test_numbers_that_make_no_sense_are_refused():
    for call in (
        lambda: Gaussian().at(-1.0),
        lambda: PureApproximate(2.0),
        lambda: PureApproximate(0.1).at(-1.0),
        lambda: PureApproximate(0.1).epsilon(1.0, 0.2),
        lambda: gaussian_epsilon(1.0, -0.1),
    ):
        with pytest.raises(OptionError):
            call()
