"""The explicit instance: its laws, and that its ε is a lower bound."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from reticent.privacy import SelectiveGaussian, trials_for
from reticent.privacy.selective_instance import instance_epsilon, laws, worst_thresholds
from reticent.privacy.selective_paper import paper_epsilon

MNIST = SelectiveGaussian(1024 / 60000, 2.0, 256 / 60000, 1.3, -1.0, trials_for(-1.0, 1.3))
STRONG = SelectiveGaussian(0.3, 1.0, 0.2, 0.6, 0.0, 200)
AT = (-1.9, 0.2, 3.6)


def density(charge, thresholds, x):
    """Unnormalised densities with the record and without it."""
    low, high = charge.passing
    a = high if x < thresholds[0] or x > thresholds[2] else low
    b = high if x > thresholds[1] else low
    base = stats.norm.pdf(x, scale=charge.multiplier)
    shifted = stats.norm.pdf(x, loc=1, scale=charge.multiplier)
    mixed = (1 - charge.rate) * base + charge.rate * shifted
    return mixed * ((1 - charge.valid_rate) * a + charge.valid_rate * b), base * a


@pytest.mark.parametrize("charge", [MNIST, STRONG])
def test_one_release_by_integration(charge):
    ends = (-14 * charge.multiplier, 1 + 14 * charge.multiplier)

    def total(function):
        return integrate.quad(function, *ends, points=[*AT, 0.0, 1.0], limit=500)[0]

    with_record = total(lambda x: density(charge, AT, x)[0])
    without = total(lambda x: density(charge, AT, x)[1])
    p, q = laws(charge, AT)
    assert p.sum() == pytest.approx(1, abs=1e-12) == pytest.approx(q.sum(), abs=1e-12)
    # the mass right of the last threshold
    above = integrate.quad(lambda x: density(charge, AT, x)[0], AT[2], ends[1])[0] / with_record
    edges = np.linspace(-8 * charge.multiplier, 1, 2)[:1]
    assert len(p) == len(q) > 6000
    assert edges[0] < AT[0]
    ratio = np.divide(p, q, out=np.zeros_like(p), where=q > 0)
    assert 0 < above < 1
    for epsilon in (0.0, 0.01, 0.3):

        def excess(x, epsilon=epsilon):
            up, down = density(charge, AT, x)
            return max(up / with_record - math.exp(epsilon) * down / without, 0.0)

        exact = total(excess)
        binned = q @ np.maximum(ratio - math.exp(epsilon), 0)
        assert binned <= exact + 1e-9
        assert binned == pytest.approx(exact, rel=1e-3, abs=1e-6)
        # at the δ of this ε, the bound stays below it
        if exact > 1e-3:
            found = instance_epsilon(charge, 1, exact, AT)
            assert epsilon - 0.01 < found
            if epsilon:
                reverse = total(
                    lambda x, e=epsilon: max(
                        density(charge, AT, x)[1] / without
                        - math.exp(e) * density(charge, AT, x)[0] / with_record,
                        0.0,
                    )
                )
                assert found <= epsilon + 1e-9 or reverse > exact


def test_two_releases_by_brute_force():
    p, q = laws(STRONG, AT, 300)
    both_p, both_q = np.outer(p, p).ravel(), np.outer(q, q).ravel()
    for epsilon in (0.2, 1.0):
        delta = np.maximum(both_p - math.exp(epsilon) * both_q, 0).sum()
        reverse = np.maximum(both_q - math.exp(epsilon) * both_p, 0).sum()
        found = instance_epsilon(STRONG, 2, max(delta, reverse), AT)
        assert epsilon * 0.98 < found <= epsilon * (1 + 1e-3) + 1e-3


def test_the_thresholds_are_better_than_others():
    rng = np.random.default_rng(0)

    def square(thresholds):
        p, q = laws(MNIST, thresholds)
        return q[q > 0] @ (p[q > 0] / q[q > 0] - 1) ** 2

    found = worst_thresholds(MNIST)
    assert found[0] < found[1] < found[2]
    best = square(found)
    for _ in range(200):
        other = np.sort(np.array(found) + rng.normal(size=3) * rng.choice([0.1, 1.0, 3.0]))
        assert square(tuple(other)) <= best * (1 + 1e-4)


def test_the_mnist_row():
    found = instance_epsilon(MNIST, 576, 1e-5)
    assert found == pytest.approx(1.1777, abs=0.001)
    assert found > 1.15 * paper_epsilon(MNIST, 576, 1e-5)


def test_nothing_leaks_where_nothing_is_selected():
    # at a δ above that of the plain mechanism no ε can be shown
    off = SelectiveGaussian(0.01, 5.0, 1e-6, 1e6, 0.0, 200)
    assert instance_epsilon(off, 1, 0.1) == 0.0
    assert instance_epsilon(off, 10, 1e-9) < 0.1
