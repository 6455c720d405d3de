"""PD-SGD's certificate against integrals, simulations and the formulas as printed."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from scipy import integrate, stats

from reticent.errors import OptionError
from reticent.methods.deniability import (
    PROBABILITIES,
    certificate,
    log_plausibility,
    pass_probability,
    plausibility,
    plausibility_bound,
    simple_bound,
    smallest_distance,
)

GRID = [
    (factor * 2 * sigma**2 * gamma, sigma, gamma)
    for sigma in (0.03, 0.5, 3.0)
    for gamma in (1e-4, 0.3, 2.0, 5.0, 60.0)
    for factor in (0.02, 0.7, 1.001, 2.0, 9.0)
]
MORE = [
    *GRID,
    # narrow intervals far out with a large γ
    *(
        (s * s * u * u, s, g)
        for s in (0.2, 4.0)
        for g, u in ((9.0, 40.0), (60.0, 90.0), (1e3, 2e3))
    ),
    *(
        (s * s * u * u, s, g)
        for s in (0.2, 4.0)
        for g in (1e-7, 1.0, 1e3)
        for u in (0.01, 3.0, 30.0)
    ),
]


def ends(d, sigma, gamma):
    a, b = math.sqrt(d) / (2 * sigma), gamma * sigma / math.sqrt(d)
    return a, b


@pytest.mark.parametrize("case", MORE)
def test_q_is_the_integral_of_the_normal_density(case):
    a, b = ends(*case)
    # the density relative to its largest value in the interval, so that tails can be compared, and
    # by the distance from the interval's middle, which may be narrow
    top = max(a - b, 0.0)

    def density(t):
        return math.exp(-((t + b) * (2 * a + t - b) if top else (a + t) ** 2) / 2)

    low, high = max(-b, -a - 40.0), min(b, top - a + 40.0)
    points = [p for p in (-a, low + 1e-3, low + 1, 8.0 - a) if low < p < high]
    told = {"points": points or None, "epsabs": 0, "epsrel": 1e-11, "limit": 500}
    mass, _ = integrate.quad(density, low, high, **told)
    expected = math.log(mass) - top * top / 2 - 0.5 * math.log(2 * math.pi)
    assert log_plausibility(*case) == pytest.approx(expected, rel=1e-10, abs=1e-10)
    assert plausibility(*case) == pytest.approx(math.exp(expected), rel=1e-8)


SIMULATED = [
    (d, sigma, gamma)
    for sigma in (0.2, 1.5)
    for gamma in (0.5, 3.0)
    for d in (0.3 * sigma**2 * gamma, 2 * sigma**2 * gamma, 5 * sigma**2 * gamma)
]


def test_q_is_how_often_real_vectors_pass():
    # Hoeffding: each of the 12 frequencies is off by more than `off` with probability 1e-6/12
    draws, dimension = 40_000, 7
    off = math.sqrt(math.log(2 * 12 / 1e-6) / (2 * draws))
    random = np.random.default_rng(3)
    for d, sigma, gamma in SIMULATED:
        seed = random.normal(size=dimension)
        away = random.normal(size=dimension)
        other = seed + math.sqrt(d) * away / np.linalg.norm(away)
        noisy = seed + sigma * random.normal(size=(draws, dimension))
        own, theirs = (
            stats.norm.logpdf(noisy - gradient, scale=sigma).sum(1) for gradient in (seed, other)
        )
        frequency = (np.abs(own - theirs) <= gamma).mean()
        assert abs(frequency - plausibility(d, sigma, gamma)) < off
        for bound in (plausibility_bound, simple_bound):
            assert bound(d, sigma, gamma) > frequency - off


@pytest.mark.parametrize("case", MORE)
def test_both_bounds_are_bounds_and_as_printed(case):
    d, sigma, gamma = case
    q, wide = plausibility(*case), 2 * sigma**2 * gamma
    if d <= wide:
        assert plausibility_bound(*case) == simple_bound(*case) == 1
        return
    assert q <= plausibility_bound(*case) <= simple_bound(*case) * (1 + 1e-12)
    if gamma > 50:
        return  # the formulas as printed overflow or cancel
    # equation 4, its constant with σ outside the root
    exponent = -(d * d + wide * wide) / (8 * d * sigma**2)
    second = (d + wide) * math.exp(-gamma / 2) / ((d + wide) ** 2 + 4 * sigma**2 * d)
    inside = math.exp(gamma / 2) / (d - wide) - second
    lemma = math.sqrt(2 * d / math.pi) * sigma * inside * math.exp(exponent)
    assert plausibility_bound(*case) == pytest.approx(min(lemma, 1), rel=1e-6)
    # equation 7
    for f in (wide / d, 0.5 * (1 + wide / d)):
        inside = math.exp(gamma / 2) / (1 - f) - math.exp(-gamma / 2) / (2 + f)
        scale = 2 * sigma / math.sqrt(2 * math.pi * d)
        corollary = math.exp(-d / (8 * sigma**2) - gamma**2 * sigma**2 / (2 * d)) * scale * inside
        found = simple_bound(*case, share=f * (1 + 1e-12))
        assert found == pytest.approx(min(corollary, 1), rel=1e-6)
        assert q <= found


def test_the_printed_constant_is_no_bound_where_sigma_exceeds_one():
    d, sigma, gamma = 1000.0, 9.0, 2.0
    q = plausibility(d, sigma, gamma)
    assert (
        plausibility_bound(d, sigma, gamma) / math.sqrt(sigma)
        < q
        < plausibility_bound(d, sigma, gamma)
    )


def test_the_corollary_holds_where_its_proof_does_not():
    # a < 1: the proof's step for the second term fails, the bound does not
    for u in (0.01, 0.3, 1.0, 1.9):
        for f in (0.01, 0.3, 0.6, 0.99):
            gamma = f * u * u / 2
            a, b = ends(u * u, 1.0, gamma)
            assert a < 1
            if u == 0.01:
                assert (a + b) / ((a + b) ** 2 + 1) < 1 / (a * (2 + f))
            assert plausibility(u * u, 1.0, gamma) <= simple_bound(u * u, 1.0, gamma)


def test_bounds_are_tight_far_out():
    assert plausibility_bound(400.0, 1.0, 3.0) < 1.02 * plausibility(400.0, 1.0, 3.0)


@pytest.mark.parametrize("gamma", [1e-6, 0.5, 1.99, 2.01, 30.0, 1e5])
def test_q_falls_without_a_seam(gamma):
    middle = math.sqrt(2 * gamma)
    us = np.unique(np.concatenate([np.geomspace(1e-3, 1e3, 400), middle + np.linspace(-1, 9, 200)]))
    logs = [log_plausibility(u * u, 1.0, gamma) for u in us if u > 0]
    assert all(x >= y for x, y in itertools.pairwise(logs))
    assert logs[0] <= 0
    assert logs[-1] < -500 or gamma > 1e4


EXTREME = [
    (0.0, 1.0, 1.0, 1.0),
    (5e-324, 1.0, 1.0, 1.0),
    (1.0, 1.0, 1e308, 1.0),
    (1e-300, 1e-300, 1e300, 1.0),
    (1e300, 1e-300, 1.0, 0.0),
    (1.0, 5e-324, 1e-300, 0.0),
    (1e308, 1e-3, 5.0, 0.0),
    (1e308, 1e-160, 1e-300, 0.0),
]


@pytest.mark.parametrize(("d", "sigma", "gamma", "expected"), EXTREME)
def test_extremes(d, sigma, gamma, expected):
    assert plausibility(d, sigma, gamma) == expected
    assert log_plausibility(d, sigma, gamma) <= 0
    for bound in (plausibility_bound, simple_bound):
        assert expected <= bound(d, sigma, gamma) <= 1
    assert 0 <= pass_probability(d, sigma, gamma, 10**9, 2) <= 1


def test_a_probability_too_small_for_a_number_has_a_logarithm():
    # q ~ φ(a)·2·sinh(γ/2)/a far out
    assert plausibility(40_000.0, 1.0, 1.0) == 0
    expected = -5000 + math.log(2 * math.sinh(0.5) / 100 / math.sqrt(2 * math.pi))
    assert log_plausibility(40_000.0, 1.0, 1.0) == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("sigma", [1e-160, 0.3, 1e100])
@pytest.mark.parametrize("gamma", [1e-9, 0.1, 2.0, 400.0, 1e7])
@pytest.mark.parametrize("p", [1e-300, 1e-5, 0.05, 0.9])
def test_the_smallest_distance_is_where_q_reaches_p(p, gamma, sigma):
    d = smallest_distance(p, sigma, gamma)
    assert d > 0
    if d > 1e-300:  # below, a distance has too few digits
        assert p * (1 - 1e-9 * gamma - 1e-9) <= plausibility(d, sigma, gamma) <= p
        assert plausibility(d * (1 - 1e-7), sigma, gamma) > p


def test_smallest_distances_that_are_no_numbers():
    assert smallest_distance(0.05, 1e200, 2.0) == math.inf
    assert smallest_distance(0.05, 1e-300, 2.0) > 0
    assert certificate(1e200, 2.0, 5, 2).limits[0].one_batch is None
    json.dumps(certificate(1e200, 2.0, 5, 2, 10**7).to_json(), allow_nan=False)
    json.dumps(certificate(1e-300, 1e308, 5, 2, 10**7).to_json(), allow_nan=False)


def test_the_probability_of_passing():
    d, sigma, gamma = 2.0, 0.4, 3.0
    q = plausibility(d, sigma, gamma)
    assert pass_probability(d, sigma, gamma, 10, 1) == 1
    assert pass_probability(0.0, sigma, gamma, 10, 3) == 1
    assert pass_probability(d, sigma, gamma, 10, 4) == pytest.approx(9 * q / 3)
    # if all other batches have one gradient, all or none of them are plausible: Markov is exact
    assert pass_probability(d, sigma, gamma, 6, 6) == pytest.approx(q)


def test_passing_is_as_rare_as_certified():
    # m batches at distance √d in orthogonal directions. Hoeffding: off with probability 1e-6
    m, d, sigma, gamma, draws = 9, 1.0, 0.35, 1.0, 40_000
    off = math.sqrt(math.log(1 / 1e-6) / (2 * draws))
    random = np.random.default_rng(0)
    noise = sigma * random.normal(size=(draws, m - 1))
    # ‖Z + Δ_j‖² − ‖Z‖² for Δ_j = √d·e_j
    plausible = np.abs(d + 2 * math.sqrt(d) * noise) <= 2 * sigma**2 * gamma
    for threshold in range(2, m + 1):
        passed = (1 + plausible.sum(1) >= threshold).mean()
        assert passed <= pass_probability(d, sigma, gamma, m, threshold) + off


def test_a_certificate_holds_all_of_it():
    found = certificate(0.3, 2.0, 20, 3, 7680, [0.5, 4.0])
    kept = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [row["distance"] for row in kept["rows"]] == [0.5, 4.0]
    assert kept["rows"][1]["plausibility"] == plausibility(4.0, 0.3, 2.0)
    assert kept["rows"][1]["bound"] == plausibility_bound(4.0, 0.3, 2.0)
    assert kept["rows"][1]["simple_bound"] == simple_bound(4.0, 0.3, 2.0)
    assert [limit["probability"] for limit in kept["limits"]] == list(PROBABILITIES)
    for limit in kept["limits"]:
        p = limit["probability"]
        assert plausibility(limit["one_batch"], 0.3, 2.0) == pytest.approx(p)
        assert pass_probability(limit["update"], 0.3, 2.0, 20, 3) == pytest.approx(p)
        assert limit["normalised"] == pytest.approx(math.sqrt(limit["one_batch"] / 7680))
    assert "no epsilon" in kept["promise"]
    one = certificate(0.3, 2.0, 20, 1)
    assert [limit.update for limit in one.limits] == [None, None]
    assert one.normalised(1.0) is None


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: plausibility(-1.0, 1.0, 1.0), "distance = -1.0"),
        (lambda: plausibility(math.nan, 1.0, 1.0), "distance = nan"),
        (lambda: plausibility(1.0, 0.0, 1.0), "sigma = 0.0"),
        (lambda: plausibility(1.0, 1.0, -2.0), "gamma = -2.0"),
        (lambda: smallest_distance(1.0, 1.0, 1.0), "probability = 1.0"),
        (lambda: smallest_distance(0.0, 1.0, 1.0), "probability = 0.0"),
        (lambda: smallest_distance(0.5, -1.0, 1.0), "sigma = -1.0"),
        (lambda: simple_bound(9.0, 1.0, 1.0, share=1.0), "share = 1.0"),
        (lambda: simple_bound(3.0, 1.0, 1.0, share=0.5), "distance = 3.0"),
        (lambda: pass_probability(1.0, 1.0, 1.0, 3, 4), "threshold = 4"),
        (lambda: pass_probability(1.0, 1.0, 1.0, 0, 1), "batches = 0"),
        (lambda: certificate(1.0, 1.0, 3, 2, dimension=0), "dimension = 0"),
        (lambda: certificate(1.0, 1.0, 3, 2, distances=[-3.0]), "distance = -3.0"),
    ],
)
def test_errors_name_option_and_value(call, named):
    with pytest.raises(OptionError, match=named):
        call()
