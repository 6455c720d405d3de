from __future__ import annotations

import json

import pytest

from .calling import call


@pytest.mark.parametrize("method", ["sign-sgd", "sign-adam"])
def test_signs_cost_what_dpsgd_costs(method):
    plan = ("--n", 60000, "--batch", 256, "--steps", 100, "--json")
    kinds = [json.loads(call("account", m, "--sigma", 1.1, *plan)) for m in ("dpsgd", method)]
    assert kinds[0]["epsilon"] == kinds[1]["epsilon"]
    kinds = [json.loads(call("calibrate", m, "--epsilon", 2, *plan)) for m in ("dpsgd", method)]
    assert kinds[0]["noise"] == kinds[1]["noise"]
    assert "post-processing" in call("methods", "show", method) or "released" in call(
        "methods", "show", method
    )


@pytest.mark.parametrize(
    ("method", "extra"),
    [("sign-sgd", ()), ("sign-sgd", ("momentum=0.5",)), ("sign-adam", ("beta1=0.8", "eps=1e-7"))],
)
def test_one_command_trains_on_digits(method, extra, tmp_path):
    words = [word for each in extra for word in ("--set", each)]
    told = json.loads(
        call(
            *("train", "--method", method, "--coin-seed", 1, "--device", "cpu", *words),
            *("--out", tmp_path / "run", "--json"),
        )
    )
    assert told["epsilon"] <= 3
    assert told["accuracy"] > 0.8
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["method"]["name"] == method
    for each in extra:
        name, value = each.split("=")
        assert kept["method"][name] == float(value)
