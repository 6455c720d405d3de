"""ε against closed forms, numerical integration and dp-accounting itself."""

import math

import dp_accounting as dp
import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import PLDAccountant
from scipy import stats
from scipy.special import logsumexp

from reticent.privacy import Ledger, NonPrivate, SampledGaussian
from reticent.privacy.accountants import (
    ORDERS,
    filter_epsilon,
    pld_epsilon,
    rdp_epsilon,
    rdp_to_epsilon,
)


def one(rate, multiplier, count=1):
    return ((SampledGaussian(rate, multiplier), count),)


def test_the_published_setting():
    # the reference setting: 1770 releases of 2048 out of 60,000 at multiplier 2.15
    bill = one(2048 / 60000, 2.15, 1770)
    assert 2.97 < pld_epsilon(bill, 1e-5) < 3.01 < rdp_epsilon(bill, 1e-5) < 3.3


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
@pytest.mark.parametrize(("multiplier", "count"), [(1.0, 1), (10.0, 100), (0.5, 3), (40.0, 2500)])
def test_without_sampling_it_is_the_gaussian_mechanism(multiplier, count, delta):
    exact = gaussian_mechanism.get_epsilon_gaussian(multiplier / math.sqrt(count), delta)
    by_pld = pld_epsilon(one(1.0, multiplier, count), delta)
    assert exact <= by_pld <= exact * 1.002 + 1e-6
    assert exact <= rdp_epsilon(one(1.0, multiplier, count), delta)


@pytest.mark.parametrize("delta", [1e-5, 1e-8, 1e-10, 1e-12, 1e-13])
def test_rounding_of_the_fft_never_turns_into_a_smaller_epsilon(delta):
    # A rate of almost 1 takes the convolution path; dp-accounting alone says 7.2360 at 1e-12 for
    # this composition, where the truth is 7.2385.
    bill = one(1 - 1e-10, 100.0, 10_000)
    exact = gaussian_mechanism.get_epsilon_gaussian(1.0, delta)
    assert pld_epsilon(bill, delta) >= exact * (1 - 1e-9)
    ledger = Ledger()
    ledger.charge(*bill[0][:1], "training", count=10_000)
    assert exact * (1 - 1e-9) <= ledger.epsilon(delta) < exact * 1.1


def renyi_by_quadrature(rate, multiplier, order):
    """E_Q[l^a] - 1 = E_Q[psi(l)], psi(t) = t^a - 1 - a(t - 1) >= 0: no cancellation in the sum."""
    x = np.linspace(-14 * multiplier, order + 1 + 14 * multiplier, 400_001)
    log_l = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * multiplier**2))
    log_q = stats.norm.logpdf(x, scale=multiplier)

    def divergence(power, weight):
        # E_weight[t^power] with t of mean 1; near t = 1 the second-order series of psi
        log_t = log_l if power > 0 else -log_l
        scale = abs(power)
        grown = log_q + weight + scale * log_t
        if grown.max() > 0:
            return (logsumexp(grown) + math.log(x[1] - x[0])) / (order - 1)
        psi = np.expm1(scale * log_t) - scale * np.expm1(log_t)
        series = scale * (scale - 1) / 2 * np.expm1(log_t) ** 2
        psi = np.where(np.abs(log_t) < 1e-6, series, psi)
        return math.log1p(np.sum(np.exp(log_q + weight) * psi) * (x[1] - x[0])) / (order - 1)

    return max(divergence(order, 0.0), divergence(-order, log_l))


def test_nothing_is_claimed_below_the_rounding_of_the_fft():
    # 100 releases: δ is known to 1e-12, so ε at 1e-12 is not proved, and at 2e-12 it is asked for
    # at no more than 1e-12
    bill = one(0.01, 1.0, 100)
    assert pld_epsilon(bill, 1e-12) == math.inf
    accountant = PLDAccountant()
    accountant.compose(
        dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 100)
    )
    assert pld_epsilon(bill, 2e-12) > 1.005 * accountant.get_epsilon(2e-12)


@pytest.mark.parametrize("order", [1.5, 2.0, 4.7, 5.0, 16.0, 64.0])
@pytest.mark.parametrize(("rate", "multiplier"), [(0.01, 1.0), (0.2, 2.0), (0.0005, 0.6)])
def test_renyi_curve_against_numerical_integration(rate, multiplier, order):
    exact = renyi_by_quadrature(rate, multiplier, order)
    bound = float(SampledGaussian(rate, multiplier).rdp((order,))[0])
    assert exact * (1 - 1e-7) <= bound
    if order == int(order):
        assert bound <= exact * (1 + 1e-6)
    else:  # between whole orders a chord
        assert bound <= renyi_by_quadrature(rate, multiplier, math.ceil(order)) * (1 + 1e-6)


