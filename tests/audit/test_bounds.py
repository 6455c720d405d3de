"""Lower bounds against binomial tails, linear programs and mechanisms whose law is known."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import ndtr
from scipy.stats import binom

from reticent.audit.bounds import (
    Outcome,
    approximate_bound,
    approximate_p_value,
    lower_bound,
    p_value,
    refutes,
)
from reticent.audit.trade_offs import Gaussian, GaussianTradeOff, Lines, PureApproximate
from reticent.errors import OptionError


def exact_tail(guesses, correct, right):
    """P[Bin >= correct] in rational arithmetic; `right` is a fraction."""
    return float(
        sum(
            math.comb(guesses, k) * right**k * (1 - right) ** (guesses - k)
            for k in range(correct, guesses + 1)
        )
    )


@pytest.mark.parametrize("correct", [0, 1, 20, 30, 39, 40])
def test_without_delta_the_closed_form_is_the_binomial_tail(correct):
    for share in (Fraction(1, 2), Fraction(3, 4), Fraction(9, 10)):
        epsilon = math.log(share / (1 - share))
        found = approximate_p_value(Outcome(70, 40, correct), epsilon, 0.0)
        assert found == pytest.approx(exact_tail(40, correct, share), rel=1e-10)


def test_the_far_tail_is_exact():
    found = approximate_p_value(Outcome(1000, 1000, 1000), math.log(3), 0.0)
    assert math.log(found) == pytest.approx(1000 * math.log(0.75), rel=1e-12)


def test_with_delta_the_closed_form_is_that_of_the_theorem():
    for m, r, v, epsilon, delta in ((50, 20, 15, 0.5, 1e-3), (30, 30, 30, 2.0, 1e-2)):
        q = 1 / (1 + math.exp(-epsilon))
        alpha = max(sum(binom.pmf(k, r, q) for k in range(v - i, v)) / i for i in range(1, v + 1))
        wanted = binom.sf(v - 1, r, q) + 2 * m * delta * alpha
        assert approximate_p_value(Outcome(m, r, v), epsilon, delta) == pytest.approx(wanted)


def test_the_published_example():
    # Steinke et al. 2023, Appendix D
    bound = approximate_bound([Outcome(1000, 100, 75)], 1e-4, confidence=0.95)
    assert bound.epsilon == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
def test_randomised_response_stays_within_the_f_dp_bound(epsilon):
    guesses = 60
    right = 1 / (1 + math.exp(-epsilon))
    for m in (60, 200):
        for correct in range(0, guesses + 1, 3):
            tail = binom.sf(correct - 1, guesses, right)
            found = p_value(Lines((epsilon,), (0.0,)), Outcome(m, guesses, correct))
            assert found >= tail * (1 - 1e-9)
            if tail < 1e-3:  # and it is no looser than by a little
                assert found < 1.5 * tail


def test_a_gaussian_mechanism_stays_within_the_f_dp_bound():
    mu, guesses = 1.0, 80
    for correct in range(0, guesses + 1, 4):
        tail = binom.sf(correct - 1, guesses, ndtr(mu / 2))
        assert p_value(GaussianTradeOff(mu), Outcome(guesses, guesses, correct)) >= tail


@pytest.mark.parametrize("delta", [0.01, 0.2])
def test_a_mechanism_that_rarely_tells_all_stays_within_both_bounds(delta):
    # (0, δ)-DP: with probability δ all coins are shown, else none; the guesses fail together
    m = 20
    for correct in range(m + 1):
        tail = delta + (1 - delta) * binom.sf(correct - 1, m, 0.5)
        outcome = Outcome(m, m, correct)
        assert p_value(Lines((0.0,), (delta,)), outcome) >= tail * (1 - 1e-9)
        assert approximate_p_value(outcome, 0.0, delta) >= tail * (1 - 1e-9)


def most_by_linear_program(m, c, v, epsilons, deltas):
    """The largest P[W >= v] of any law of W that satisfies the constraints, tail by tail."""
    rows, limits = [], []
    for k in range(1, c + 1):
        r = np.array([j / m if j >= k else 0.0 for j in range(c + 1)])
        h = np.array([(c - j) / m if j >= k - 1 else 0.0 for j in range(c + 1)])
        for epsilon, delta in zip(epsilons, deltas, strict=True):
            # 1 − f(x) is the least of e^ε·x + δ and 1 − e^−ε·(1 − δ − x)
            rows += [r - math.exp(epsilon) * h, r - math.exp(-epsilon) * h]
            limits += [delta, 1 - math.exp(-epsilon) * (1 - delta)]
    aim = [-1.0 if j >= v else 0.0 for j in range(c + 1)]
    found = linprog(aim, np.array(rows), limits, np.ones((1, c + 1)), [1.0], bounds=(0, 1))
    assert found.success
    return -found.fun


@pytest.mark.parametrize(("m", "c"), [(1, 1), (4, 4), (8, 5), (12, 12), (30, 9)])
@pytest.mark.parametrize(
    ("epsilons", "deltas"),
    [((1.0,), (0.0,)), ((0.5,), (0.05,)), ((0.0, 0.7, 1.5, 3.0), (0.5, 0.3, 0.1, 0.01))],
)
def test_the_recursion_solves_the_linear_program(m, c, epsilons, deltas):
    for v in range(1, c + 1):
        wanted = most_by_linear_program(m, c, v, epsilons, deltas)
        found = p_value(Lines(epsilons, deltas), Outcome(m, c, v))
        assert found == pytest.approx(wanted, rel=1e-6)


def test_coverage_on_gaussian_mechanisms():
    # 300 audits of m independent Gaussians at confidence 0.9: more than 60 wrong bounds have
    # probability P[Bin(300, 0.1) > 60] < 1e-6, if the bound holds
    assert binom.sf(60, 300, 0.1) < 1e-6
    generator, wrong, m, mu = np.random.default_rng(5), 0, 300, 1.2
    for _ in range(300):
        coins = generator.random(m) < 0.5
        order = np.argsort(mu * coins + generator.standard_normal(m))
        correct = int((~coins[order[:20]]).sum() + coins[order[-20:]].sum())
        bound = lower_bound(Gaussian(), [Outcome(m, 40, correct)], 1e-5, confidence=0.9)
        wrong += bound.number is not None and bound.number > mu
    assert wrong <= 60


def test_coverage_on_randomised_response_with_all_guesses():
    # the bound is exact there: of 400 audits at confidence 0.5, about half are wrong, and more
    # than 250 with probability below 1e-6
    assert binom.sf(250, 400, 0.5) < 1e-6
    generator, wrong, m = np.random.default_rng(6), 0, 200
    for correct in generator.binomial(m, math.e / (1 + math.e), 400):
        bound = approximate_bound([Outcome(m, m, int(correct))], 0.0, confidence=0.5)
        wrong += bound.epsilon > 1.0
    assert 100 < wrong <= 250  # a bound that never is wrong would be no good either


def test_a_bound_is_refuted_itself_and_a_little_more_is_not():
    outcome, level = Outcome(500, 100, 85), 0.05
    for family in (Gaussian(), PureApproximate(1e-5)):
        bound = lower_bound(family, [outcome], 1e-5, confidence=1 - level)
        assert refutes(family.at(bound.number), outcome, level)
        assert not refutes(family.at(bound.number * 1.002), outcome, level)


def test_several_numbers_of_guesses_share_the_error_probability():
    good, useless = Outcome(500, 100, 85), Outcome(500, 500, 250)
    for delta in (0.0, 1e-5):
        halved = approximate_bound([good], delta, confidence=0.975)
        both = approximate_bound([useless, good], delta, confidence=0.95)
        assert both.epsilon == halved.epsilon
    halved = lower_bound(Gaussian(), [good], 1e-5, confidence=0.975)
    assert lower_bound(Gaussian(), [useless, good], 1e-5, confidence=0.95).number == halved.number


def test_nothing_is_claimed_of_chance():
    outcome = Outcome(1000, 1000, 500)
    assert approximate_bound([outcome], 1e-5).epsilon == 0
    bound = lower_bound(Gaussian(), [outcome], 1e-5)
    assert (bound.epsilon, bound.number) == (0, None)


def test_many_canaries():
    m = 100_000
    truth = 2.0
    right = round(m / (1 + math.exp(-truth)))
    assert 1.95 < approximate_bound([Outcome(m, m, right)], 0.0).epsilon < truth
    assert 1.95 < lower_bound(PureApproximate(0.0), [Outcome(m, m, right)], 0.0).epsilon < truth


def test_f_dp_and_closed_form_agree_without_delta():
    outcome = Outcome(2000, 400, 330)
    closed = approximate_bound([outcome], 0.0).epsilon
    recursive = lower_bound(PureApproximate(0.0), [outcome], 0.0).epsilon
    assert recursive <= closed + 1e-3
    assert recursive > 0.95 * closed


@pytest.mark.parametrize("numbers", [(0, 1, 1), (10, 11, 3), (10, 5, 6), (10, 5, -1), (10, 2.5, 1)])
def test_impossible_outcomes_are_refused(numbers):
    with pytest.raises(OptionError):
        Outcome(*numbers)


@pytest.mark.parametrize("confidence", [0, 1, -1, 2, math.nan])
def test_impossible_confidences_are_refused(confidence):
    with pytest.raises(OptionError, match="confidence"):
        lower_bound(Gaussian(), [Outcome(10, 10, 5)], 1e-5, confidence=confidence)


def test_no_outcome_is_refused():
    with pytest.raises(OptionError, match="outcomes"):
        approximate_bound([], 1e-5)
