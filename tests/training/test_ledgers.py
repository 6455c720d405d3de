"""What a training says of its ledger on the way, and of one that others have written in."""

import math

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

import reticent as rt
from reticent.errors import OptionError

from .problem import BUDGET, INPUTS, TARGETS, N, model, options

GIVEN = {"method": rt.DPSGD(batch=30, clip=1.0, noise=9.0), "steps": 2}


def paid(ledger, seed=5, **more):
    """A short training paid from this ledger."""
    given = options(**GIVEN, ledger=ledger, coins=rt.Coins.from_seed(seed), **more)
    return rt.train(model(), (INPUTS, TARGETS), **given)


def standardised(ledger):
    return rt.features.standardise(rt.data.load("digits"), ledger=ledger, n=1437, noise=300.0)


def test_a_second_training_needs_a_ledger_of_a_plan():
    """Composed, an adaptive pair can cost more than is stated (Rogers, Roth, Ullman, Vadhan)."""
    ledger = rt.Ledger(BUDGET)
    standardised(ledger)
    paid(ledger)  # statistics are planned with the run
    before = ledger.to_json()
    for again in (lambda: paid(ledger, 6), lambda: standardised(ledger)):
        with pytest.raises(OptionError, match=r"ledger = 'channel .*training'.*planned=True"):
            again()
        assert ledger.to_json() == before
    nets = [model(), model()]
    with pytest.raises(OptionError, match="planned=True"):
        rt.train_many(
            nets, (INPUTS, TARGETS), **options(**GIVEN, ledger=[ledger, None], coins=None)
        )
    assert ledger.to_json() == before


def prepared(ledger, seed, **more):
    given = {**GIVEN, **more, "coins": rt.Coins.from_seed(seed)}
    return rt.run(model(), (INPUTS, TARGETS), **options(**given, ledger=ledger))


def test_trainings_prepared_beforehand_are_no_plan_either(tmp_path):
    """Which of them is made, after the first, could follow from what that gave."""
    ledger = rt.Ledger(BUDGET)
    first, *menu = (prepared(ledger, seed, steps=seed) for seed in (2, 3, 4))
    first.finish()
    before = ledger.to_json()
    for other in menu:
        with pytest.raises(OptionError, match=r"ledger = 'training': was paid.*planned=True"):
            other.finish()
    assert ledger.to_json() == before

    late = rt.Ledger(BUDGET)
    waiting = prepared(late, 5)
    standardised(late)  # its noise was set for all of the budget
    with pytest.raises(OptionError, match=r"'channel means, channel variances': was paid"):
        waiting.finish()

    resumed = rt.Ledger(BUDGET)
    waiting = prepared(resumed, 6)
    next(iter(prepared(rt.Ledger(BUDGET), 7, folder=tmp_path, checkpoint_every=0)))
    prepared(resumed, 7, folder=tmp_path, resume=True).finish()
    with pytest.raises(OptionError, match="was paid from it after"):
        waiting.finish()


def test_trainings_of_a_plan_may_be_prepared_beforehand():
    ledger = rt.Ledger(BUDGET, planned=True)
    first, second = prepared(ledger, 2), prepared(ledger, 3)
    first.finish()
    result = second.finish()
    assert any("no bound otherwise" in note for note in ledger.notes)
    paid_before = [(line["purpose"], line["count"]) for line in result.conduct["paid_before"]]
    assert paid_before == [("training", 2)]
    assert sum(entry.count for entry in ledger.entries) == 4


def test_a_resumed_training_of_a_plan_says_what_to_do(tmp_path):
    saved = {"folder": tmp_path, "checkpoint_every": 0}
    begun = iter(prepared(rt.Ledger(BUDGET, planned=True), 7, steps=3, **saved))
    next(begun), next(begun)  # the second release begins with a checkpoint of the first
    ledger = rt.Ledger(BUDGET, planned=True)
    resumed = prepared(ledger, 7, steps=3, resume=True, **saved)
    ledger.charge(rt.privacy.SampledGaussian(1.0, 50.0), "something else")
    with pytest.raises(OptionError, match=r"'something else': was paid .* resume it again"):
        resumed.finish()


def test_statistics_are_released_once():
    """The noise of more could follow from those of the first."""
    ledger = rt.Ledger(BUDGET)
    standardised(ledger)
    with pytest.raises(OptionError, match=r"ledger = 'channel means, channel variances'"):
        standardised(ledger)
    copied = rt.Ledger.from_json(ledger.to_json())  # as the error says
    one, other = paid(ledger, 2), paid(copied, 3)
    assert one.epsilon == other.epsilon
    assert rt.together_epsilon([one, other], BUDGET.delta) > one.epsilon


def test_a_ledger_of_a_plan_says_what_its_epsilon_takes_for_granted(tmp_path):
    ledger = rt.Ledger(BUDGET, planned=True)
    standardised(ledger)
    paid(ledger)
    assert not any("other releases" in note for note in ledger.notes)
    result = paid(ledger, 6, folder=tmp_path)
    assert any("no bound otherwise" in note for note in result.ledger.notes)
    assert sum(entry.count for entry in ledger.entries) == 2 + 4
    kept = rt.Ledger.load(tmp_path / "run.json")
    assert kept.planned
    assert kept.to_json() == ledger.to_json()
    paid(kept, 7)  # read back, it goes on being one
    assert "planned" not in rt.Ledger(BUDGET).to_json()


def test_a_plan_is_a_plan_or_none():
    with pytest.raises(OptionError, match="planned = 'yes': must be true or false"):
        rt.Ledger(BUDGET, planned="yes")
    with pytest.raises(AttributeError):
        rt.Ledger(BUDGET).planned = True  # said when it is opened, or never
    with pytest.raises(OptionError, match="ledger = 'mine': must be a Ledger"):
        paid("mine")
    with pytest.raises(rt.AccountingError, match="planned = 1: must be true or false"):
        rt.Ledger.from_json({**rt.Ledger(BUDGET).to_json(), "planned": 1})


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
