"""Attacks on the models of a job, and which records they have."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import reticent as rt
from reticent import models
from reticent.audit import Attacking, ShadowPlan
from reticent.audit.membership import attack_split
from reticent.cli.settings import Settings
from reticent.reproduction.attacking import cut, members_of
from reticent.reproduction.jobs import Job, job_of
from reticent.reproduction.measuring import measure
from reticent.reproduction.tables import parse

from .small import ATTACKS

JOB = Job(Settings(), "sound", ("shadow.auc",), attacks=("shadow",))


def numbered(n, start=0):
    rows = torch.arange(start, start + n)
    return rows[:, None].float(), rows


@pytest.mark.parametrize(
    ("design", "records", "pool", "outside"),
    [
        ("split", None, 9000, 3000),
        ("split", 1000, 3000, 3000),
        ("split", 3300, 9900, 2100),
        ("split", 9000, 10_500, 1500),  # half of the test records stay outside
        ("halves", None, 9000, 3000),
        ("halves", 1000, 2400, 3000),  # a sixth of them is the population
        ("model", None, 9000, 3000),
        ("model", 1000, 1000, 3000),
        ("model", 9500, 9000, 3000),
    ],
)
def test_the_pool(design, records, pool, outside):
    job = replace(JOB, design=design, records=records)
    inside, others = cut(job, numbered(9000), numbered(3000, start=9000))
    assert (len(inside[1]), len(others[1])) == (pool, outside)
    mine, theirs = set(inside[1].tolist()), set(others[1].tolist())
    assert len(mine) == pool
    assert not mine & theirs
    assert torch.equal(inside[0][:, 0].long(), inside[1])
    if records is not None and pool < 9000:
        assert members_of(job, pool) == records
        other = cut(replace(job, settings=Settings(seed=1)), numbered(9000), numbered(3000, 9000))
        assert not torch.equal(other[0][1], inside[1])


@pytest.mark.parametrize("design", ["split", "halves", "model"])
def test_all_measures_come_from_one_set_of_models(tmp_path, design):
    text = ATTACKS.replace("shadows = 2", f'shadows = 2\ndesign = "{design}"')
    table = parse(text, "attacks", "attacks.toml")
    job = job_of(table, table.entries()[0], 0)
    outcome = measure(job, tmp_path, device="cpu")
    assert outcome.state == "done", outcome.error
    assert set(outcome.values) == {"accuracy", "shadow.accuracy", "best.auc"}
    assert outcome.values["accuracy"] > 20  # of ten digits, after 20 steps
    low, high = outcome.intervals["shadow.accuracy"]
    assert low <= outcome.values["shadow.accuracy"] <= high
    assert "best.auc" not in outcome.intervals  # which was chosen after the fact
    assert outcome.sound_epsilon is None
    assert outcome.steps == 20
    assert not any(tmp_path.iterdir())


def test_private_models_state_what_they_cost(tmp_path):
    text = ATTACKS.replace('method = "sgd", ', 'method = "dpsgd", epsilon = 2.0, noise = 4.0, ')
    table = parse(text, "attacks", "attacks.toml")
    entry = table.entries()[0]
    vectorised = measure(job_of(table, entry, 0), tmp_path, device="cpu")
    assert vectorised.state == "done", vectorised.error
    assert vectorised.claimed_epsilon == 2.0
    assert 0.5 < vectorised.sound_epsilon <= 2.0
    # the noise of sign-SGD is DP-SGD's, and so is what it costs; it is trained one by one
    signs = replace(entry, settings=replace(entry.settings, method="sign-sgd", lr=0.01))
    alone = measure(job_of(table, signs, 0), tmp_path, device="cpu")
    assert alone.sound_epsilon == pytest.approx(vectorised.sound_epsilon, abs=1e-9)
    assert alone.steps == vectorised.steps == 20


@pytest.mark.parametrize("variant", ["published", "repaired"])
def test_statistics_are_paid_from_the_budget_of_the_variant(tmp_path, variant):
    text = ATTACKS.replace(
        'method = "sgd", ',
        'method = "dpsur", noise = 20.0, valid_batch = 64, valid_noise = 2.0, bound = 0.01, '
        "epsilon = 2.0, standardise = true, standardise_noise = 20.0, ",
    )
    text = text.replace("shadows = 2", 'shadows = 2\ndesign = "split"').replace(", steps = 20", "")
    table = parse(text, "attacks", "attacks.toml")
    job = replace(job_of(table, table.entries()[0], 0), variant=variant)
    outcome = measure(job, tmp_path, device="cpu")
    assert outcome.state == "done", outcome.error
    if variant == "published":
        assert outcome.sound_epsilon is None
    else:
        assert outcome.sound_epsilon == pytest.approx(outcome.claim["sound_epsilon"], abs=1e-3)


def test_numbers_are_those_of_the_attacks_themselves(tmp_path):
    """Compared with `attack_split` put together by hand."""
    text = ATTACKS.replace('method = "sgd", ', 'method = "dpsgd", noise = 1.0, epsilon = 50.0, ')
    text = text.replace("[data.digits]", "[data.digits]\nrecords = 400")
    text = text.replace('attacks = ["population"]', 'attacks = ["population", "rmia"]')
    table = parse(text, "attacks", "attacks.toml")
    outcome = measure(job_of(table, table.entries()[0], 2), tmp_path, device="cpu")
    data = rt.data.load("digits")
    generator = torch.Generator().manual_seed(2)
    rows = torch.randperm(1437, generator=generator)[:1200].sort().values
    report = attack_split(
        (data.train[0][rows], data.train[1][rows]),
        build=lambda k: models.build("mlp", classes=10, input_shape=(1, 8, 8), seed=2),
        plan=ShadowPlan(batch=64, steps=20, lr=0.1, clip=1.0, noise=1.0, n=400, seed=2),
        attacking=Attacking(("population", "rmia", "shadow"), shadows=2, records=100, seed=2),
        device="cpu",
    )
    shadow = report.results["shadow"][0].accuracy
    assert outcome.values["shadow.accuracy"] == pytest.approx(shadow.value, abs=1e-9)
    assert outcome.intervals["shadow.accuracy"] == pytest.approx((shadow.low, shadow.high))
    best = max(report.results[name][0].auc.value for name in ("population", "rmia", "shadow"))
    assert outcome.values["best.auc"] == pytest.approx(best, abs=1e-9)