def test_real_orders_stay_above_the_truth_where_the_series_is_cut():
    # E[l^5.3] - 1 for rate 1e-6 and multiplier 0.5 is 6.140292e-10 (40 digits)
    bound = float(SampledGaussian(1e-6, 0.5).rdp((5.3,))[0]) * 4.3
    assert 6.140292e-10 <= bound < 6.2e-10 + 3e-13


def test_pld_agrees_with_dp_accounting_at_its_own_grid():
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.01, dp.GaussianDpEvent(1.0)), 1000)
    accountant = PLDAccountant()
    accountant.compose(event)
    assert pld_epsilon(one(0.01, 1.0, 1000), 1e-5) == pytest.approx(
        accountant.get_epsilon(1e-5), rel=2e-3
    )


@pytest.mark.parametrize(
    ("rate", "noise", "delta"), [(0.1, 1.111, 1e-3), (0.1, 0.6, 1e-5), (0.5, 3.0, 1e-6)]
)
def test_one_sampled_release_against_its_closed_form(rate, noise, delta):
    def exact(epsilon):  # of (1-q)·N(0, σ²) + q·N(1, σ²) against N(0, σ²), the worse direction
        cut = noise**2 * math.log((math.exp(epsilon) - 1 + rate) / rate) + 0.5
        absent, present = stats.norm.sf(cut / noise), stats.norm.sf((cut - 1) / noise)
        return (1 - rate) * absent + rate * present - math.exp(epsilon) * absent

    found = pld_epsilon(((SampledGaussian(rate, noise), 1),), delta)
    assert exact(found) <= delta <= exact(found * 0.9999)


def test_extremes_are_sane():
    assert pld_epsilon((), 1e-5) == rdp_epsilon((), 1e-5) == filter_epsilon((), 1e-5, 8.0) == 0.0
    for bill in (
        one(0.01, 0.5, 10_000),  # ε about 43
        one(1.0, 0.2, 10),  # about 190
        one(0.01, 0.1, 1000),  # about 1200
        one(1e-8, 1.0, 10),
        one(1.0, 1e4),
        one(0.3, 3.0, 100),
    ):
        for delta in (0.5, 1e-5, 1e-12):
            bounds = (pld_epsilon(bill, delta), rdp_epsilon(bill, delta))
            assert all(bound >= 0 and not math.isnan(bound) for bound in bounds)
            assert math.isfinite(min(bounds))
    assert 43 < pld_epsilon(one(0.01, 0.5, 10_000), 1e-5) < 44


def test_vanishing_divergence_is_never_read_as_free():
    # dp-accounting turns a negative divergence (rounding) into ε = 0, and NaN likewise
    curve = SampledGaussian(1e-9, 1.0).rdp(ORDERS)
    assert (curve > 0).all()
    assert rdp_to_epsilon(8.0, math.nan, 1e-5) == math.inf
    assert rdp_to_epsilon(8.0, math.inf, 1e-5) == math.inf


def test_no_noise_has_no_bound():
    bill = ((NonPrivate("test"), 1), *one(0.01, 1.0, 10))
    assert pld_epsilon(bill, 1e-5) == rdp_epsilon(bill, 1e-5) == math.inf


def test_epsilon_grows_with_releases_and_rate_and_falls_with_noise_and_delta():
    def epsilon(rate=0.01, multiplier=1.0, count=100, delta=1e-5):
        return pld_epsilon(one(rate, multiplier, count), delta)

    assert epsilon() < epsilon(count=200) < epsilon(count=400)
    assert epsilon() < epsilon(rate=0.02)
    assert epsilon() > epsilon(multiplier=1.5)
    assert epsilon() > epsilon(delta=1e-3)


def test_the_filter_is_rdp_at_one_order():
    bill = one(0.01, 1.0, 500)
    assert filter_epsilon(bill, 1e-5, 9.0) >= rdp_epsilon(bill, 1e-5)
    assert min(filter_epsilon(bill, 1e-5, order) for order in ORDERS) == rdp_epsilon(bill, 1e-5)
