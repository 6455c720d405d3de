"""Choices by noisy scores: their law, their privacy, and what a sampled one costs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from reticent.coins import Coins
from reticent.errors import OptionError
from reticent.privacy import Budget, Charge, Ledger, SampledPure, Sensitive, noisy_min
from reticent.privacy.accountants import ORDERS, pld_epsilon, rdp_epsilon

CHARGES = [
    SampledPure(rate, epsilon)
    for rate in (1e-4, 0.05, 0.43, 0.999, 1.0)
    for epsilon in (1e-3, 0.1, 1.0, 8.0, 60.0)
]


def pair(charge):
    """The dominating pair: with the record, and without it."""
    p = 1 / (1 + math.exp(-charge.epsilon))
    without = np.array([math.exp(-charge.epsilon) * p, p])
    return (1 - charge.rate) * without + charge.rate * without[::-1], without


@pytest.mark.parametrize("charge", CHARGES, ids=str)
def test_the_renyi_curve_is_the_larger_direction_and_never_below(charge):
    mp = pytest.importorskip("mpmath").mp
    orders = (1.1, 1.5, 2.0, 7.3, 32.0, 256.0, 1024.0)
    with mp.workdps(60):
        q, e = mp.mpf(charge.rate), mp.mpf(charge.epsilon)
        p = 1 / (1 + mp.exp(-e))
        without = (1 - p, p)
        with_it = tuple((1 - q) * a + q * b for a, b in zip(without, without[::-1], strict=True))
        exact = [
            float(
                max(
                    mp.log(sum(a**o * b ** (1 - o) for a, b in zip(x, y, strict=True)))
                    for x, y in ((with_it, without), (without, with_it))
                )
                / (mp.mpf(o) - 1)
            )
            for o in map(mp.mpf, orders)
        ]
    curve = charge.rdp(orders)
    assert all(curve >= np.array(exact))
    # the slack for rounding shows only where the divergence itself is that small
    assert curve == pytest.approx(exact, rel=1e-6, abs=2e-12)


@pytest.mark.parametrize("charge", [c for c in CHARGES if c.epsilon <= 8], ids=str)
def test_the_distribution_has_the_closed_form_delta(charge):
    """δ(t) = Σ (with − e^t·without)₊ in one direction, and the reverse in the other."""
    interval = charge.epsilon / 2000
    found = charge.pld(interval, 1)
    with_it, without = pair(charge)
    for share in (-0.5, 0.0, 0.2, 0.5, 0.9, 1.1):
        t = share * charge.epsilon
        exact = max(
            np.maximum(a - math.exp(t) * b, 0).sum()
            for a, b in ((with_it, without), (without, with_it))
        )
        later = max(
            np.maximum(a - math.exp(t - interval) * b, 0).sum()
            for a, b in ((with_it, without), (without, with_it))
        )
        delta = found.get_delta_for_epsilon(t)
        assert exact - 1e-12 <= delta <= later + 1e-12


def test_many_choices_compose_like_their_laws():
    """The exact δ of twenty randomised responses, by counting, lies under both accountants."""
    charge, count, delta = SampledPure(0.3, 0.4), 20, 1e-4
    with_it, without = pair(charge)
    ratios = [
        (math.comb(count, j), with_it[0] ** j * with_it[1] ** (count - j), j) for j in range(21)
    ]

    def exact(epsilon):
        one = two = 0.0
        for ways, a, j in ratios:
            b = without[0] ** j * without[1] ** (count - j)
            one += ways * max(a - math.exp(epsilon) * b, 0)
            two += ways * max(b - math.exp(epsilon) * a, 0)
        return max(one, two)

    by_pld, by_rdp = (by(((charge, count),), delta) for by in (pld_epsilon, rdp_epsilon))
    assert exact(by_pld) <= delta <= exact(by_pld * 0.999)
    assert by_pld < by_rdp < 1.3 * by_pld


def test_it_is_a_charge_like_others():
    charge = SampledPure(0.25, 0.5)
    assert Charge.from_json(charge.to_json()) == charge
    assert charge.covers(SampledPure(0.2, 0.4))
    assert not charge.covers(SampledPure(0.2, 0.6))
    assert not charge.covers(SampledPure(0.3, 0.4))
    for smaller in (SampledPure(0.2, 0.5), SampledPure(0.25, 0.4)):
        assert all(smaller.rdp(ORDERS) <= charge.rdp(ORDERS))
    ledger = Ledger(Budget(3, 1e-5))
    ledger.charge(charge, "choice", count=10)
    assert Ledger.from_json(ledger.to_json()).epsilon(1e-5) == ledger.epsilon(1e-5) < 3
    for rate, epsilon in ((0, 1), (1.5, 1), (0.5, 0), (0.5, -1), (0.5, 101), (0.5, math.nan)):
        with pytest.raises(OptionError, match=r"(rate|epsilon) = "):
            SampledPure(rate, epsilon)


# -- the choice itself ------------------------------------------------------------------------


def probabilities(scores, scale):
    """P[j has the smallest score − noise], by integrating over j's own noise."""

    def winning(j):
        def density(x):
            value = math.exp(-x / scale) / scale
            for k, other in enumerate(scores):
                if k != j:
                    value *= 1 - math.exp(-max(x - scores[j] + other, 0) / scale)
            return value

        kinks = sorted({max(scores[j] - other, 0.0) for other in scores})
        ends = [*kinks, max(kinks) + 60 * scale]
        return sum(
            quad(density, a, b, epsabs=1e-13, epsrel=1e-12, limit=200)[0]
            for a, b in zip([0.0, *ends], ends, strict=False)
            if b > a
        )

    return np.array([winning(j) for j in range(len(scores))])


