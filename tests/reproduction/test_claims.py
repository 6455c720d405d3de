"""What each variant of a published entry trains, and what its ε is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

import reticent as rt
from reticent.cli.settings import Settings
from reticent.methods import DPSUR
from reticent.methods.published import PublishedDPSUR
from reticent.reproduction import claims
from reticent.reproduction.claims import planned
from reticent.reproduction.jobs import Job
from reticent.reproduction.running import run_jobs
from reticent.reproduction.tables import load

SETTINGS = Settings(model="mlp", batch=256, lr=2.0, steps=6, clip=0.5, noise=3.0)
SELECTIVE = Settings(
    **{"model": "mlp", "method": "dpsur", "batch": 256, "noise": 8.0, "lr": 1.0, "epsilon": 1.0},
    **{"valid_batch": 64, "valid_noise": 1.3, "bound": 0.01},
)


def test_what_each_variant_of_a_published_entry_runs(monkeypatch):
    monkeypatch.setattr(claims, "paper_steps", lambda *numbers: 3)
    entry = load("dpsur/table2").entries(
        data=["fashion-mnist"], rows=["DPSUR"], columns=[1], variants=["sound"]
    )[0]
    found = {name: planned(entry.settings, name, 60_000) for name in claims.VARIANTS}
    published, repaired, sound = found.values()
    assert isinstance(published.method, PublishedDPSUR)
    assert (published.settings.non_private, published.settings.steps) == (True, 3)
    assert (published.settings.lr, published.claim["guarantee"]) == (4.0, "none")
    assert type(repaired.method) is type(sound.method) is DPSUR
    assert (repaired.settings.non_private, repaired.settings.steps) == (False, 3)
    proved = repaired.claim["sound_epsilon"]
    assert proved <= repaired.settings.epsilon < proved + 1e-3
    assert (sound.settings.steps, sound.settings.epsilon) == (None, 1.0)  # what that affords
    assert {plan.claimed_epsilon for plan in found.values()} == {1.0}


def test_noise_is_set_as_the_training_would_and_once_for_all_seeds():
    settings = replace(SETTINGS, noise=None)
    plan = planned(settings, "sound", 1437)
    expected = rt.DPSGD(batch=256, clip=0.5).calibrated(
        rt.Budget(3.0, 1e-5), 1437, 6, rt.Ledger(rt.Budget(3.0, 1e-5))
    )
    assert plan.method.noise == expected.noise
    assert planned(replace(settings, seed=1), "sound", 1437).method is plan.method
    assert planned(replace(settings, epsilon=2.0), "sound", 1437).method.noise > expected.noise
    assert planned(replace(settings, standardise=True), "sound", 1437).method.noise is None


def test_only_dpsur_has_variants():
    with pytest.raises(rt.OptionError, match="variant = 'published'"):
        planned(SETTINGS, "published", 1437)
    assert planned(replace(SETTINGS, method="sgd"), "sound", 1437).claimed_epsilon is None
    assert planned(replace(SETTINGS, non_private=True), "sound", 1437).claimed_epsilon is None


@pytest.mark.parametrize("noise", [None, 20.0])
def test_variants_of_dpsur_end_to_end(tmp_path, noise):
    settings = replace(SELECTIVE, standardise=noise is not None, standardise_noise=noise)
    jobs = [Job(settings, variant, ("accuracy", "rejected")) for variant in claims.VARIANTS]
    published, repaired, sound = run_jobs(jobs, tmp_path, device="cpu").values()
    assert published.sound_epsilon is None
    assert published.steps == repaired.steps == published.claim["claimed_steps"]
    proved = repaired.claim["sound_epsilon"]
    assert repaired.sound_epsilon == pytest.approx(proved, abs=1e-3)
    assert sound.sound_epsilon <= 1.0
    assert all(0 <= outcome.values["rejected"] < 100 for outcome in (published, repaired, sound))
