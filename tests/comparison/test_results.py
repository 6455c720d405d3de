"""Means and intervals, and what is written of them."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from reticent.comparison.plans import compare_plan
from reticent.comparison.results import gather, interval, to_csv
from reticent.comparison.spending import Total
from reticent.reproduction.jobs import Outcome

from .small import made_up, own_plan


@pytest.mark.parametrize("count", [2, 3, 10])
def test_intervals_are_students(count):
    values = np.random.default_rng(count).normal(90, 2, count)
    mean, half = interval(list(values))
    low, high = stats.t.interval(0.95, count - 1, values.mean(), stats.sem(values))
    assert (mean - half, mean + half) == pytest.approx((low, high))


def test_without_two_seeds_there_is_no_interval():
    assert interval([]) == (None, None)
    assert interval([3.0]) == (3.0, None)


def plan_of(seeds=3, **options):
    return compare_plan("digits", ["dpsgd", "sgd"], [1, 3], seeds=seeds, **options)


def test_cells_are_means_over_seeds():
    plan = plan_of()
    found = json.loads(json.dumps(gather(plan, made_up(plan)), allow_nan=False))
    assert [(c["method"], c["epsilon"]) for c in found["cells"]] == [
        ("dpsgd", 1.0),
        ("dpsgd", 3.0),
        ("sgd", None),
    ]
    first, _, plain = found["cells"]
    assert first["accuracy"] == {"0": 91.0, "1": 92.0, "2": 93.0}
    assert first["mean"] == 92.0
    assert first["half_width"] == pytest.approx(4.302653 / 3**0.5, rel=1e-6)  # t of 2 degrees
    assert (first["seconds"], first["gradients"], first["steps"]) == (3.0, 1000.0, 10)
    assert (first["epsilon_proved"], first["delta"]) == (1.0, 1e-5)
    assert (plain["epsilon_proved"], plain["delta"], plain["guarantee"]) == (None, None, "none")
    assert "epsilon" not in plain["settings"]
    assert "seed" not in first["settings"]
    assert found["total"] is None
    assert found["data"] == {
        "name": "digits",
        "own": False,
        "records": 1437,
        "test_records": 360,
        "classes": 10,
    }


def test_what_is_proved_holds_for_every_seed():
    plan = plan_of(2)
    outcomes = made_up(plan)
    key = plan.job(plan.cells[0], 1).key
    outcomes[key] = replace(outcomes[key], sound_epsilon=0.5)
    assert gather(plan, outcomes)["cells"][0]["epsilon_proved"] == 1.0
    outcomes[key] = replace(outcomes[key], sound_epsilon=None)
    assert gather(plan, outcomes)["cells"][0]["epsilon_proved"] is None
    outcomes[key] = replace(outcomes[key], seconds=None)
    assert gather(plan, outcomes)["cells"][0]["seconds"] is None  # half of it is none


def test_a_stated_number_of_records_hides_the_real_one(tmp_path):
    plan = own_plan(tmp_path, n=150)
    assert plan.records not in (150, 200)
    data = gather(plan, made_up(plan))["data"]
    assert (data["records"], data["test_records"]) == (150, None)


def test_failed_and_open_jobs_are_no_numbers():
    plan = plan_of(2)
    outcomes = made_up(plan)
    keys = [plan.job(plan.cells[0], seed).key for seed in range(2)]
    outcomes[keys[0]] = Outcome(keys[0], "failed", error="row 7 of the records")
    del outcomes[keys[1]]
    cell = gather(plan, outcomes)["cells"][0]
    assert (cell["mean"], cell["half_width"], cell["accuracy"]) == (None, None, {})
    assert cell["seeds"]["0"]["error"] == "row 7 of the records"
    assert "1" not in cell["seeds"]


def test_why_a_private_training_failed_is_not_written(tmp_path):
    plan = own_plan(tmp_path)
    key = plan.jobs()[0].key
    outcomes = {key: Outcome(key, "failed", error="row 7 of the records")}
    found = json.dumps(gather(plan, outcomes, Total(1.0, 1e-5, 1, 1.0)))
    assert "row 7" not in found
    assert str(tmp_path) not in found
    assert plan.identity not in found
    assert json.loads(found)["total"]["epsilon"] == 1.0
    assert json.loads(found)["data"]["name"] == "people"


def test_every_model_is_a_line():
    plan = plan_of(2)
    found = gather(plan, made_up(plan))
    lines = list(csv.DictReader(io.StringIO(to_csv(found))))
    assert len(lines) == 6
    assert [line["method"] for line in lines] == ["dpsgd"] * 4 + ["sgd"] * 2
    assert [float(line["accuracy"]) for line in lines[:2]] == [91.0, 92.0]
    assert (lines[0]["epsilon"], lines[0]["epsilon_proved"], lines[0]["delta"]) == (
        "1.0",
        "1.0",
        "1e-05",
    )
    assert (lines[4]["epsilon"], lines[4]["epsilon_proved"]) == ("", "")
    found["data"]["name"] = "=cmd()"
    assert to_csv(found).splitlines()[1].startswith("'=cmd()")


def test_attacks_have_their_intervals():
    plan = plan_of(1, attacks=["population"])
    outcomes = made_up(plan)
    for cell in plan.cells:
        key = plan.attack_job(cell).key
        outcomes[key] = Outcome(
            key,
            values={"population.auc": 0.6, "population.tpr@0.001": None},
            intervals={"population.auc": (0.55, 0.65)},
        )
    lines = gather(plan, outcomes)["attacks"]
    assert len(lines) == 3
    assert lines[0]["auc_interval"] == [0.55, 0.65]
    assert lines[0]["tpr@0.001"] is None


def test_what_attacks_found_is_beside_the_models():
    plan = plan_of(2, attacks=["population"])
    outcomes = made_up(plan)
    for number, cell in enumerate(plan.cells):
        key = plan.attack_job(cell).key
        outcomes[key] = Outcome(
            key,
            values={"population.auc": 0.5 + number / 4, "population.tpr@0.001": None},
            intervals={"population.auc": (0.25 + number / 4, 0.75 + number / 4)},
        )
    outcomes[plan.attack_job(plan.cells[1]).key] = Outcome("x", "failed", error="no memory")
    lines = list(csv.DictReader(io.StringIO(to_csv(gather(plan, outcomes)))))
    assert len(lines) == 6
    name = "attack_population_auc"
    found = [[line[name + end] for end in ("", "_low", "_high")] for line in lines]
    assert found == [["0.5", "0.25", "0.75"]] * 2 + [[""] * 3] * 2 + [["1.0", "0.75", "1.25"]] * 2
    assert {line["attack_population_tpr@0.001"] for line in lines} == {""}
    assert "attack" not in to_csv(gather(plan_of(1), {}))