def test_the_law_of_the_choice():
    """Counts of 20,000 choices against the exact law.

    A count is binomial; Hoeffding's bound at deviation t has probability 2·exp(−2·N·t²) for each of
    four candidates: 0.0205 makes the false-alarm probability of the test at most 4e-7.
    """
    scores, bound, epsilon, draws = [3.0, 3.4, 4.0, 6.0], 2.0, 1.5, 20_000
    exact = probabilities(scores, bound / epsilon)
    assert exact.sum() == pytest.approx(1, abs=1e-10)
    assert exact.min() > 0.01
    coins = Coins.from_seed(11)
    sensitive = Sensitive(torch.tensor(scores), bound)
    counts = np.zeros(4)
    for number in range(draws):
        counts[noisy_min(sensitive, epsilon, coins, "choice", number)] += 1
    assert 8 * math.exp(-2 * draws * 0.0205**2) < 1e-6
    assert np.abs(counts / draws - exact).max() < 0.0205


def test_no_record_shifts_the_choice_by_more_than_epsilon():
    generator = np.random.default_rng(0)
    worst = 0.0
    for trial in range(60):
        m = int(generator.integers(2, 6))
        epsilon, bound = float(generator.uniform(0.1, 3)), float(generator.uniform(0.5, 2))
        scores = generator.uniform(0, 4, m)
        # extremes too: the record counts fully for some and not at all for others
        added = bound * (generator.integers(0, 2, m) if trial % 2 else generator.uniform(0, 1, m))
        one = probabilities(list(scores), bound / epsilon)
        two = probabilities(list(scores + added), bound / epsilon)
        shift = np.abs(np.log(one / two)).max()
        assert shift <= epsilon * (1 + 1e-6)
        worst = max(worst, shift / epsilon)
    assert worst > 0.9  # the bound is reached: no smaller noise would do


def test_less_noise_would_break_the_promise():
    """Half the scale doubles the shift: the proof's constant is the right one."""
    one = probabilities([0.0, 0.0, 5.0], 0.5)
    two = probabilities([1.0, 0.0, 5.0], 0.5)
    assert np.abs(np.log(one / two)).max() > 1.0 + 0.2


def test_what_a_choice_refuses_and_extreme_scores():
    coins = Coins.from_seed(0)
    with pytest.raises(OptionError, match="epsilon = 0"):
        noisy_min(Sensitive(torch.zeros(3), 1.0), 0, coins, "choice", 0)
    with pytest.raises(OptionError, match="sensitivity = 0"):
        noisy_min(Sensitive(torch.zeros(3), 0.0), 1, coins, "choice", 0)
    far = Sensitive(torch.tensor([1e9, 0.0, 1e9]), 1.0)
    assert {noisy_min(far, 1.0, coins, "choice", i) for i in range(50)} == {1}
