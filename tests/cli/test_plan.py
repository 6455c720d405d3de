"""`reticent plan` says what a training would do."""

import json
import shlex
from pathlib import Path

import pytest

from reticent.cli import plan as command
from reticent.cli.building import build_method
from reticent.cli.settings import resolve
from reticent.data import lookup
from reticent.pace import Pace
from reticent.plans import Row

from .calling import call, refuse

PAGE = Path(__file__).parent.parent.parent / "docs" / "planning.md"
SMALL = ("--batch", 100, "--steps", 10)
N_DIGITS = lookup("digits").n_train
DIGITS = ("--batch", N_DIGITS, "--steps", 10)  # all records: quickly calibrated


def planned(*words):
    return json.loads(call("plan", *words, "--no-probe", "--json"))


def settings_of(text):
    """What `reticent train` makes of a command that was printed."""
    words = shlex.split(text)
    assert words[:2] == ["reticent", "train"]
    names = [word.removeprefix("--") for word in words[2::2]]
    given = dict(zip(names, words[3::2], strict=True))
    kinds = {"epsilon": float, "delta": float, "batch": int, "steps": int, "n": int}
    return resolve(None, {name: kinds.get(name, str)(value) for name, value in given.items()})


def test_own_numbers():
    found = planned("--n", 100, "--epsilon", 1, "--dimension", 5000, *SMALL)
    (row,) = found["rows"]
    assert row["effective"] == pytest.approx(row["noise"] / (100 * 10**0.5))
    assert row["length"] == pytest.approx(5000**0.5 * row["effective"])
    assert row["level"] == "hopeless"
    assert row["passes"] == 10
    assert found["floor"] <= row["effective"]
    assert found["meaning"]["odds"] == pytest.approx(2.718, rel=1e-3)
    assert found["most_parameters"]["much"] < 300
    assert found["command"] is None
    assert "DPSGD(batch=100" in found["python"]
    assert found["probe"] is found["known"] is None


def test_where_no_model_is_feasible_none_is_suggested():
    text = " ".join(call("plan", "--n", 1, "--batch", 1, "--steps", 1).split())
    assert "No model is feasible: the noise drowns even a single parameter." in text
    assert "Nothing to go on with: it takes more records or a larger ε." in text
    assert "Suggested" not in text
    assert "rt.train(" not in text
    found = planned("--n", 1, "--batch", 1, "--steps", 1)
    assert found["command"] is found["python"] is None
    small = ("--n", 1000, "--batch", 1, "--steps", 1)  # which others would not be
    assert "a larger batch or more steps" in " ".join(call("plan", *small).split())


def test_the_words_say_what_is_hopeless():
    text = " ".join(call("plan", "--n", 100, "--dimension", 5000, *SMALL).split())
    assert "hopeless: the noise is about as long as any signal" in text
    assert "even odds become 73.1 %" in text
    assert "rt.train(" in text
    assert "unknown without --model or --data" in text
    fine = " ".join(
        call("plan", "--n", 10**6, "--dimension", 100, "--batch", 10**6, "--steps", 10).split()
    )
    assert "δ = 1e-05 is not below 1/n = 1e-06: publishing 10 whole record(s)" in fine


def test_the_best_recipe_of_a_data_set(monkeypatch):
    monkeypatch.setattr("reticent.plans.STEPS", (10,))
    monkeypatch.setattr("reticent.plans.SHARES", (1,))
    found = planned("--data", "imdb", "--epsilon", 2)
    assert [row["steps"] for row in found["rows"]] == [10, 200]
    assert found["recipe"] == "best"
    assert found["n"] == found["suggested"]["batch"] == 25_000
    assert found["parameters"] == 2 * 4100
    assert found["known"]["below"][0] == 2
    assert found["command"] == (
        "reticent train --data imdb --recipe best --epsilon 2 --delta 1e-05"
    )
    settings = settings_of(found["command"])
    assert settings.steps == found["suggested"]["steps"]
    assert settings.batch == 25_000


def test_other_records_have_no_known_accuracy():
    found = planned("--data", "imdb", "--n", 100, *SMALL)
    assert found["known"] is None
    assert "--n 100" in found["command"]
    assert settings_of(found["command"]).n == 100


def test_a_model_on_a_data_set():
    found = planned("--data", "digits", "--model", "mlp", *DIGITS)
    assert found["n"] == N_DIGITS
    settings = settings_of(found["command"])
    assert (settings.model, settings.batch, settings.steps) == ("mlp", N_DIGITS, 10)
    assert build_method(settings).batch == N_DIGITS
    assert found["parameters"] == 65 * 64 + 65 * 10
    start = planned("--data", "digits", *DIGITS)
    assert start["model"] == "digits-cnn"
    assert "--model" not in start["command"]


def test_time_and_memory_are_measured():
    words = ("--data", "digits", "--model", "linear", *DIGITS, "--device", "cpu")
    found = json.loads(call("plan", *words, "--json"))
    grown = N_DIGITS / found["probe"]["records"]
    assert grown >= 1
    assert found["suggested"]["seconds"] == pytest.approx(10 * grown * found["probe"]["seconds"])
    assert found["probe"]["bytes"] > 1000
    text = call("plan", *words)
    assert "made-up records took" in " ".join(text.split())
    assert "reticent train --data digits --model linear" in text


def test_what_takes_long_is_replaced_by_an_equivalent():
    rows = [Row(100, 40, 20.0), Row(25, 40, 5.1)]
    slow = Pace(10.0, 50, "cpu", 50, None, 5, 4)
    subject = command.Subject(100)
    assert command._chosen(subject, rows, None) == rows[0]
    assert command._chosen(subject, rows, slow) == rows[1]
    # a recipe is taken as it was measured
    best = command.Subject(100, "mnist", recipe="best", recipe_steps=40)
    assert command._chosen(best, rows, slow) == rows[0]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.5, "0.5 s"), (90, "90 s"), (600, "10 min"), (9000, "2 h"), (3e5, "3 d")],
)
def test_durations(seconds, text):
    assert command._duration(seconds) == text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "--n: must be given"),
        (("--n", 0), "n = 0"),
        (("--n", 10, "--epsilon", 0), "epsilon = 0"),
        (("--n", 10, "--delta", 1), "delta = 1"),
        (("--n", 10, "--batch", 11), "batch = 11"),
        (("--n", 10, "--steps", 0), "steps = 0"),
        (("--n", 10, "--model", "forest"), "model = 'forest'"),
        (("--data", "nowhere"), "data = 'nowhere'"),
        (("--n", 10, "--dimension", 0), "dimension = 0"),
        (("--n", 10, "--dimension", 5, "--model", "linear"), "dimension = 5"),
    ],
)
def test_errors_name_option_and_value(words, said):
    assert said in refuse("plan", *words)
