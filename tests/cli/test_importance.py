from __future__ import annotations

import json

import pytest

from .calling import call, refuse


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dpis") / "run"
    words = ("--method", "dpis", "--coin-seed", 1, "--device", "cpu", "--set", "divider=0.5")
    told = json.loads(call("train", *words, "--out", folder, "--json"))
    return folder, told


def test_one_command_trains_on_digits(trained):
    folder, told = trained
    assert told["epsilon"] <= 3
    assert told["accuracy"] > 0.85
    kept = json.loads((folder / "run.json").read_text())
    assert kept["statement"]["accountant"] == "filter"
    # of the recipe, and of the flag
    assert (kept["method"]["k"], kept["method"]["divider"]) == (3.0, 0.5)
    noises = [line["noise"] for line in kept["released"]["epochs"]]
    assert noises[-1] < noises[0]


def test_what_was_spent_follows_from_what_was_released(trained, tmp_path):
    folder, _ = trained
    told = json.loads(call("account", "dpis", "--trajectory", folder, "--json"))
    assert told["epsilon"] == 3
    assert 2.9 < told["spent_epsilon"] <= 3
    assert "the same charges" in call("account", "dpis", "--trajectory", folder)
    kept = json.loads((folder / "run.json").read_text())
    paid = {(e["purpose"], json.dumps(e["charge"])): e["count"] for e in kept["ledger"]["entries"]}
    shown: dict = {}
    for e in told["entries"]:
        key = (e["purpose"], json.dumps(e["charge"]))
        shown[key] = shown.get(key, 0) + e["count"]
    assert shown == paid
    # a ledger that does not tell what happened
    cheated = {**kept, "released": json.loads(json.dumps(kept["released"]))}
    cheated["released"]["epochs"][0]["sum"] *= 0.9
    path = tmp_path / "run.json"
    path.write_text(json.dumps(cheated))
    assert "do not follow from what was released" in refuse("account", "dpis", "--trajectory", path)
    less = json.loads(json.dumps(kept))
    less["ledger"]["entries"] = less["ledger"]["entries"][:-1]
    path.write_text(json.dumps(less))
    assert "was not paid for" in refuse("account", "dpis", "--trajectory", path)


def test_a_trajectory_alone_proves_nothing(tmp_path):
    path = tmp_path / "sums.json"
    line = {"release": 0, "sum": 30000.0, "clip": 1.0, "noise": 1.0}
    plan = {"n": 60000, "size": 59000.0, "steps": 100, "epochs": [line, {**line, "release": 59}]}
    path.write_text(json.dumps(plan))
    words = ("account", "dpis", "--trajectory", path, "--batch", 1024, "--order", 9)
    told = json.loads(call(*words, "--json"))
    assert told["epsilon"] is None
    assert told["guarantee"] == "none"
    assert told["filter_order"] == 9
    assert sum(e["count"] for e in told["entries"] if e["purpose"] == "training") == 100
    assert told["spent_epsilon"] > 0
    assert "proves nothing by itself" in call(*words)
    tiny = {**line, "noise": 0.02}  # where drawn noise ends, a record may be seen
    path.write_text(json.dumps({**plan, "epochs": [tiny, {**tiny, "release": 59}]}))
    assert json.loads(call(*words, "--json"))["spent_epsilon"] is None
    assert "spent: ε = no bound" in call(*words)
    path.write_text(json.dumps(plan))
    assert "batch" in refuse("account", "dpis", "--trajectory", path)
    path.write_text(json.dumps({**plan, "epochs": [{"release": 0}]}))
    assert "lacks what was released" in refuse(*words)
    path.write_text("{")
    assert "not JSON" in refuse(*words)
    assert "No such file" in refuse("account", "dpis", "--trajectory", tmp_path / "none")


def test_noise_for_a_number_of_steps():
    words = ("--n", 60000, "--batch", 1024, "--epsilon", 3, "--steps", 1740)
    told = json.loads(call("calibrate", "dpis", *words, "--json"))
    plain = json.loads(call("calibrate", "dpsgd", *words, "--json"))
    # in the worst case a filter costs a little more than the tightest accountant
    assert plain["noise"] < told["noise"] < 1.1 * plain["noise"]
    assert told["epsilon_of_sums"] < 0.1
    assert "filter of order" in call("calibrate", "dpis", *words)
    assert "exceeds the nominal size" in refuse(
        "calibrate", "dpis", "--n", 1000, "--batch", 500, "--epsilon", 3, "--steps", 5
    )


def test_the_card_and_what_it_does_not_take():
    assert "σ_K" in call("methods", "show", "dpis")
    assert "noise" in refuse("train", "--method", "dpis", "--noise", 1.0)
    assert "clipping" in refuse("train", "--method", "dpis", "--clipping", "quantile")
    assert "noise" in refuse("train", "--method", "dpis", "--non-private")
