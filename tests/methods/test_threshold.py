"""DPSUR's threshold against integrals, simulation and brute force."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from reticent.errors import OptionError
from reticent.methods.threshold import (
    BETA_OF_LARGEST_DIFFERENCE,
    acceptance,
    acceptance_ratio,
    bad_acceptance,
    difference,
    expected_trials,
    good_acceptance,
    good_among_accepted,
    thresholds,
)
from reticent.methods.threshold_figure import draw
from reticent.privacy import SelectiveGaussian
from reticent.privacy.selective_tilts import passing

ROOT = Path(__file__).parents[2]
NOISES = (0.3, 0.8, 1.0, 1.3, 4.0)
BETAS = (-3.5, -1.0, -0.2, 0.0, 0.7, 2.0)


def integral(change: float, beta: float, noise: float, bound: float) -> float:
    """Mass below β·C_v of the density of Equation (8), by quadrature in the paper's own units."""
    centre, scale = min(max(change, -bound), bound), 2 * bound * noise
    end = beta * bound

    def density(x: float) -> float:
        return math.exp(-((x - centre) ** 2) / (2 * scale**2)) / (scale * math.sqrt(2 * math.pi))

    start = min(centre, end) - 12 * scale
    points = [centre] if centre < end else None
    return integrate.quad(density, start, end, points=points, epsabs=1e-13, limit=200)[0]


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("beta", BETAS)
@pytest.mark.parametrize("bound", [0.001, 0.1])
def test_probabilities_are_integrals_of_equation_8(beta: float, noise: float, bound: float) -> None:
    for change in (-5.0, -1.0, -0.4, 0.0, 0.9, 1.0, 7.0):
        expected = integral(change * bound, beta, noise, bound)
        assert acceptance(change, beta, noise) == pytest.approx(expected, abs=1e-10)
    # any fall beyond the bound is good, any rise is bad
    assert good_acceptance(beta, noise) == pytest.approx(
        integral(-3 * bound, beta, noise, bound), abs=1e-10
    )
    assert bad_acceptance(beta, noise) == pytest.approx(
        integral(3 * bound, beta, noise, bound), abs=1e-10
    )


def test_the_papers_example() -> None:
    """Section 3.2: σ_v = 1, C_v = 0.1, thresholds 0 and -0.1."""
    assert good_acceptance(0, 1) == pytest.approx(0.691, abs=1e-3)
    assert bad_acceptance(0, 1) == pytest.approx(0.308, abs=1e-3)
    assert good_acceptance(-1, 1) == pytest.approx(0.5)
    assert bad_acceptance(-1, 1) == pytest.approx(0.159, abs=1e-3)


@pytest.mark.parametrize(("beta", "noise"), [(-1.0, 1.3), (0.0, 0.8), (0.5, 1.0)])
@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
def test_simulated_acceptance(beta: float, noise: float, share: float) -> None:
    """The test of Algorithm 2, run: accepted good and bad counts (false alarm 1e-8 each, 18)."""
    draws, bound = 200_000, 0.001
    generator = np.random.default_rng(round(1000 * (beta + 7) + 100 * noise + 10 * share))
    good = generator.random(draws) < share
    changes = np.where(good, -1, 1) * generator.uniform(bound, 1, draws)
    noisy = np.clip(changes, -bound, bound) + 2 * bound * noise * generator.normal(size=draws)
    accepted = noisy < beta * bound
    odds = (1 / expected_trials(beta, noise, share), share * good_acceptance(beta, noise))
    for count, probability in zip((accepted.sum(), (accepted & good).sum()), odds, strict=True):
        assert stats.binomtest(int(count), draws, probability).pvalue > 1e-8
    kept = good_among_accepted(beta, noise, share)
    assert kept == pytest.approx(odds[1] / odds[0])


def test_simulated_trials() -> None:
    """The number of candidates until one passes (false alarm below 2e-7)."""
    beta, noise, share, runs = -1.0, 1.3, 0.4, 20_000
    generator = np.random.default_rng(5)
    changes = np.where(generator.random((runs, 150)) < share, -1.0, 1.0)
    accepted = changes + 2 * noise * generator.normal(size=changes.shape) < beta
    assert accepted.any(axis=1).all()
    trials = accepted.argmax(axis=1) + 1
    expected = expected_trials(beta, noise, share)
    deviation = math.sqrt(expected**2 - expected)  # of a geometric count
    score = (trials.mean() - expected) / (deviation / math.sqrt(runs))
    assert abs(score) < -stats.norm.ppf(1e-7 / 2)


@pytest.mark.parametrize("noise", [0.05, *NOISES, 50.0])
def test_the_difference_is_largest_at_zero(noise: float) -> None:
    def negative(beta: float) -> float:
        return integral(1, beta, noise, 1) - integral(-1, beta, noise, 1)

    # where it is flat to rounding, brute force can say no more than that 0 is not beaten
    grid = np.linspace(-6, 6, 121)
    best = difference(BETA_OF_LARGEST_DIFFERENCE, noise)
    assert best == pytest.approx(max(-negative(beta) for beta in grid), abs=1e-10)
    if 0.3 <= noise <= 4:
        found = optimize.minimize_scalar(negative, bounds=(-3, 2), method="bounded")
        assert found.x == pytest.approx(BETA_OF_LARGEST_DIFFERENCE, abs=1e-2)
        assert best - difference(-1, noise) > 1e-4  # so it is not at the paper's β
    assert [row.difference for row in thresholds([-1, 1], noise)] == [difference(-1, noise)] * 2


