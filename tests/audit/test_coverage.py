"""Which noise a list of charges pays for."""

from __future__ import annotations

from collections import Counter

import pytest

from reticent.audit.coverage import Prices
from reticent.privacy import NonPrivate, SampledGaussian, SampledPure, SelectiveGaussian


def prices(*charges):
    return Prices.of((charge, 1) for charge in charges)


@pytest.mark.parametrize(
    ("paid", "used", "fine"),
    [
        ([2.0], [2.0], True),
        ([2.0], [2.5], True),
        ([2.0], [1.9], False),
        ([2.0], [2.0, 2.0], False),
        ([2.0, 3.0], [3.0, 2.0], True),
        ([2.0, 3.0], [2.0, 2.0], False),
        ([2.0], [2 * 2**0.5, 2 * 2**0.5], True),  # two halves of one release
        ([2.0], [2 * 2**0.5, 2.8], False),
        ([], [1e6], False),
        ([2.0], [0.0], False),
        ([2.0], [], True),
    ],
)
def test_gaussian_noise(paid, used, fine):
    bought = prices(*(SampledGaussian(0.1, m) for m in paid))
    wrong, _ = bought.unpaid_noise(Counter(used))
    assert (wrong == "") == fine


def test_left_over_prices_are_noticed():
    bought = prices(SampledGaussian(0.1, 2.0))
    assert bought.unpaid_noise(Counter()) == ("", True)
    assert bought.unpaid_noise(Counter([2.0])) == ("", False)


def test_a_selected_release_pays_for_every_trial():
    bought = prices(SelectiveGaussian(0.1, 2.0, 0.2, 1.3, -1.0, 50))
    assert bought.unpaid_noise(Counter([2.0, 1.3] * 9))[0] == ""
    assert bought.unpaid_noise(Counter([1.0]))[0] != ""
    assert bought.unpaid_rate(0.2) == ""
    assert bought.unpaid_rate(0.3) != ""


def test_rates():
    bought = prices(SampledGaussian(0.1, 2.0), SampledPure(0.5, 1.0))
    assert bought.unpaid_rate(0.1) == bought.unpaid_rate(0.5) == bought.unpaid_rate(0.05) == ""
    assert "0.2" in bought.unpaid_rate(0.2)
    assert bought.unpaid_rate(0.6) != ""
    assert prices().unpaid_rate(0.1) != ""


def test_choices():
    bought = prices(SampledPure(0.5, 1.0))
    assert bought.unpaid_choices(Counter([1.0])) == bought.unpaid_choices(Counter([0.5])) == ""
    assert bought.unpaid_choices(Counter([1.1])) != ""
    assert bought.unpaid_choices(Counter([1.0, 1.0])) != ""
    assert bought.unpaid_choices(Counter()) == ""


def test_no_guarantee_is_nothing_to_compare():
    assert prices(NonPrivate("no noise")).free
