"""The sampled Gaussian's privacy-loss distribution is the one that dp-accounting builds."""

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

from reticent.privacy.sampled_pld import sampled_gaussian_pld

SETTINGS = [
    (0.02, 1.1, 2e-4),
    (0.14, 2.0, 5e-4),
    (0.5, 0.3, 5e-3),
    (0.999, 0.1, 0.1),
    (0.9, 30.0, 1e-4),
    (1e-6, 5.0, 2e-5),
    (1e-9, 0.5, 1e-3),
    (0.2, 0.01, 100.0),  # losses of thousands
]


@pytest.mark.parametrize(("rate", "multiplier", "interval"), SETTINGS)
def test_it_is_dp_accountings(rate, multiplier, interval):
    found = sampled_gaussian_pld(rate, multiplier, interval)
    known = pld.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=interval
    )
    for side in ("_pmf_remove", "_pmf_add"):
        ours, theirs = (getattr(one, side).to_dense_pmf() for one in (found, known))
        assert ours._lower_loss == theirs._lower_loss
        # rounding of δ, divided by the interval
        assert ours._probs == pytest.approx(theirs._probs, rel=1e-9, abs=1e-15 / interval)
        assert ours._infinity_mass == pytest.approx(theirs._infinity_mass, rel=1e-6, abs=1e-30)
    for delta in (1e-3, 1e-6, 1e-10):
        expected = known.get_epsilon_for_delta(delta)
        assert found.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize(("rate", "multiplier", "interval"), SETTINGS[:3])
def test_it_is_above_the_curve_and_meets_it_on_the_lattice(rate, multiplier, interval):
    found = sampled_gaussian_pld(rate, multiplier, interval)
    for epsilon in np.arange(1, 9) * 50 * interval:
        # with the record, where the ratio passes e^ε
        edge = 0.5 + multiplier**2 * math.log1p(math.expm1(epsilon) / rate)
        beyond, shifted = norm.sf([edge / multiplier, (edge - 1) / multiplier])
        larger = (1 - rate - math.exp(epsilon)) * beyond + rate * shifted
        at = found._pmf_remove.get_delta_for_epsilon(epsilon)
        assert at == pytest.approx(larger, rel=1e-7, abs=1e-13)
        between = found._pmf_remove.get_delta_for_epsilon(epsilon - interval / 2)
        assert between >= larger
