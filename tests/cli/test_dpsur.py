import json

import pytest

from reticent.cli.settings import resolve

from .calling import call, refuse

PLAN = (
    *("account", "dpsur", "--n", 60000, "--batch", 1024, "--sigma", 2.0, "--valid-batch", 256),
    *("--valid-sigma", 1.3, "--beta", -1, "--delta", 1e-5),
)
CALIBRATE = ("calibrate", "dpsur", "--n", 1000, "--batch", 300, "--epsilon", 2)
SMALL = (
    *("train", "--method", "dpsur", "--batch", 200, "--noise", 8, "--valid-batch", 50),
    *("--valid-noise", 1.3, "--bound", 0.01, "--steps", 3, "--epsilon", 5, "--device", "cpu"),
    *("--coin-seed", 1),
)


def test_account_of_a_published_setting():
    exact = json.loads(call(*PLAN, "--steps", 576, "--json"))
    assert 1.177 <= exact["epsilon"] <= 1.20
    assert (exact["accountant"], exact["guarantee"]) == ("selective-exact", "differential-privacy")
    by = exact["epsilon_by"]
    assert exact["epsilon"] <= by["selective-pld"] <= 1.30
    assert exact["epsilon"] <= by["selective-rdp"] <= 1.36
    for name in ("selective-pld", "selective-rdp"):
        shown = json.loads(call(*PLAN, "--steps", 576, "--accountant", name, "--json"))
        assert (shown["accountant"], shown["epsilon"]) == (name, by[name])
    claim = json.loads(call(*PLAN, "--steps", 576, "--accountant", "paper", "--json"))
    assert claim["epsilon"] == pytest.approx(1.0, abs=0.01)
    assert (claim["accountant"], claim["guarantee"]) == ("paper", "none")
    assert claim["sound_epsilon"] == exact["epsilon"]
    people = call(*PLAN, "--steps", 576, "--accountant", "paper")
    assert "not a guarantee" in people
    assert "selective-exact" in people


def test_calibrate_goes_both_ways():
    common = (*CALIBRATE, "--valid-batch", 20)
    steps = json.loads(call(*common, "--sigma", 4, "--json"))
    assert steps["accountant"] == "selective-exact"
    assert 1.8 < steps["epsilon"] <= 2
    noise = json.loads(call(*common, "--steps", steps["steps"], "--json"))
    assert 3.5 < noise["noise"] <= 4.01
    assert 1.99 < noise["epsilon"] <= 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*PLAN, "--steps", 5, "--accountant", "magic"), "accountant = 'magic'"),
        ((*PLAN, "--steps", -5), "steps = -5"),
        ((*PLAN, "--steps", 5, "--beta", -40), "beta = -40"),
        ((*PLAN, "--steps", 5, "--trials", 0), "trials = 0"),
        ((*CALIBRATE, "--sigma", 3, "--trials", 4), "trials = 4: all of them fail"),
        ((*CALIBRATE, "--steps", 3, "--trials", 4), "trials = 4: all of them fail"),
        ((*SMALL, "--beta", "nan"), "beta = nan"),
        ((*SMALL, "--valid-batch", 0), "--valid-batch = 0"),
        (("train", "--beta", -1), "beta = -1.0: is not an option of dpsgd"),
        (("train", "--method", "dpsur-published"), "method = 'dpsur-published'"),
        (("reproduce", "dpsur/table9"), "table = 'dpsur/table9'"),
        (("reproduce", "dpsur/table2", "--data", "digits"), "data = 'digits'"),
        (("reproduce", "dpsur/table2", "--variant", "best"), "variant = 'best'"),
        (("reproduce", "dpsur/table2", "--epsilon", 0), "epsilon = 0"),
    ],
)
def test_bad_input_is_named(words, says, tmp_path):
    where = () if words[0] in ("account", "calibrate") else ("--out", tmp_path / "run")
    assert says in refuse(*words, *where)
    assert not (tmp_path / "run").exists()


def test_train(tmp_path):
    shown = json.loads(call(*SMALL, "--out", tmp_path / "run", "--json"))
    assert shown["steps"] == 3
    assert shown["epsilon"] <= 5
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert report["method"]["name"] == "dpsur"
    assert report["ledger"]["entries"][0]["charge"]["kind"] == "selective-gaussian"
    assert not (tmp_path / "run" / "diagnostics.private.json").exists()
    again = json.loads(call("account", "--ledger", tmp_path / "run" / "run.json", "--json"))
    assert again["epsilon"] == shown["epsilon"]


def test_private_diagnostics_are_kept_apart(tmp_path):
    call(*SMALL, "--out", tmp_path / "run", "--private-diagnostics", "--quiet")
    kept = tmp_path / "run" / "diagnostics.private.json"
    assert kept.stat().st_mode & 0o077 == 0
    found = json.loads(kept.read_text())
    assert "must not leave" in found["warning"]
    assert [line["release"] for line in found["releases"]] == [0, 1, 2]
    assert all(line["trials"] >= 1 for line in found["releases"])
    call(*SMALL, "--out", tmp_path / "run", "--overwrite", "--quiet")
    assert not kept.exists()


def test_the_recipe_takes_table_1():
    for epsilon, noise, valid in ((0.5, 4.0, 1.3), (1, 4.0, 1.3), (3, 2.15, 0.8), (9, 2.15, 0.8)):
        settings = resolve(
            None,
            {"data": "fashion-mnist", "method": "dpsur", "epsilon": epsilon},
        )
        assert (settings.noise, settings.valid_noise) == (noise, valid)
        assert settings.steps is None
        assert settings.epochs is None
    settings = resolve(None, {"data": "fashion-mnist", "method": "dpsur", "steps": 50})
    assert (settings.noise, settings.steps) == (None, 50)
