"""The paper's own accountant reproduces the paper's numbers, and stays out of ledgers."""

import math

import pytest

from reticent.errors import ReticentError
from reticent.privacy import ACCOUNTANTS, Ledger, SelectiveGaussian, trials_for
from reticent.privacy.selective_instance import instance_epsilon
from reticent.privacy.selective_paper import paper_epsilon, paper_steps

DELTA = 1e-5


def setting(n, batch, multiplier, valid_batch, valid_noise):
    trials = trials_for(-1.0, valid_noise)
    return SelectiveGaussian(batch / n, multiplier, valid_batch / n, valid_noise, -1.0, trials)


MNIST = setting(60000, 1024, 2.0, 256, 1.3)


@pytest.mark.parametrize(
    ("charge", "epsilon", "steps"),
    [
        (MNIST, 1.0, 576),
        (setting(60000, 2048, 4.0, 256, 1.3), 1.0, 651),
        (setting(50000, 8192, 5.67, 256, 1.1), 3.0, 496),
    ],
)
def test_the_published_settings(charge, epsilon, steps):
    assert paper_steps(charge, epsilon, DELTA) == pytest.approx(steps, abs=1)
    assert paper_epsilon(charge, steps, DELTA) == pytest.approx(epsilon, abs=0.01)


def test_steps_are_the_most_within_epsilon():
    steps = paper_steps(MNIST, 0.7, DELTA)
    assert paper_epsilon(MNIST, steps, DELTA) <= 0.7 < paper_epsilon(MNIST, steps + 1, DELTA)
    assert paper_steps(MNIST, 1e-6, DELTA) == 0
    assert paper_epsilon(MNIST, 0, DELTA) == 0


def by_the_formulas(charge, count, delta, order):
    """Equations 20, 25 and 26 at one whole order."""
    total = 0.0
    phases = ((charge.rate, charge.multiplier), (charge.valid_rate, charge.valid_noise))
    for q, sigma in phases:
        moment = sum(
            math.comb(order, i)
            * (1 - q) ** (order - i)
            * q**i
            * math.exp((i * i - i) / (2 * sigma**2))
            for i in range(order + 1)
        )
        total += count / (order - 1) * math.log(moment)
    return total + math.log((order - 1) / order) - (math.log(delta) + math.log(order)) / (order - 1)


@pytest.mark.parametrize("count", [1, 100, 576])
def test_the_formulas_of_the_paper(count):
    known = min(by_the_formulas(MNIST, count, DELTA, order) for order in range(2, 40))
    found = paper_epsilon(MNIST, count, DELTA)
    # orders between whole ones may be a little better
    assert known * 0.97 <= found <= known * (1 + 1e-6)


def test_it_is_no_guarantee_and_no_accountant():
    assert paper_epsilon(MNIST, 200, DELTA) < instance_epsilon(MNIST, 200, DELTA)
    ledger = Ledger()
    ledger.charge(MNIST, "training", count=2)
    assert not any("paper" in name for name in (*ACCOUNTANTS, *ledger.accountants))
    with pytest.raises(ReticentError):
        ledger.epsilon(DELTA, "paper")
