"""What several models cost together."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.special import ndtr

from reticent.comparison.spending import Group, Spent, total
from reticent.privacy import Budget, Ledger, SampledGaussian

DELTA = 1e-5


def exact_epsilon(mu, delta=DELTA):
    """Of one Gaussian release with sensitivity/σ = μ (Balle and Wang 2018, Theorem 8)."""

    def excess(epsilon):
        return (
            ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu) - delta
        )

    return brentq(excess, 1e-9, 100)


def paid(steps=25, noise=20.0, epsilon=4.0, delta=DELTA):
    ledger = Ledger(Budget(epsilon, delta))
    ledger.charge(SampledGaussian(1.0, noise), "training", count=steps)
    return Spent("dpsgd", Budget(epsilon, delta), ledger.to_json())


def filtered(epsilon=2.0):
    budget = Budget(epsilon, DELTA)
    ledger = Ledger(budget, filter_order=8.0)
    ledger.charge(SampledGaussian(1.0, 30.0), "training", adaptive=True)
    return Spent("dpis", budget, ledger.to_json())


def test_models_of_one_plan_are_composed():
    """25 releases of σ = 20 have μ = 1/4; four such models, μ = 1/2."""
    found = total([Group((paid(),) * 4)])
    assert found.epsilon == pytest.approx(exact_epsilon(0.5), rel=1e-3)
    assert found.epsilon >= exact_epsilon(0.5)
    assert found.added == pytest.approx(4 * exact_epsilon(0.25), rel=1e-3)
    assert (found.delta, found.models, found.unfinished) == (DELTA, 4, 0)
    alone = total([Group((paid(),))])
    assert alone.epsilon == pytest.approx(exact_epsilon(0.25), rel=1e-3)


def test_later_plans_are_added():
    """Who asks for more may have seen what there was."""
    found = total([Group((paid(), paid())), Group((paid(),))])
    first = total([Group((paid(), paid()))])
    assert found.epsilon == pytest.approx(first.epsilon + exact_epsilon(0.25), rel=1e-3)
    assert found.delta == pytest.approx(2 * DELTA)


def test_a_plan_that_was_not_finished_is_added_up():
    found = total([Group((paid(), paid()), whole=False)])
    assert found.epsilon == pytest.approx(2 * exact_epsilon(0.25), rel=1e-3)
    assert found.delta == pytest.approx(2 * DELTA)


def test_what_has_no_result_counts_with_its_budget():
    found = total([Group((paid(), Spent("dpsgd", Budget(4.0, 1e-6))), whole=False)])
    assert found.epsilon == pytest.approx(exact_epsilon(0.25) + 4.0, rel=1e-3)
    assert found.delta == pytest.approx(DELTA + 1e-6)
    assert (found.models, found.unfinished) == (2, 1)


def test_a_filter_counts_with_its_pledge():
    found = total([Group((paid(), paid(), filtered(2.0)))])
    joint = total([Group((paid(), paid()))])
    assert found.epsilon == pytest.approx(joint.epsilon + 2.0)
    assert found.delta == pytest.approx(2 * DELTA)


def test_one_model_without_an_epsilon_and_all_have_none():
    found = total([Group((paid(), Spent("sgd", None, {}), Spent("sgd", None)))])
    assert found.unbounded == ("sgd",)
    assert (found.models, found.unfinished) == (1, 0)
    told = found.to_json()
    assert told["epsilon"] is None
    assert told["epsilon_of_private_models"] == pytest.approx(exact_epsilon(0.25), rel=1e-3)
    bounded = total([Group((paid(),))]).to_json()
    assert bounded["epsilon"] == bounded["epsilon_of_private_models"]


def test_nothing_costs_nothing():
    found = total([])
    assert (found.epsilon, found.delta, found.models, found.unbounded) == (0, 0, 0, ())


def test_different_deltas_take_the_larger():
    found = total([Group((paid(delta=1e-6), paid(delta=1e-5)))])
    assert found.delta == 1e-5
    assert found.epsilon == pytest.approx(exact_epsilon(math.sqrt(2) / 4), rel=1e-3)
