from __future__ import annotations

import json
import math

import pytest

from reticent.privacy import Ledger

from .calling import call, refuse

PLAN = ("--n", 2000, "--batch", 100, "--stage", 25, "--rate", 0.2, "--json")


def test_noise_decay_calibrates_and_accounts_alike():
    told = json.loads(call("calibrate", "noise-decay", "--epsilon", 2, "--steps", 50, *PLAN))
    assert 0.997 * 2 < told["epsilon"] <= 2
    again = json.loads(
        call("account", "noise-decay", "--sigma", told["noise"], "--steps", 50, *PLAN)
    )
    assert again["epsilon"] == told["epsilon"]
    assert [entry["count"] for entry in again["entries"]] == [25] * 2
    shares = [entry["charge"]["multiplier"] / told["noise"] for entry in again["entries"]]
    assert shares == pytest.approx([math.exp(-0.2 * t) for t in range(2)])
    steps = json.loads(
        call("calibrate", "noise-decay", "--epsilon", 2, "--sigma", told["noise"], *PLAN)
    )
    assert steps["steps"] == 50
    constant = ("--n", 2000, "--batch", 100, "--sigma", 3, "--steps", 20, "--json")
    still = json.loads(call("account", "noise-decay", "--schedule", "constant", *constant))
    assert still["epsilon"] == json.loads(call("account", "dpsgd", *constant))["epsilon"]
    assert "schedule = 'cosine'" in refuse(
        *("account", "noise-decay", "--schedule", "cosine", *constant)
    )


def test_dpagd_plans_and_says_that_a_filter_keeps_the_budget():
    plan = ("--n", 2000, "--batch", 500)
    told = json.loads(call("calibrate", "dpagd", "--epsilon", 3, "--steps", 40, *plan, "--json"))
    assert told["epsilon"] == 3
    assert told["accountant"] == "filter"
    assert 40 / 0.6 <= told["rounds_without_failure"] <= 40 / 0.6 + 2
    assert told["choice_epsilon"] == pytest.approx(1 / told["noise"])
    spent = json.loads(
        call("account", "dpagd", "--sigma", told["noise"], "--steps", 40, *plan, "--json")
    )
    assert spent["epsilon"] < 3
    assert any("filter" in note for note in spent["notes"])
    assert {e["charge"]["kind"] for e in spent["entries"]} == {"sampled-gaussian", "sampled-pure"}
    rounds = call("calibrate", "dpagd", "--epsilon", 3, "--sigma", told["noise"], *plan)
    assert "filter at order" in " ".join(rounds.split())
    assert "to get the noise, or else --sigma" in refuse(
        "calibrate", "dpagd", "--epsilon", 3, *plan
    )


@pytest.mark.parametrize("method", ["noise-decay", "dpagd"])
def test_cards_say_what_there_is_to_know(method):
    card = json.loads(call("methods", "show", method, "--json"))
    assert card["guarantee"] == "differential-privacy"
    assert "20" in card["paper"]
    assert card["cost"].startswith("per release")
    assert {"batch", "clip", "noise"} <= {option["name"] for option in card["options"]}
    assert method in call("methods", "list")


@pytest.mark.parametrize(
    ("method", "extra", "floor"),
    [
        ("noise-decay", (), 0.85),
        (
            "noise-decay",
            ("schedule=step", "rate=0.7", "stage=20", "period=1", "clip_schedule=linear"),
            0.8,
        ),
        ("dpagd", (), 0.75),
    ],
)
def test_one_command_trains_on_digits(method, extra, floor, tmp_path):
    words = [word for each in extra for word in ("--set", each)]
    told = json.loads(
        call(
            *("train", "--data", "digits", "--method", method, "--coin-seed", 1, *words),
            *("--device", "cpu", "--out", tmp_path / "run", "--json"),
        )
    )
    assert told["epsilon"] <= 3
    assert told["accuracy"] > floor
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["method"]["name"] == method
    ledger = Ledger.load(tmp_path / "run" / "run.json")
    assert ledger.epsilon(1e-5) == told["epsilon"]
    if method == "dpagd":
        assert told["accountant"] == "filter"
        assert "failures" in kept["released"]
    else:
        multipliers = [entry.charge.multiplier for entry in ledger.entries]
        assert len(multipliers) > 2
        assert multipliers == sorted(multipliers, reverse=True)


def test_a_clip_schedule_by_configuration_file(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(
        'method = "dpsgd"\nsteps = 6\nmodel = "linear"\n[method_options]\n'
        'clip_schedule = "exponential"\nclip_rate = 0.1\nclip_stage = 2\n'
    )
    told = json.loads(
        call(
            *("train", "--config", config, "--coin-seed", 1, "--device", "cpu"),
            *("--out", tmp_path / "run", "--json"),
        )
    )
    assert told["epsilon"] <= 3
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["method"]["clip"]["schedule"] == "exponential"
