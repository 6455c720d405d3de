"""The recursion against linear programs and against adversaries that adapt."""

import math

import numpy as np
import pytest

from reticent.privacy import SelectiveGaussian
from reticent.privacy.selective_recursion import Recursion, cells_within, evaluate, lower_hull
from reticent.privacy.selective_tilts import DIRECTIONS, Tilts, passing, slices, tilts

from .selective_oracle import largest_mean, reachable, tilted_bins


def small(seed):
    """A made-up pair of a few atoms, tilted a little or a lot."""
    rng = np.random.default_rng(seed)
    count = rng.integers(2, 7)
    weights = rng.dirichlet(np.ones(count))
    ratio = np.exp(rng.normal(size=count) * rng.choice([0.1, 0.5]))
    ratio /= weights @ ratio
    span, valid_rate = 1 + rng.choice([0.1, 1.0, 10.0]), rng.choice([0.02, 0.1, 0.3])
    up, down = 1 - valid_rate + valid_rate * span, 1 - valid_rate + valid_rate / span
    rows = np.stack([ratio, ratio * up, ratio * down])
    if rng.random() < 0.5:
        return Tilts(np.log(weights), (1.0, 1.0, span, span), rows, 0.0)
    return Tilts(np.log(weights * ratio), (1.0, up, span, span * down), 1 / rows, 0.0)


@pytest.mark.parametrize("seed", range(6))
def test_one_step_is_at_least_the_linear_program_and_close_to_it(seed):
    pairs = small(seed)
    least, most = pairs.means()
    left = math.log(pairs.ratios.max() / least)
    right = -math.log(pairs.ratios.min() / most)
    recursion = Recursion(pairs, left=2 * left, right=2 * right, cells=12)
    rows = pairs.corners(pairs.ratios)
    kappas = np.geomspace(least, most, 25)
    for _ in range(2):
        r, h = recursion.r, recursion.h
        recursion.advance()
        for weight in np.exp([-0.6 * left, -0.2 * left, 0.0, 0.4 * right]):

            def before(x, r=r, h=h):
                return evaluate(r, h, x)

            def value(kappa, before=before, weight=weight):
                return largest_mean(pairs.weights, pairs.gains, rows, before, weight, kappa)

            exact, best = max((value(kappa), kappa) for kappa in kappas)
            for width in (1.1, 1.01):
                exact, best = max(
                    (value(k), k) for k in np.geomspace(best / width, best * width, 9)
                )
            bound = float(recursion.at(np.array([weight]))[0])
            assert exact <= bound * (1 + 1e-6) + 2e-7
            assert bound <= exact * 1.25 + 0.02 * weight


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "setting",
    [
        (0.02, 2.0, 0.004, 1.3, -1.0),
        (0.3, 1.0, 0.1, 0.5, 0.0),
        (0.05, 0.8, 0.3, 0.8, 1.0),
        (1.0, 4.0, 0.05, 1.0, -1.0),
    ],
)
def test_no_adaptive_adversary_reaches_more(setting, direction):
    rate, multiplier, _valid_rate, valid_noise, beta = setting
    count = 4
    pairs = tilts(
        *setting[:3], *passing(beta, valid_noise), direction, slices(rate, multiplier, 80)
    )
    extent = 4.5 * math.sqrt(count) * pairs.scale()[2]
    recursion = Recursion(pairs, left=extent, right=extent, cells=8)
    for _ in range(count):
        recursion.advance()
    r = np.exp(np.linspace(-extent, extent, 121))
    reached = reachable(
        *tilted_bins(np.random.default_rng(1), setting, 60, 80, direction), r, count
    )
    bound = recursion.at(r) + count * (pairs.lost + 1e-14)
    assert np.all(reached <= bound * (1 + 1e-12))
    # and the bound is not idle: random tilts come close to it
    assert bound[60] < 1.6 * reached[60]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_h_stays_convex_with_slope_between_0_and_1(direction):
    pairs = tilts(0.1, 1.0, 0.2, *passing(-1, 0.6), direction, slices(0.1, 1.0, 60))
    recursion = Recursion(pairs, left=2.0, right=2.0, cells=4)
    before = recursion.h
    for _ in range(6):
        recursion.advance()
        r, h = np.append(0.0, recursion.r), np.append(0.0, recursion.h)
        slopes = np.diff(h) / np.diff(r)
        assert np.all(np.diff(slopes) >= -1e-11)
        assert slopes[0] >= 0
        assert slopes[-1] <= 1 + 1e-10
        assert np.all(recursion.h >= before * (1 - 1e-12))
        before = recursion.h
    assert recursion.delta(0.5) == pytest.approx(
        math.exp(0.5) * recursion.at(np.exp([-0.5]))[0], rel=1e-12
    )


def test_the_peak_inside_a_cell_is_found():
    # where νρ falls and M falls too, the largest chord + νr is inside the cell
    pairs = tilts(0.1, 1.0, 0.2, *passing(-1, 0.6), "with", slices(0.1, 1.0, 20))
    recursion = Recursion(pairs, left=1.0, right=1.0, cells=4)
    rng = np.random.default_rng(0)
    level = rng.normal(size=len(recursion._rho))
    linear = rng.normal(size=len(recursion._rho))
    found = recursion._over_cells(level, linear)
    for cell, i in [(1, 3), (found.shape[0] - 1, 7)] + [(0, k) for k in range(10)]:
        ends = slice(i + cell, i + cell + 2)
        rho = np.linspace(*recursion._rho[ends], 2001)
        chord = np.interp(rho, recursion._rho[ends], level[ends])
        slope = np.interp(rho, recursion._rho[ends], linear[ends]) / rho
        largest = (chord + recursion.r[i] * slope).max()
        assert largest <= found[cell, i] + 1e-12
        assert found[cell, i] == pytest.approx(largest, abs=1e-5)


def test_the_hull_is_below_the_points_and_keeps_small_numbers():
    rng = np.random.default_rng(0)
    r = np.exp(np.linspace(-2, 2, 50))
    true = np.maximum(r - 1, 0) + 1e-18 * r**2
    hull = lower_hull(r, true * (1 + 0.1 * rng.random(50)))
    assert np.all(hull >= true * (1 - 1e-12) - 1e-15 * (r > 1))
    assert np.all(hull <= true * 1.1 + 1e-12)
    # a slope above 1, or a line that misses 0, is cut
    assert lower_hull(np.array([1.0, 2.0]), np.array([0.5, 3.0]))[1] == pytest.approx(1.5)
    assert lower_hull(np.array([1.0, 2.0]), np.array([0.5, 0.6]))[0] == pytest.approx(0.3)


def test_beyond_the_grid_h_is_bounded_by_straight_lines():
    r, h = np.array([0.5, 1.0, 2.0]), np.array([0.05, 0.2, 1.1])
    got = evaluate(r, h, np.array([0.25, 0.75, 3.0]))
    np.testing.assert_allclose(got, [0.025, 0.125, 2.1])


def test_coarser_where_the_work_would_be_too_much():
    charge = SelectiveGaussian(0.02, 2.0, 0.004, 1.3, -1.0, 300)
    pairs = tilts(0.02, 2.0, 0.004, *charge.passing, "with", slices(0.02, 2.0, 40))
    fine = cells_within(pairs, 2.0, count=10, most=8.0, work=1e9)
    coarse = cells_within(pairs, 2.0, count=1000, most=8.0, work=1e5)
    assert fine == 8.0 > coarse
