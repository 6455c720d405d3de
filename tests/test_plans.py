"""What a budget buys: noise against closed forms, words against numbers."""

import importlib.util
import math
import sys
from pathlib import Path

import pytest
from scipy.stats import norm

from reticent import known, pace, plans
from reticent.errors import OptionError
from reticent.plans import Row
from reticent.privacy import Budget

BUDGET = Budget(1.0, 1e-5)
BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def delta_of(mu, epsilon):
    """δ(ε) of μ-Gaussian DP: Balle and Wang 2018, Theorem 8."""
    spent = norm.cdf(-epsilon / mu + mu / 2)
    return spent - math.exp(epsilon) * norm.cdf(-epsilon / mu - mu / 2)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.05, 1e-6), (1, 1e-5), (8, 1e-5), (40, 1e-3)])
def test_the_floor_is_that_of_one_gaussian_release(epsilon, delta):
    mu = 1 / (1000 * plans.floor(Budget(epsilon, delta), 1000))
    assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert plans.floor(Budget(epsilon, delta), 2000) == pytest.approx(1 / (2000 * mu))


def test_rows_are_calibrated_and_never_below_the_floor():
    rows = plans.rows_for(BUDGET, 320, batches=[320, 20, 320], steps=[10])
    assert [(row.batch, row.steps) for row in rows] == [(320, 10), (20, 10)]
    full, small = rows
    least = plans.floor(BUDGET, 320)
    assert least <= full.effective <= 1.001 * least
    assert small.effective > 1.2 * least
    # σ = √T/μ for all records
    assert full.noise == pytest.approx(math.sqrt(10) * 320 * least, rel=1e-3)


def test_what_a_row_says():
    row = Row(batch=50, steps=16, noise=10.0)
    assert row.per_release == 0.2
    assert row.effective == pytest.approx(0.05)  # a mean of 16 has a quarter of the noise
    assert row.length(400) == pytest.approx(1.0)
    assert row.work() == 800


@pytest.mark.parametrize(
    ("n", "batches"), [(64_000, [64_000, 8000, 1000]), (200, [200, 25, 16]), (10, [10])]
)
def test_batches_to_look_at(n, batches):
    assert plans.default_batches(n) == batches


def test_levels_and_the_parameters_they_allow():
    for level, length in (("little", 0.03), ("some", 0.1), ("much", 0.3)):
        assert plans.verdict(length)[0] == level
        assert plans.verdict(length * 1.001)[0] != level
        most = plans.most_parameters(0.001, level)
        row = Row(batch=100, steps=1, noise=0.1)
        assert row.length(most) <= length < row.length(most + 2)
    assert plans.verdict(5)[0] == "hopeless"


def test_levels_that_no_model_reaches_are_left_out():
    assert plans.in_words(0.001) == (
        "Models of up to 900 parameters lose little, up to 10,000 some, up to 90,000 much; beyond "
        "that it is hopeless."
    )
    assert (
        plans.in_words(0.2) == "Models of up to 2 parameters lose much; beyond that it is hopeless."
    )
    assert plans.feasible(0.2)
    assert not plans.feasible(0.31)
    assert plans.in_words(0.31).startswith("No model is feasible")


def test_the_suggestion_is_large_and_short_unless_that_takes_long():
    rows = [Row(100, 10, 10.0), Row(100, 40, 20.0), Row(25, 40, 5.1), Row(5, 40, 1.5)]
    assert plans.suggested(rows) == rows[0]
    assert plans.suggested(rows[1:]) == rows[1]
    assert plans.suggested(rows[1:], seconds_per_record=0.001) == rows[1]
    # 4000 records would take longer than ten minutes; 1000 of the equivalent row do not
    assert plans.suggested(rows[1:], seconds_per_record=0.2) == rows[2]
    assert rows[3].effective > plans.SAME * rows[0].effective  # so it is never suggested


def test_what_epsilon_means():
    said = plans.meaning(Budget(math.log(3), 1e-5), 1000)
    assert said.odds == pytest.approx(3)
    assert said.from_even == pytest.approx(0.75)
    assert said.caught == pytest.approx(0.03 + 1e-5)
    assert said.delta_per_record == pytest.approx(0.01)
    large = plans.meaning(Budget(8, 1e-5), 1000)  # e^8 of one in a hundred is more than all
    assert large.caught == pytest.approx(1 - (0.99 - 1e-5) / math.exp(8))
    assert plans.meaning(Budget(1e4, 1e-5), 1000).caught <= 1


def test_bad_numbers_are_named():
    with pytest.raises(OptionError, match="batch = 11: exceeds n = 10"):
        plans.rows_for(BUDGET, 10, batches=[11])
    with pytest.raises(OptionError, match="steps = 0"):
        plans.rows_for(BUDGET, 10, steps=[0])
    with pytest.raises(OptionError, match="n = 0"):
        plans.floor(BUDGET, 0)


def test_pace_is_of_real_releases():
    found = pace.measure("mlp", input_shape=(5,), classes=3, batch=40, device="cpu")
    assert found.records == 40
    assert found.parameters == 6 * 64 + 65 * 3
    assert found.record_bytes == 5 * 4 + 8
    assert 0 < found.seconds < 60
    assert found.training(80, 10) == pytest.approx(20 * found.seconds)
    assert found.training(4, 10) == pytest.approx(10 * found.seconds)
    assert found.memory(100) - found.memory(0) == 2800
    assert found.memory(0) >= 64 * found.parameters


def test_known_accuracies_bracket_a_budget():
    exact = known.known("mnist", 1.0)
    assert exact.below == exact.above
    assert exact.says().startswith(f"{exact.below[1]:.1f} % at ε = 1")
    assert "between" in known.known("mnist", 1.5).says()
    assert known.known("mnist", 0.1).below is None
    assert "less than" in known.known("mnist", 0.1).says()
    assert "at least" in known.known("mnist", 100.0).says()
    assert known.known("digits", 1.0) is None


def script():
    spec = importlib.util.spec_from_file_location("known_script", BENCHMARKS / "known.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_known_accuracies_are_generated_from_the_results(monkeypatch, tmp_path):
    module = script()
    assert module.FILE.read_text() == module.text()
    monkeypatch.setattr(sys, "argv", ["known.py", "--check"])
    module.main()
    changed = tmp_path / "known.toml"
    changed.write_text(module.text().replace("98.", "99."))
    monkeypatch.setattr(module, "FILE", changed)
    with pytest.raises(SystemExit, match=r"known\.toml"):
        module.main()
