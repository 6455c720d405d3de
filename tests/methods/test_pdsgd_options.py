"""PD-SGD's options, ablations and what it writes; a poisoned batch is rejected."""

from __future__ import annotations

import importlib
import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import reticent as rt
from reticent.cli.settings import resolve
from reticent.methods.pdsgd import PRESETS

from .problem import INPUTS, TARGETS, N, network, sgd, started

METHOD = rt.PDSGD(batches=7, sigma=0.1, gamma=3.0, threshold=3)


def run(method=METHOD, **changes):
    return started(method, **{"budget": None, "steps": 30, **changes})


def accepted(training):
    return [line["accepted"] for line in training.run.diagnostics]


@pytest.mark.parametrize("rate", [0.0, 0.3, 1.0])
def test_random_rejection(rate):
    training = run(replace(METHOD, random_rejection=rate), steps=300)
    training.finish()
    rejected = 300 - sum(accepted(training))
    # Hoeffding: 300 coins are off by 50 with probability below 2·exp(−16.6) < 1.3e-7
    assert abs(rejected - 300 * rate) <= (50 if 0 < rate < 1 else 0)
    assert "evaluated" not in training.run.diagnostics[0]


def test_what_is_written_says_nothing_of_rejections(tmp_path):
    for name, method in (("some", METHOD), ("none", replace(METHOD, gamma=1e9))):
        training = run(method, folder=tmp_path / name)
        training.finish()
    told = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("some", "none")]
    for one in told:
        assert one["guarantee"] == "plausible-deniability"
        assert one["statement"]["epsilon"] is None
        assert one["seconds"] is None
        assert one["released"]["certificate"]["dimension"] == 50
        for gone in ("versions", "released", "piece_memory_bytes", "model_sha256"):
            del one[gone]
        one["method"].pop("gamma")
    assert told[0] == told[1]  # whatever was rejected
    assert not (tmp_path / "some" / "checkpoint.pt").exists()


def test_no_budget_and_no_epsilon():
    result = run(steps=2).finish()
    assert result.epsilon == math.inf
    assert result.released["certificate"]["limits"][0]["update"] > 0
    budget = rt.Budget(3, 1e-5)
    with pytest.raises(rt.OptionError, match="budget = 'epsilon 3': pd-sgd promises no differ"):
        rt.train(network(), (INPUTS, TARGETS), method=METHOD, budget=budget, steps=2, optimizer=sgd)
    with pytest.raises(rt.OptionError, match="budget = 'epsilon 3'"):
        METHOD.calibrated(budget, N, 2, None)
    with pytest.raises(rt.OptionError, match="epochs = 2"):
        run(steps=None, epochs=2)
    with pytest.raises(rt.OptionError, match="steps"):
        run(steps=None)


@pytest.mark.parametrize(
    "changes", [{"threshold": 1}, {"test_only": True}, {"random_rejection": 0.5}]
)
def test_ablations_guarantee_nothing(changes):
    method = replace(METHOD, **changes)
    assert (METHOD.guarantee, method.guarantee) == ("plausible-deniability", "none")
    result = run(method, steps=1).finish()
    assert result.to_json()["guarantee"] == "none"
    assert result.released == {"ablation": method.ablation}
    with pytest.raises(rt.OptionError, match="promises nothing"):
        method.certificate()
    with pytest.raises(rt.OptionError, match="budget"):
        run(method, budget=rt.Budget(1, 1e-5))


def test_the_published_settings():
    for name, preset in PRESETS.items():
        method = rt.PDSGD.preset(name, batches=10, group=2)
        assert (method.sigma, method.gamma) == (preset.sigma, preset.gamma)
        assert (method.threshold, method.batches, method.group) == (preset.threshold, 10, 2)
    assert rt.PDSGD.preset("cifar10-2", 9, threshold=2).threshold == 2
    with pytest.raises(rt.OptionError, match="preset = 'mnist'"):
        rt.PDSGD.preset("mnist", 10)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"batches": 0}, "batches = 0"),
        ({"sigma": 0.0}, "sigma = 0.0"),
        ({"sigma": math.inf}, "sigma = inf"),
        ({"gamma": -1.0}, "gamma = -1.0"),
        ({"threshold": 0}, "threshold = 0"),
        ({"threshold": 8}, "threshold = 8: exceeds the number of batches 7"),
        ({"random_rejection": 1.5}, "random_rejection = 1.5"),
        ({"random_rejection": 0.5, "test_only": True}, "random_rejection = 0.5"),
        ({"test_only": 1}, "test_only = 1"),
        ({"group": 0}, "group = 0"),
    ],
)
def test_errors_name_option_and_value(changes, named):
    with pytest.raises(rt.OptionError, match=named):
        replace(METHOD, **changes)


def test_more_batches_than_records():
    with pytest.raises(rt.OptionError, match="batches = 121: exceeds the number of records 120"):
        run(replace(METHOD, batches=121))


def test_a_poisoned_batch_is_rejected_and_others_are_not(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    before = set(sys.modules)
    poisoning = importlib.import_module("poisoning")
    for name in {"poisoning", "machine"} - before:
        sys.modules.pop(name, None)
    settings = resolve(
        None,
        {
            **{"data": "digits", "method": "pd-sgd", "model": "linear", "device": "cpu"},
            **{"steps": 150, "lr": 0.3, "momentum": 0.0},
            "method_options": {"batches": 8, "sigma": 0.02, "gamma": 170.0, "threshold": 3},
        },
    )
    splits = rt.data.load("digits")
    clean, flipped = (poisoning.rejections(settings, splits, share, 1) for share in (0.0, 1.0))
    assert clean["poisoned"]["updates"] == flipped["poisoned"]["updates"] > 10
    assert clean["poisoned"]["rate"] < 0.3
    assert flipped["poisoned"]["rate"] > 0.8
    for found in (clean, flipped):
        assert found["normal"]["rate"] < 0.3
