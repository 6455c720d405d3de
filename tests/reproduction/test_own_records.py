"""Jobs on somebody's own records: secret noise, and nothing paid for twice."""

from __future__ import annotations

import json
import random
import stat
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from reticent.cli.settings import Settings, resolve
from reticent.coins import Coins
from reticent.errors import OptionError
from reticent.reproduction import measuring, own_records
from reticent.reproduction.jobs import Job, Kept
from reticent.reproduction.measuring import grouped, measure
from reticent.reproduction.own_records import RUNS_FOLDER, run_name
from reticent.reproduction.running import run_jobs
from reticent.training.checkpoint import CHECKPOINT, read_checkpoint
from reticent.training.train import SEEDED_NOTE

OPTIONS = {"target": "ill", "classes": "no,yes", "bounds": ["age=0..120"]}


def people(folder, n=120, seed=0):
    folder.mkdir(exist_ok=True)
    path = folder / "people.csv"
    ages = [random.Random(f"{seed} {k}").randint(18, 90) for k in range(n)]
    path.write_text("age,ill\n" + "".join(f"{a},{'yes' if a > 50 else 'no'}\n" for a in ages))
    return path


def job_on(path, **flags):
    given = {"data": str(path), "steps": 5, "epsilon": 1.0, "data_options": OPTIONS, **flags}
    return Job(resolve(None, given), "sound", ("accuracy",))


@pytest.fixture
def job(tmp_path):
    return job_on(people(tmp_path / "data"))


def run_of(out, job):
    return out / RUNS_FOLDER / run_name(job)


def flat(state):
    return torch.cat([state[name].flatten() for name in sorted(state)])


def weights(folder):
    return flat(load_file(folder / "model.safetensors"))


def test_noise_is_drawn_anew(job, tmp_path):
    found = []
    for name in ("one", "two"):
        outcome = run_jobs([job], tmp_path / name, device="cpu")[job.key]
        assert outcome.state == "done", outcome.error
        assert SEEDED_NOTE not in outcome.ledger["notes"]
        found.append(weights(run_of(tmp_path / name, job)))
    assert not torch.equal(*found)
    # the same settings on public data repeat their noise
    public = Job(Settings(model="linear", steps=2, noise=3.0), "sound", ("accuracy",))
    assert torch.equal(*(public.coins().normal((3,), "noise", 0) for _ in range(2)))


def test_no_coins_follow_from_the_name_of_a_private_job(job, tmp_path, monkeypatch):
    with pytest.raises(OptionError, match="must not follow from a name"):
        job.coins()
    monkeypatch.setattr(Coins, "from_seed", lambda seed: pytest.fail("seeded coins"))
    assert run_jobs([job], tmp_path / "out", device="cpu")[job.key].state == "done"


def test_a_folder_is_private_even_without_a_suffix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for data in ("photos", "./photos", str(tmp_path / "photos"), "gone.csv", "digits/"):
        assert Job(Settings(data=data), "sound", ("accuracy",)).private
    assert not Job(Settings(data="digits"), "sound", ("accuracy",)).private


def test_the_name_of_a_job_says_nothing_about_the_records(tmp_path):
    one = job_on(people(tmp_path / "a"))
    other = job_on(people(tmp_path / "b", seed=1))
    # as many records in both
    assert one.settings.batch != 120
    same = replace(other, settings=replace(other.settings, batch=one.settings.batch))
    same = replace(same, settings=replace(same.settings, lr=one.settings.lr))
    assert one.key == same.key
    assert str(tmp_path) not in json.dumps(one.content())
    assert one.key != job_on(tmp_path / "a" / "people.csv", epsilon=2.0).key


def test_the_run_folder_is_that_of_train(job, tmp_path):
    out = tmp_path / "out"
    outcome = run_jobs([job], out, device="cpu")[job.key]
    folder = run_of(out, job)
    assert {path.name for path in folder.iterdir()} == {
        *("model.safetensors", "records.json", "run.json", "settings.json")
    }
    modes = {p: stat.S_IMODE(p.stat().st_mode) for p in (folder / "records.json", *files(out))}
    assert set(modes.values()) == {0o600}
    run = json.loads((folder / "run.json").read_text())
    assert outcome.sound_epsilon == run["statement"]["epsilon"] <= 1
    assert outcome.values["accuracy"] == 100 * run["metrics"][-1]["accuracy"]
    assert outcome.ledger == run["ledger"]
    assert (outcome.steps, outcome.guarantee) == (5, "differential-privacy")
    assert outcome.gradients == 5 * job.settings.batch
    assert not (out / "work").exists()


def files(out):
    return list((out / "jobs").iterdir())


def test_private_time_is_not_kept(tmp_path):
    path = people(tmp_path / "data")
    job = job_on(path, method="pd-sgd", epsilon=None, steps=3)
    outcome = run_jobs([job], tmp_path / "out", device="cpu")[job.key]
    assert outcome.state == "done", outcome.error
    assert outcome.seconds is None
    assert outcome.gradients is None
    assert outcome.sound_epsilon is None
    kept = json.loads(files(tmp_path / "out")[0].read_text())["outcome"]
    assert kept["seconds"] is None