@given(
    st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.floats(0, 1), st.floats(0, 1), st.floats(-1, 1)
)
def test_what_holds_for_every_threshold(
    beta: float, noise: float, share: float, step: float, change: float
) -> None:
    row, lower = thresholds([beta, beta - step], noise, share)
    assert 0 <= row.bad <= acceptance(change, beta, noise) <= row.good <= 1
    assert -1e-15 <= row.difference <= difference(BETA_OF_LARGEST_DIFFERENCE, noise) + 1e-15
    assert row.difference == pytest.approx(row.good - row.bad, abs=1e-14)
    assert 1 <= row.trials <= lower.trials * (1 + 1e-12)
    assert row.ratio * (1 + 1e-12) >= 1
    assert row.ratio <= lower.ratio * (1 + 1e-9)


def test_far_thresholds_keep_their_digits() -> None:
    # upper tail: both are 1 as floats, their difference is the lower tail's
    assert good_acceptance(20, 1) == bad_acceptance(20, 1) == 1
    assert difference(20, 1) == pytest.approx(stats.norm.sf(9.5) - stats.norm.sf(10.5), rel=1e-9)
    # lower tail: neither is a normal float, their ratio is
    assert good_acceptance(-90, 1) == bad_acceptance(-90, 1) == 0
    exact = stats.norm.logcdf(-44.5) - stats.norm.logcdf(-45.5)
    assert math.log(acceptance_ratio(-90, 1)) == pytest.approx(exact)
    (row,) = thresholds([-1e200], 1)
    assert (row.trials, row.ratio, row.good_among_accepted) == (math.inf, math.inf, None)
    assert row.to_json()["trials"] is row.to_json()["ratio"] is None
    assert expected_trials(-1, 0.01, 1.0) == 2
    assert expected_trials(-1, 0.01, 0.0) == math.inf


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("beta", BETAS)
def test_the_range_is_the_one_that_is_charged(beta: float, noise: float) -> None:
    expected = (bad_acceptance(beta, noise), good_acceptance(beta, noise))
    assert passing(beta, noise) == pytest.approx(expected, rel=1e-12)
    assert acceptance_ratio(beta, noise) == pytest.approx(expected[1] / expected[0], rel=1e-9)


def test_the_charge_grows_with_the_ratio_and_depends_on_nothing_else() -> None:
    def cost(beta: float, noise: float) -> float:
        charge = SelectiveGaussian(0.05, 2.0, 0.01, noise, beta, trials=10_000)
        return float(charge.rdp((8.0,))[0])

    costs = [cost(beta, 1.3) for beta in (2, 0, -1, -2)]
    assert costs == sorted(costs)
    assert costs[0] < costs[-1]
    ratio = acceptance_ratio(-1, 1.3)
    other = optimize.brentq(lambda beta: acceptance_ratio(beta, 1.0) - ratio, -3, 3, xtol=1e-14)
    assert abs(other + 1) > 0.1
    assert cost(other, 1.0) == pytest.approx(cost(-1, 1.3), rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 0), "valid_noise = 0"),
        ((-1, -1.3), "valid_noise = -1.3"),
        ((-1, math.nan), "valid_noise = nan"),
        ((-1, math.inf), "valid_noise = inf"),
        ((math.nan, 1.3), "beta = nan"),
        ((-math.inf, 1.3), "beta = -inf"),
        (("low", 1.3), "beta = 'low'"),
        ((-1, 1.3, -0.1), "good_share = -0.1"),
        ((-1, 1.3, 1.1), "good_share = 1.1"),
        ((-1, 1.3, math.nan), "good_share = nan"),
    ],
)
def test_what_cannot_work_is_named(arguments: tuple[float, ...], message: str) -> None:
    beta, *rest = arguments
    with pytest.raises(OptionError, match=message):
        thresholds([beta], *rest)
    with pytest.raises(OptionError, match=message):
        expected_trials(*arguments)
    if len(arguments) == 2:
        with pytest.raises(OptionError, match=message):
            difference(*arguments)


def test_no_change_is_no_number() -> None:
    with pytest.raises(OptionError, match="change = nan"):
        acceptance(math.nan, -1, 1.3)


def test_the_figure_is_the_same_each_time(tmp_path: Path) -> None:
    matplotlib = pytest.importorskip("matplotlib")
    with matplotlib.rc_context():
        for name, width in (("one", 2), ("other", 7)):
            matplotlib.rcParams["lines.linewidth"] = width  # the user's own settings
            draw(tmp_path / f"{name}.svg", (0.8, 1.3), beta=-1)
            draw(tmp_path / f"{name}.png", (0.8, 1.3))
            assert matplotlib.rcParams["lines.linewidth"] == width
    for suffix in ("svg", "png"):
        one, other = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("one", "other"))
        assert one == other
    assert (tmp_path / "one.png").read_bytes().startswith(b"\x89PNG")


def test_the_committed_figure_is_small_and_drawn_by_the_script(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("figures", ROOT / "benchmarks" / "figures.py")
    figures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(figures)
    figures.threshold(tmp_path)
    texts = [
        (folder / "threshold.svg").read_text() for folder in (tmp_path, ROOT / "docs" / "figures")
    ]
    for text in texts:
        assert len(text) < 60_000
        assert "threshold β</text>" in text  # text, not outlines
        assert "<dc:date>" not in text
    # releases of matplotlib place things differently; the words stay
    drawn, committed = ([line for line in text.split("<") if "σ_v" in line] for text in texts)
    assert [line.split(">")[1] for line in drawn] == [line.split(">")[1] for line in committed]
