"""What a job is known by, and what is kept of it."""

from __future__ import annotations

import json
import stat
from dataclasses import fields, replace

from reticent.cli.settings import Settings
from reticent.reproduction.jobs import Job, Kept, Outcome, job_of
from reticent.reproduction.tables import parse

from .small import ATTACKS, SMALL

JOB = Job(Settings(), "sound", ("accuracy",))
OTHERS = {"data": "mnist", "model": "mlp", "method": "sgd", "features": "scattering"}


def other(value):
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, dict):
        return {"a": 1}
    return "x" if isinstance(value, str) else 7 if value is None else value + 1


def test_every_setting_is_in_the_key_but_where_it_runs():
    for field in fields(Settings):
        value = OTHERS.get(field.name, other(getattr(JOB.settings, field.name)))
        changed = replace(JOB, settings=replace(JOB.settings, **{field.name: value}))
        assert (changed.key == JOB.key) == (field.name in ("device", "root", "confusion")), (
            field.name
        )


def test_what_is_measured_is_in_the_key():
    seen = {JOB.key}
    for change in (
        {"variant": "published"},
        {"measures": ("accuracy", "rejected")},
        {"kind": "noise"},
        {"options": {"a": 1}},
        {"attacks": ("shadow",)},
        {"attacks": ("shadow",), "design": "halves"},
        {"attacks": ("shadow",), "shadows": 2},
        {"attacks": ("shadow",), "audited": 2},
        {"attacks": ("shadow",), "records": 2},
    ):
        seen.add(replace(JOB, **change).key)
    assert len(seen) == 10
    assert replace(JOB, design="halves").key == JOB.key  # without attacks it means nothing


def test_the_key_does_not_change_between_versions():
    # kept results would be lost: raise FORMAT when this must change
    small = parse(SMALL, "small", "small.toml")
    job = job_of(small, small.entries()[0], 3)
    assert job.settings.seed == 3
    content = job.content()
    assert content["data"] == {"name": "digits", "train": 1437, "test": 360}
    assert len(job.key) == 32
    assert job.key == job_of(small, small.entries()[0], 3).key


def test_coins_follow_from_the_content():
    mine, same = JOB.coins(), replace(JOB, settings=replace(JOB.settings, device="cpu")).coins()
    assert mine.secret() == same.secret()
    others = [JOB.coins(1), replace(JOB, variant="repaired").coins()]
    assert all(coins.secret() != mine.secret() for coins in others)


def test_the_job_of_an_entry_with_attacks():
    table = parse(ATTACKS, "attacks", "attacks.toml")
    job = job_of(table, table.entries()[0], 0, lr=0.3)
    assert (job.attacks, job.shadows, job.audited) == (("population", "shadow"), 2, 100)
    assert job.settings.lr == 0.3


def test_what_is_kept_is_private_and_comes_back(tmp_path):
    kept = Kept(tmp_path)
    outcome = Outcome(
        JOB.key,
        values={"accuracy": 91.5, "curve": [1.0, 2.0]},
        intervals={"accuracy": (90.0, 92.0)},
        sound_epsilon=1.0,
        notes=("a",),
    )
    assert kept.read(JOB.key) is None
    kept.write(JOB, outcome)
    path = kept.path(JOB.key)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept.read(JOB.key) == outcome
    assert kept.seeds() == {0}


def test_what_failed_is_not_kept(tmp_path):
    kept = Kept(tmp_path)
    for state in ("failed", "missing"):
        kept.write(JOB, Outcome(JOB.key, state, error="why"))
        assert kept.read(JOB.key) is None


def test_a_file_that_is_not_whole_or_of_another_format_is_not_used(tmp_path):
    kept = Kept(tmp_path)
    kept.write(JOB, Outcome(JOB.key, values={"accuracy": 91.5}))
    path = kept.path(JOB.key)
    whole = json.loads(path.read_text())
    for broken in (
        "",
        "[]",
        json.dumps({**whole, "outcome": {}}),
        json.dumps({**whole, "job": {**whole["job"], "format": "reticent-reproduction/0"}}),
        json.dumps({**whole, "outcome": {**whole["outcome"], "key": "other"}}),
        json.dumps({**whole, "outcome": {**whole["outcome"], "more": 1}}),
    ):
        path.write_text(broken)
        assert kept.read(JOB.key) is None
