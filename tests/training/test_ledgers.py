"""What a training says of its ledger on the way, and of one that others have written in."""

import math

from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

import reticent as rt

from .problem import BUDGET, INPUTS, TARGETS, N, model, options


def test_a_second_training_in_a_ledger_says_what_its_epsilon_takes_for_granted():
    ledger = rt.Ledger(BUDGET)
    rt.features.standardise(rt.data.load("digits"), ledger=ledger, n=1437, noise=300.0)
    given = options(method=rt.DPSGD(batch=30, clip=1.0, noise=9.0), steps=2, ledger=ledger)
    rt.train(model(), (INPUTS, TARGETS), **given)  # statistics are planned with the run
    assert not any("other trainings" in note for note in ledger.notes)
    result = rt.train(model(), (INPUTS, TARGETS), **{**given, "coins": rt.Coins.from_seed(6)})
    assert any("fixed before their results were seen" in note for note in result.ledger.notes)


def test_a_training_says_what_has_been_paid_for_so_far():
    training = rt.run(model(), (INPUTS, TARGETS), **options(steps=5))
    assert training.epsilon == 0.0
    for release in training:
        accountant = PLDAccountant()
        event = PoissonSampledDpEvent(30 / N, GaussianDpEvent(2.0))
        exact = accountant.compose(event, release.step).get_epsilon(BUDGET.delta)
        assert exact * (1 - 1e-9) <= training.epsilon <= exact * 1.01 + 1e-3
    assert training.result().epsilon == training.epsilon <= BUDGET.epsilon
    unpaid = options(method=rt.DPSGD(batch=30, noise=0), budget=None)
    assert math.isinf(rt.run(model(), (INPUTS, TARGETS), **unpaid).epsilon)
