"""Numbers that cannot work, or are hardly meant: one line, never a traceback, never minutes."""

import json
import math

import pytest
from scipy.stats import binom

from reticent.cli import app
from reticent.cli.cautions import _far_off
from reticent.errors import OptionError, whole
from reticent.methods import NoiseDecay
from reticent.plans import floor
from reticent.privacy import Budget, SampledGaussian, delta_note, noise_for

from .calling import call, refuse, runner

PLAN = ("plan", "--n", 1000, "--batch", 100, "--steps", 10, "--no-probe")
CALIBRATE = ("calibrate", "dpsgd", "--n", 1000, "--batch", 100, "--steps", 10)
TRAIN = ("train", "--model", "linear", "--batch", 100, "--steps", 2, "--quiet")
COMPARE = ("compare", "--methods", "dpsgd", "--seeds", 1, "--steps", 2)


@pytest.mark.parametrize("command", [PLAN, (*CALIBRATE,), TRAIN, COMPARE])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--epsilon", "1e300"), "--epsilon = 1e+300: must be at most 1e+06"),
        (("--epsilon", "inf"), "--epsilon = inf: must be a finite number"),
        (("--epsilon", "nan"), "--epsilon = nan: must be a finite number"),
        (("--epsilon", "1e-300"), "--epsilon = 1e-300: must be at least 1e-09"),
        (("--epsilon", "1", "--delta", 0), "--delta = 0.0: must be greater than 0"),
        (("--epsilon", "1", "--delta", 1), "--delta = 1.0: must be below 1"),
    ],
)
def test_budgets(command, words, says, tmp_path):
    out = ("--out", tmp_path / "run") if command[0] in ("train", "compare") else ()
    said = refuse(*command, *words, *out)
    assert says in said if command is COMPARE else said.startswith(says), said
    assert not list(tmp_path.glob("**/*.json"))


@pytest.mark.parametrize("command", [PLAN, CALIBRATE])
def test_large_budgets_are_answered(command):
    shown = json.loads(call(*command, "--epsilon", 1e6, "--json"))
    assert shown["delta"] == 1e-5


@pytest.mark.parametrize("command", [PLAN, CALIBRATE, TRAIN, COMPARE])
@pytest.mark.parametrize("steps", [0, -1])
def test_no_steps(command, steps, tmp_path):
    at = command.index("--steps")
    words = (*command[:at], *command[at + 2 :], "--steps", steps)
    out = ("--out", tmp_path / "run") if command[0] in ("train", "compare") else ()
    epsilon = ("--epsilon", 1)
    assert refuse(*words, *epsilon, *out).startswith(f"--steps = {steps}: must be at least 1")


def test_whole_numbers_beyond_all_use():
    account = ("account", "dpsgd", "--n", 1000, "--batch", 100, "--sigma", 1)
    assert "--steps = '1e+30': must be at most 2^64" in refuse(*account, "--steps", 10**30)
    assert "no noise multiplier" in refuse(*CALIBRATE[:-1], 10**18, "--epsilon", 1)
    assert whole("n", 2**64 - 1) == 2**64 - 1  # exact, though no float is
    with pytest.raises(OptionError, match="huge"):
        whole("n", 10**400)


def test_noise_that_no_release_affords_or_no_float_holds():
    words = ("calibrate", "dpsgd", "--n", 1000, "--batch", 100, "--epsilon", 1e-8)
    assert "affords no release at --sigma = 2" in refuse(*words, "--sigma", 2)
    account = ("account", "dpsgd", "--n", 1000, "--batch", 100, "--steps", 1)
    for sigma in ("1e300", "1e-300"):
        assert "must lie in [1e-09, 1e+15]" in refuse(*account, "--sigma", sigma)


def test_records_that_hardly_take_part_need_no_noise():
    # 10 releases at rate 1e-10: a record is in none of them but with probability 1e-9 < δ, so
    # (0, δ) holds whatever the noise; Brent's method had no change of sign to find
    assert 1 - binom.pmf(0, 10, 1e-10) < 1e-5
    found = noise_for(Budget(1, 1e-5), lambda m: SampledGaussian(1e-10, m), 10)
    assert found == 0.05
    words = (*CALIBRATE, "--epsilon", 1, "--delta", 1 - 2**-50, "--json")
    shown = json.loads(runner.invoke(app, [str(word) for word in words]).stdout)
    assert shown["epsilon"] <= 1


def test_endless_decay_is_charged_like_its_floor():
    method = NoiseDecay(batch=100, noise=2.0, schedule="step", rate=0.5, period=1, end=0.25)
    short = method.stages(1000, 40)
    assert [(price[0][0].multiplier, count) for price, count in short] == [
        (2.0, 10),
        (1.0, 10),
        (0.5, 20),
    ]
    long = method.stages(1000, 10**9)
    assert [count for _, count in long] == [10, 10, 10**9 - 20]
    assert [price for price, _ in long] == [price for price, _ in short]
    slow = NoiseDecay(batch=100, noise=2.0, rate=1e-12)
    with pytest.raises(OptionError, match="steps = 1000000000: has more than 100,000 stages"):
        slow.stages(1000, 10**9)


def test_the_floor_at_the_largest_budget():
    least = floor(Budget(1e6, 1e-5), 1000)
    # μ²/2 − ε is the mean loss less ε: near 0 at the root, so μ is about √(2ε)
    assert 1 / (1000 * least) == pytest.approx(math.sqrt(2e6), rel=0.01)


# -- what can be done and is hardly meant ---------------------------------------------------------


def test_a_delta_of_one_record(tmp_path):
    assert delta_note(1e-3, 999) is None
    assert "publishing 1 whole record(s)" in delta_note(1e-3, 1000)
    folder = tmp_path / "run"
    result = runner.invoke(app, [*map(str, TRAIN), "--delta", "0.01", "--out", str(folder)])
    assert result.exit_code == 0
    assert "warning: δ = 0.01 is not below 1/n = 0.0007" in result.stderr
    notes = json.loads((folder / "run.json").read_text())["ledger"]["notes"]
    assert any(note.startswith("δ = 0.01 is not below 1/n") for note in notes)
    assert "is not below 1/n" in (folder / "report.html").read_text()
    for words in (PLAN, CALIBRATE):
        found = runner.invoke(app, [*map(str, words), "--epsilon", "1", "--delta", "0.01"])
        assert "warning: δ = 0.01 is not below 1/n = 0.001" in found.stderr
    account = ("account", "dpsgd", "--n", 100, "--batch", 10, "--steps", 1, "--sigma", 2)
    assert "note: δ = 0.5 is not below" in call(*account, "--delta", 0.5)
    assert "not below" not in call(*account)


@pytest.mark.parametrize(
    ("nominal", "real", "says"),
    [
        (2000, 1000, None),
        (500, 1000, None),
        (2001, 1000, "more than 2 times the number of records"),
        (499, 1000, "there are more than 2 times as many records"),
        (10**12, 1437, "more than 100,000,000 times the number of records"),
    ],
)
def test_nominal_numbers_far_off(nominal, real, says):
    found = _far_off(nominal, real)
    assert found == [] if says is None else says in found[0]
    assert str(real) not in "".join(found)  # the real number may be a secret


def test_far_off_is_said_and_kept_nowhere(tmp_path):
    words = (*TRAIN, "--n", 100, "--out", tmp_path / "run")
    result = runner.invoke(app, [str(word) for word in words])
    assert "warning: --n = 100: there are more than 10 times as many records" in result.stderr
    for path in (tmp_path / "run").iterdir():
        assert b"times as many" not in path.read_bytes()
