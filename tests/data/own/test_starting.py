"""Where training starts: the noise's part in a score is what was chosen, for any n and ε."""

from __future__ import annotations

import math

import pytest

from reticent.data.own import from_columns
from reticent.data.own.starting import STARTS, noise_floor, start


def table(columns: int = 4, bounds: str | None = "0..1"):
    values = {f"x{number}": [0, 1] * 20 for number in range(columns)}
    stated = {} if bounds is None else {"bounds": bounds}
    return from_columns({**values, "y": ["a", "b"] * 20}, target="y", classes="a,b", **stated)


@pytest.mark.parametrize("epsilon", [0.5, 1, 3])
@pytest.mark.parametrize("n", [100, 1000, 10_000])
@pytest.mark.parametrize("columns", [1, 9])
def test_steps_grow_with_what_the_budget_can_tell(epsilon, n, columns):
    settings = start(table(columns), epsilon, 1e-5, n)
    assert settings["batch"] == n
    furthest = settings["lr"] / (1 - settings["momentum"]) * settings["clip"] * settings["steps"]
    mu = epsilon / math.sqrt(2 * math.log(1.25e5))
    # a row of length √columns moves the score by its length times the noise in the weights
    assert furthest * math.sqrt(columns) / (n * mu) == pytest.approx(STARTS["table"].move)


def test_there_is_a_fastest():
    assert start(table(1), 8, 1e-5, 10**9)["lr"] == 200


def test_statistics_are_paid_for_only_where_there_is_no_scale():
    assert "standardise" not in start(table(), 1, 1e-5, 1000)
    settings = start(table(bounds=None), 1, 1e-5, 1000)
    assert (settings["standardise"], settings["standardise_noise"]) == (True, 24)
    assert start(table(bounds=None), 8, 1e-5, 1000)["standardise_noise"] == 8


def test_the_noise_in_the_statistics_is_known_beforehand():
    assert noise_floor(table(4, None), 8, 1600) == pytest.approx(6 * 0.1)
