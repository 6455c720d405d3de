"""What DPIS refuses, and what it takes from its surroundings."""

import math

import pytest

import reticent as rt
from reticent.errors import BudgetError, OptionError

from .dpis_problem import BUDGET, QUIET, started


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"batch": 0}, "batch"),
        ({"clip": 0.0}, "clip"),
        ({"clip": math.inf}, "clip"),
        ({"k": 0.5}, "k"),
        ({"least": 0.0}, "least"),
        ({"least": 1.5}, "least"),
        ({"divider": 1.2}, "divider"),
        ({"sum_noise": 0.0}, "sum_noise"),
        ({"sum_rate": 1.5}, "sum_rate"),
        ({"count_noise": -1.0}, "count_noise"),
        ({"quantile": math.nan}, "quantile"),
        ({"outer": -1.0}, "outer"),
    ],
)
def test_options_are_checked(changes, said):
    with pytest.raises(OptionError, match=said):
        rt.DPIS(**{"batch": 2, **changes})


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(OptionError, match="k = 5 times it exceeds"):
        started(rt.DPIS(batch=2, clip=1.0))
    with pytest.raises(OptionError, match="noise"):
        started(rt.DPIS(batch=1, k=2.0, noise=1.0))
    with pytest.raises(OptionError, match="steps"):
        started(rt.DPIS(batch=1, k=2.0), steps=None)
    with pytest.raises(OptionError, match="budget"):
        started(rt.DPIS(batch=1, k=2.0), budget=None)
    with pytest.raises(BudgetError, match=r"sum_noise = 0\.1"):
        started(rt.DPIS(batch=1, k=2.0, sum_noise=0.1), budget=rt.Budget(0.1, 1e-5))


def test_a_ledger_with_a_filter_keeps_its_order():
    method = rt.DPIS(batch=1, k=2.0, **QUIET)
    own = started(method)
    ledger = rt.Ledger(BUDGET, filter_order=2.5)
    training = started(method, ledger=ledger)
    assert training.method.noise > own.method.noise  # an order that does not suit
    result = training.finish()
    assert (result.ledger.filter_order, result.epsilon) == (2.5, BUDGET.epsilon)
    assert result.ledger.divergence_left() >= 0


def test_without_noise_on_the_count_the_nominal_size_is_used():
    result = started(rt.DPIS(batch=1, k=2.0, sum_noise=50.0, count_noise=0.0), n=7).finish()
    assert result.released["size"] == 7
    assert not [e for e in result.ledger.entries if e.purpose == "number of records"]
