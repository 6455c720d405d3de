"""The finite pair dominates the sampled Gaussian, and suprema over its tilts are suprema."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from reticent.privacy.selective_tilts import (
    DIRECTIONS,
    dominating_pair,
    far_end,
    log_likelihood_ratio,
    passing,
    slices,
    tilts,
)

from .selective_oracle import CORNERS
from .selective_oracle import passing as passing_oracle

GRID = [(1e-4, 1.0), (0.017, 2.0), (0.3, 0.5), (0.9, 5.0), (1.0, 2.0), (1e-3, 30.0)]


@pytest.mark.parametrize(("rate", "multiplier"), GRID)
def test_the_atoms_dominate_the_sampled_gaussian(rate, multiplier):
    ratios, log_weights, lost = dominating_pair(rate, multiplier, slices(rate, multiplier, 80))
    weights = np.exp(log_weights)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    assert weights @ ratios + lost == pytest.approx(1, abs=1e-12)
    assert lost < 3e-15
    spread = math.sqrt(weights @ (ratios - 1) ** 2)
    for y in (1 - spread, 1.0, 1 + spread, 1 + 3 * spread):

        def density(x, y=y):
            excess = math.exp(float(log_likelihood_ratio(x, rate, multiplier))) - y
            return stats.norm.pdf(x, scale=multiplier) * max(excess, 0.0)

        # the excess vanishes left of where the ratio is y
        ends = (-9 * multiplier, 1 + 12 * multiplier)
        exact = integrate.quad(density, *ends, points=[0.0, 1.0], limit=800)[0]
        bound = weights @ np.maximum(ratios - y, 0) + lost
        assert exact * (1 - 1e-6) - 1e-12 <= bound <= exact * 1.02 + 2e-3 * spread


def test_the_far_end_leaves_out_next_to_nothing():
    for rate, multiplier in GRID:
        end = far_end(rate, multiplier)
        beyond = stats.norm.sf(end / multiplier) * (1 - rate)
        assert beyond + rate * stats.norm.sf((end - 1) / multiplier) <= 1.0001e-15


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_the_corners_are_those_of_the_definition(rate, direction):
    low, high = passing(-1, 0.8)
    valid_rate, multiplier = 0.3, 1.5
    edges = slices(rate, multiplier, 12)
    pairs = tilts(rate, multiplier, valid_rate, low, high, direction, edges)
    ratios, log_weights, _ = dominating_pair(rate, multiplier, edges)
    laws = []
    for corner, (i, j) in enumerate(CORNERS):
        a, b = (low, high)[i], (low, high)[j]
        q = np.exp(log_weights) * a
        p = np.exp(log_weights) * ratios * ((1 - valid_rate) * a + valid_rate * b)
        if direction == "without":
            p, q = q, p
        mass = pairs.weights * pairs.gains[corner]
        laws.append((mass * low, mass * low * pairs.corners(pairs.ratios)[corner], q, p))
    for mass, mass_with, q, p in laws:
        if rate < 1:
            np.testing.assert_allclose(mass, q, rtol=1e-12)
            np.testing.assert_allclose(mass_with, p, rtol=1e-9)
        else:  # mirrored: the same masses elsewhere
            assert mass.sum() == pytest.approx(q.sum(), rel=2e-3)
            assert mass_with.sum() == pytest.approx(p.sum(), rel=2e-3)


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_the_largest_mean_is_no_smaller_than_any_and_is_reached(direction):
    rng = np.random.default_rng(0)
    pairs = tilts(0.1, 1.0, 0.4, *passing(-1, 0.6), direction, slices(0.1, 1.0, 7))
    gains = np.array(pairs.gains)
    for values in (pairs.ratios, -pairs.ratios, pairs.ratios**3, np.abs(pairs.ratios - 1.02)):
        most, pick = pairs.largest(values)
        rows = pairs.corners(values)
        columns = np.arange(len(pick))

        def mean(choice, rows=rows, columns=columns):
            mass = pairs.weights * gains[choice]
            return mass @ rows[choice, columns] / mass.sum()

        tried = max(mean(rng.integers(0, 4, len(pick))) for _ in range(3000))
        assert tried <= most + 1e-12 * abs(most)
        assert mean(pick) == pytest.approx(most, rel=1e-9)


def test_means_enclose_every_tilt_and_the_scale_is_a_standard_deviation():
    for direction in DIRECTIONS:
        pairs = tilts(0.017, 2.0, 0.004, *passing(-1, 1.3), direction, slices(0.017, 2.0, 80))
        least, most = pairs.means()
        centre, pick, scale = pairs.scale()
        assert least < centre < most
        mass = pairs.weights * np.array(pairs.gains)[pick]
        ratio = pairs.corners(pairs.ratios)[pick, np.arange(len(pick))]
        mean = mass @ ratio / mass.sum()
        deviation = math.sqrt(mass @ (ratio - mean) ** 2 / mass.sum()) / mean
        assert scale == pytest.approx(deviation, rel=0.05)


def test_passing_is_the_clipped_test():
    for beta, noise in [(-1, 1.3), (0, 0.5), (2, 3.0)]:
        assert passing(beta, noise) == pytest.approx(passing_oracle(beta, noise), rel=1e-14)
    rng = np.random.default_rng(0)
    # v < β with v = change + 2·σ_v·noise; the change is at its worst and at its best
    noise = rng.standard_normal(200_000)
    for bound, change in zip(passing(-1, 1.3), (1.0, -1.0), strict=True):
        assert np.mean(change + 2.6 * noise < -1) == pytest.approx(bound, abs=0.006)