def test_what_is_finished_is_not_trained_again(job, tmp_path, monkeypatch):
    """Not even if the process ended before its outcome was written down."""
    first = run_jobs([job], tmp_path, device="cpu")[job.key]
    Kept(tmp_path).path(job.key).unlink()
    monkeypatch.setattr(own_records, "build_training", lambda *a, **k: pytest.fail("again"))
    again = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert again == first


class Killed(BaseException):
    """As if the process ended."""


def killed(job, out, at=3):
    def die(done, total):
        if done == at:
            raise Killed

    with pytest.raises(Killed):
        measure(job, out / "work", runs=out / RUNS_FOLDER, device="cpu", progress=die)


def test_a_killed_job_goes_on_with_its_own_noise(job, tmp_path):
    from reticent.cli.building import build_training

    killed(job, tmp_path)
    folder = run_of(tmp_path, job)
    key = read_checkpoint(folder)["coins"]["key"]
    # the same training, put together by hand with the noise that was begun
    expected = build_training(
        replace(job.settings, device="cpu"),
        folder=tmp_path / "by-hand",
        resume=False,
        coins=Coins(bytes.fromhex(key)),
    ).finish()
    outcome = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert outcome.state == "done", outcome.error
    assert torch.equal(weights(folder), flat(expected.model.state_dict()))
    assert sum(line["count"] for line in outcome.ledger["entries"]) == 5
    assert not (folder / CHECKPOINT).exists()


def test_a_checkpoint_that_cannot_be_used_is_not_begun_again(job, tmp_path):
    killed(job, tmp_path)
    path = run_of(tmp_path, job) / CHECKPOINT
    path.write_bytes(b"not a checkpoint")
    outcome = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert outcome.state == "failed"
    assert "checkpoint" in outcome.error
    assert path.read_bytes() == b"not a checkpoint"


def test_statistics_are_released_once(tmp_path):
    """Columns without bounds have private statistics, which a second sitting must not draw."""
    options = {"target": "ill", "classes": "no,yes"}
    job = job_on(people(tmp_path / "data"), data_options=options)
    assert job.settings.standardise
    killed(job, tmp_path, at=1)
    folder = run_of(tmp_path, job)
    (folder / CHECKPOINT).unlink()  # as if it had ended before its first release
    before = (folder / "standardisation.safetensors").read_bytes()
    outcome = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert outcome.state == "done", outcome.error
    assert (folder / "standardisation.safetensors").read_bytes() == before
    assert len(outcome.ledger["entries"]) > 1


def test_records_that_changed_are_refused(job, tmp_path):
    killed(job, tmp_path)
    people(tmp_path / "data", seed=1)
    outcome = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert outcome.state == "failed"
    assert "changed" in outcome.error


def test_records_that_changed_between_two_jobs_are_refused(job, tmp_path):
    out = tmp_path / "out"
    run_jobs([job], out, device="cpu")
    (out / "records.json").write_bytes((run_of(out, job) / "records.json").read_bytes())
    people(tmp_path / "data", seed=1)
    second = replace(job, settings=replace(job.settings, seed=1))
    outcome = run_jobs([second], out, device="cpu")[second.key]
    assert outcome.state == "failed"
    assert "changed" in outcome.error
    assert not (run_of(out, second) / CHECKPOINT).exists()  # nothing was released


def test_a_run_that_diverged_failed_and_stays_paid(tmp_path, monkeypatch):
    job = job_on(people(tmp_path / "data"), lr=1e38, clip=1e4)
    outcome = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert outcome.state == "failed"
    assert "diverged" in outcome.error
    assert (run_of(tmp_path, job) / "run.json").exists()
    monkeypatch.setattr(own_records, "build_training", lambda *a, **k: pytest.fail("again"))
    assert run_jobs([job], tmp_path, device="cpu")[job.key].state == "failed"


def test_a_run_that_was_not_asked_at_its_end_is_asked_now(job, tmp_path):
    first = run_jobs([job], tmp_path, device="cpu")[job.key]
    path = run_of(tmp_path, job) / "run.json"
    run = json.loads(path.read_text())
    run["metrics"] = [{"step": 1, "accuracy": 0.123}]
    path.write_text(json.dumps(run))
    Kept(tmp_path).path(job.key).unlink()
    again = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert again.values["accuracy"] == pytest.approx(first.values["accuracy"])


@pytest.mark.parametrize(
    "change",
    [
        {"attacks": ("population",), "measures": ("population.auc",)},
        {"measures": ("rejected",)},
        {"variant": "published"},
        {"kind": "noise"},
    ],
)
def test_only_plain_trainings_are_made(job, tmp_path, change):
    outcome = measure(replace(job, **change), tmp_path, device="cpu")
    assert outcome.state == "failed"
    assert "own" in outcome.error
    assert not any(tmp_path.glob("**/run.json"))


def test_private_jobs_are_never_trained_at_once(job):
    jobs = [replace(job, settings=replace(job.settings, seed=seed)) for seed in range(3)]
    assert [len(group) for group in grouped(jobs, together=True)] == [1, 1, 1]
    assert measuring.can_be_together(
        replace(job, settings=replace(job.settings, data="digits", data_options={}))
    )
