"""Moments of the sampled Gaussian against dp-accounting, integration and known limits."""

import math

import numpy as np
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as known
from scipy.integrate import quad

from reticent.privacy import SampledGaussian
from reticent.privacy.sampled_moments import real_moments, whole_moments

WHOLE = np.array([2.0, 3.0, 7.0, 64.0, 1024.0])
REAL = np.array([1.1, 1.5, 2.7, 5.3, 9.9, 30.5])
SETTINGS = [
    (0.14, 2.0),
    (0.02, 1.1),
    (0.5, 3.0),  # some series do not end here
    (0.9, 0.6),
    (0.3, 0.05),
    (1e-6, 5.0),
    (1e-9, 1e5),
    (0.99999, 40.0),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("rate", "multiplier"), SETTINGS)
def test_they_are_dp_accountings(rate, multiplier):
    whole = whole_moments(rate, multiplier, WHOLE)
    for order, moment in zip(WHOLE, whole, strict=True):
        expected = known._compute_log_a_int(rate, multiplier, int(order))
        assert moment == pytest.approx(expected, rel=1e-13, abs=1e-15 * order)
    for order, moment in zip(REAL, real_moments(rate, multiplier, REAL), strict=True):
        expected = known._compute_log_a_frac(rate, multiplier, order)
        assert moment == pytest.approx(expected, rel=1e-13, abs=2e-15)


@pytest.mark.parametrize(("rate", "multiplier"), [(0.14, 2.0), (0.5, 0.8), (0.02, 1.1)])
def test_they_are_integrals(rate, multiplier):
    def moment(order):
        def term(x):
            ratio = 1 - rate + rate * math.exp((2 * x - 1) / (2 * multiplier**2))
            density = math.exp(-((x / multiplier) ** 2) / 2) / math.sqrt(2 * math.pi) / multiplier
            return ratio**order * density

        ends = -12 * multiplier, order + 12 * multiplier
        return math.log(quad(term, *ends, points=[0, order], epsabs=0, epsrel=1e-11, limit=400)[0])

    whole, real = WHOLE[:3], REAL[:4]
    assert whole_moments(rate, multiplier, whole) == pytest.approx([moment(o) for o in whole])
    # terms of either sign are added as if positive: more at small orders, and never less
    for order, found in zip(real, real_moments(rate, multiplier, real), strict=True):
        assert moment(order) - 1e-10 <= found


def test_a_series_may_take_long_or_not_end():
    rates = np.linspace(0.45, 0.55, 5)
    found = [real_moments(rate, 3.0, REAL) for rate in rates]
    expected = [[known._compute_log_a_frac(rate, 3.0, o) for o in REAL] for rate in rates]
    assert np.array_equal(np.isinf(found), np.isinf(expected))
    assert np.isinf(found).any()
    assert np.isfinite(found).any()


def test_one_order_is_what_it_is_among_many():
    together = whole_moments(0.1, 1.5, np.array([2.0, 9.0, 5000.0]))
    alone = [whole_moments(0.1, 1.5, np.array([order]))[0] for order in (2.0, 9.0, 5000.0)]
    assert together == pytest.approx(alone, rel=1e-14)
    among = real_moments(0.5, 3.0, REAL)
    assert among.tolist() == [real_moments(0.5, 3.0, REAL[[i]])[0] for i in range(len(REAL))]


def test_beyond_floating_point_they_are_infinite():
    assert np.isinf(whole_moments(0.1, 1e-200, np.array([2.0]))).all()
    assert np.isinf(real_moments(0.1, 1e-200, np.array([3.5]))).all()
    assert (SampledGaussian(0.1, 1e-9).rdp((2.0, 3.5)) > 1e17).all()
    assert len(SampledGaussian(0.1, 1.0).rdp(())) == 0
    assert np.isfinite(SampledGaussian(0.1, 1.0).rdp((1.5, 2.0))).all()
