"""`benchmarks/reproductions.py` loses no finished job."""

from __future__ import annotations

import json
import signal
import statistics
import sys
import time
from pathlib import Path

import pytest

from reticent.reproduction import running
from reticent.reproduction.jobs import Outcome, job_of
from reticent.reproduction.tables import load, parse
from reticent.training.checkpoint import CHECKPOINT

from ..small_encoder import write_image_encoder
from .small import ATTACKS, SMALL

ROOT = Path(__file__).parent.parent.parent
RECORD = "reproduce-small.json"


def read(folder):
    return json.loads((folder / RECORD).read_text())


def numbers(record):
    """All of a record that does not depend on how long it took."""
    entries = [
        (
            entry["row"],
            entry["column"],
            entry["measures"],
            entry["settings"],
            entry["sound_epsilon"],
        )
        for entry in record["entries"]
    ]
    return entries, record["settings"]


def cut_off(bench, monkeypatch, at):
    """As if the limit came when the job of this number begins."""
    begun = []

    def run(jobs, out, *, tell, **options):
        def telling(event):
            if event.what == running.STARTED:
                begun.append(event.key)
                if len(begun) == at:
                    raise KeyboardInterrupt
            tell(event)

        return running.run_jobs(jobs, out, tell=telling, **options)

    monkeypatch.setattr(bench, "run_jobs", run)
    return begun


def test_a_record_of_a_table(bench, small_file, tmp_path):
    out = tmp_path / "out"
    outcomes = bench.measure(bench.asked_of([small_file], seeds=2), out, device="cpu")
    assert [outcome.state for outcome in outcomes] == ["done"] * 10
    record = read(out)
    assert (record["what"], record["table"], record["runs"]) == ("reproduce", "small", 5)
    assert [(e["row"], e["column"]) for e in record["entries"]] == [
        *(("DPSGD", 1), ("DPSGD", 3), ("DPIS", 1), ("DPIS", 3), ("SGD", None)),
    ]
    first = record["entries"][0]
    kept = [json.loads(path.read_text()) for path in (out / "jobs").iterdir()]
    mine = [
        one["outcome"]["values"]["accuracy"]
        for one in kept
        if one["job"]["settings"]["method"] == "dpsgd" and one["job"]["settings"]["noise"] == 6.0
    ]
    measured = first["measures"]["accuracy"]
    assert measured["mean"] == pytest.approx(statistics.mean(mine))
    assert measured["deviation"] == pytest.approx(statistics.stdev(mine))
    assert measured["published"] == 91.0
    assert first["sound_epsilon"] <= first["claimed_epsilon"] == 1.0
    assert [run["seed"] for run in first["runs"]] == [0, 1]
    assert all(run["seconds"] > 0 and run["machine"] == 0 for run in first["runs"])
    settings = {**record["settings"], **first["settings"]}
    assert (settings["data"], settings["batch"], settings["noise"]) == ("digits", 256, 6.0)
    assert "torch" in record["machines"][0]["versions"]
    assert str(tmp_path) not in (out / RECORD).read_text()  # no word of where it was


def test_a_cut_off_leaves_whole_rows_and_the_same_call_goes_on(
    bench, small_file, tmp_path, monkeypatch
):
    asked = bench.asked_of([small_file], seeds=2)
    bench.measure(asked, tmp_path / "whole", device="cpu")
    cut_off(bench, monkeypatch, at=6)
    outcomes = bench.measure(asked, tmp_path / "out", device="cpu")
    assert [outcome is not None for outcome in outcomes] == [True] * 5 + [False] * 5
    record = read(tmp_path / "out")
    seeds = {(e["row"], e["column"]): len(e["runs"]) for e in record["entries"]}
    assert seeds == {("DPSGD", 1): 2, ("DPSGD", 3): 2, ("DPIS", 1): 1}
    begun = cut_off(bench, monkeypatch, at=99)
    finished = bench.measure(asked, tmp_path / "out", device="cpu")
    assert len(begun) == 5  # what was left
    assert {outcome.state for outcome in finished} == {"done"}
    assert numbers(read(tmp_path / "out")) == numbers(read(tmp_path / "whole"))


def test_nothing_is_done_twice(bench, small_file, tmp_path, monkeypatch):
    """From the jobs of the same folder, or in another folder from the record alone."""
    asked = bench.asked_of([small_file], rows=["DPSGD", "SGD"], seeds=2)
    bench.measure(asked, tmp_path / "out", device="cpu")
    monkeypatch.setattr(running, "train_group", lambda *a, **k: pytest.fail("trained again"))
    bench.measure(asked, tmp_path / "out", device="cpu")
    again = tmp_path / "again"
    bench.measure(asked, again, known=[tmp_path / "out"], device="cpu")
    assert read(again) == read(tmp_path / "out")
    assert len(list((again / "jobs").iterdir())) == 6
    # fewer seeds, other rows: what was there stays in the record
    few = bench.asked_of([small_file], rows=["SGD"])
    bench.measure(few, again, device="cpu")
    assert read(again) == read(tmp_path / "out")
    (again / RECORD).unlink()  # the jobs alone are enough
    bench.measure(few, again, device="cpu")
    assert read(again) == read(tmp_path / "out")


def test_runs_of_other_settings_are_not_taken_over(bench, small_file, tmp_path):
    asked = bench.asked_of([small_file], rows=["DPSGD"])
    bench.measure(asked, tmp_path / "out", device="cpu")
    record = read(tmp_path / "out")
    table = parse(SMALL, "small", "small.toml")
    assert len(list(bench.recovered(record, table, {}))) == 2
    assert not list(bench.recovered(record, table, {"lr": 0.25}))
    other = parse(SMALL.replace("[6.0, 3.0]", "[6.0, 4.0]"), "small", "small.toml")
    assert len(list(bench.recovered(record, other, {}))) == 1
    assert not list(bench.recovered({**record, "table": "another"}, table, {}))
    # a setting that is new since then does not matter where it has its default
    del record["settings"]["schedule"]
    assert len(list(bench.recovered(record, table, {}))) == 2
    record["settings"]["schedule"] = "cosine"
    assert not list(bench.recovered(record, table, {}))


def test_runs_with_another_encoder_are_not_taken_over(bench, small_file, tmp_path, monkeypatch):
    Path(small_file).write_text(
        SMALL.replace(
            'title = "Digits"\nmodel',
            'title = "Digits"\nfeatures = "image-encoder"\n'
            'feature_options = { encoder = "tiny.pt2" }\nmodel',
        )
    )
    monkeypatch.setenv("RETICENT_IMAGE_ENCODERS", str(tmp_path))
    write_image_encoder(tmp_path / "tiny.pt2", side=8)
    table = load(small_file)
    (job, *_) = (job_of(table, entry, 0) for entry in table.entries())
    done = Outcome(job.key, values={"accuracy": 90.0}, made={}, notes=job.brought_notes())
    record = bench.compact(table, {job.key: done}, [0], {})
    assert [found.key for found, _ in bench.recovered(record, table, {})] == [job.key]
    write_image_encoder(tmp_path / "tiny.pt2", side=9)
    assert not list(bench.recovered(record, table, {}))
    (tmp_path / "tiny.pt2").unlink()  # nobody can tell here, and the record is as it was
    assert len(list(bench.recovered(record, table, {}))) == 1


def test_a_record_gives_back_what_it_was_made_of(bench):
    """Also where the table has percent and outcomes have shares."""
    text = ATTACKS.replace("attacks =", 'percent = ["shadow.accuracy"]\nattacks =')
    table = parse(text, "attacks", "attacks.toml")
    job = job_of(table, table.entries()[0], 3)
    outcome = Outcome(
        job.key,
        values={"accuracy": 90.0, "shadow.accuracy": 0.5625, "best.auc": 0.5},
        intervals={"shadow.accuracy": (0.5, 0.75)},
        steps=20,
        seconds=1.5,
        notes=("one of 2",),
        claim={"claimed_steps": 3},
        made={"versions": {}},
    )
    record = json.loads(json.dumps(bench.compact(table, {job.key: outcome}, [0, 3])))
    assert record["entries"][0]["measures"]["shadow.accuracy"]["mean"] == pytest.approx(56.25)
    assert list(bench.recovered(record, table, {})) == [(job, outcome)]


def test_failures_stay_in_the_record_and_missing_data_does_not(bench, small_file, tmp_path):
    table = load(small_file)
    keys = [job_of(table, entry, 0).key for entry in table.entries()]
    outcomes = {
        keys[0]: Outcome(keys[0], "failed", error="diverged"),
        keys[1]: Outcome(keys[1], "missing", error="digits: not in /somewhere"),
    }
    record = bench.compact(table, outcomes, [0])
    (entry,) = record["entries"]
    assert entry["failed"] == {"0": "diverged"}
    assert "somewhere" not in json.dumps(record)
    (tmp_path / RECORD).write_text(json.dumps(record))
    sgd = bench.asked_of([small_file], rows=["SGD"])
    bench.measure(sgd, tmp_path / "out", known=[tmp_path], device="cpu")
    assert [entry["failed"] for entry in read(tmp_path / "out")["entries"]] == [
        {"0": "diverged"},
        {},
    ]
    dpsgd = bench.asked_of([small_file], rows=["DPSGD"], columns=["1"])
    bench.measure(dpsgd, tmp_path / "out", known=[tmp_path], device="cpu")  # tried again
    assert [entry["failed"] for entry in read(tmp_path / "out")["entries"]] == [{}, {}]


def test_the_limit_is_an_interrupt_but_not_while_results_are_kept(bench):
    def keep():
        signal.raise_signal(signal.SIGALRM)
        return "whole"

    with pytest.raises(KeyboardInterrupt), bench.limited(0.01):
        time.sleep(30)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a shell's background
    try:
        with pytest.raises(KeyboardInterrupt), bench.limited(0.01):
            time.sleep(30)
    finally:
        signal.signal(signal.SIGINT, before)
    kept = []

    def keep_and_wait():
        kept.append(keep())
        time.sleep(30)  # it comes a little later

    with pytest.raises(KeyboardInterrupt), bench.limited(1000):
        keep_and_wait()
    assert kept == ["whole"]
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with bench.limited(None):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_the_limit_stops_a_job_with_its_checkpoint(bench, small_file, tmp_path, monkeypatch):
    def run(jobs, out, *, tell, **options):
        def telling(event):
            if event.what == running.GOING and event.done == 3:
                signal.setitimer(signal.ITIMER_REAL, 0.01)  # as if the time were over
            tell(event)

        return running.run_jobs(jobs, out, tell=telling, **options)

    monkeypatch.setattr(bench, "run_jobs", run)
    asked = bench.asked_of([small_file], rows=["DPSGD"], columns=["1"])
    endless = {"steps": 10**6, "noise": 2000.0}
    outcomes = bench.measure(asked, tmp_path, device="cpu", time_limit=1000, changes=endless)
    assert outcomes == [None]
    assert not list(tmp_path.glob("*.json"))  # nothing is known yet
    assert list((tmp_path / "work").glob(f"*/{CHECKPOINT}"))  # from which the same call goes on


def test_the_command(bench, small_file, tmp_path, monkeypatch, capsys):
    words = (
        f"--tables {small_file} --rows SGD --seeds 1 --device cpu --out {tmp_path / 'out'} --lr 0.2"
    )
    monkeypatch.setattr(sys, "argv", ["reproductions", *words.split(), "--known"])
    bench.main()
    assert "1 done" in capsys.readouterr().out
    record = json.loads((tmp_path / "out" / "reproduce-small-lr0.2.json").read_text())
    assert record["changes"] == {"lr": 0.2}
    with pytest.raises(SystemExit, match="no entry"):
        bench.asked_of([small_file], rows=["nobody"])


def test_jobs_go_row_by_row(bench):
    (asked,) = bench.asked_of(["dpsur/table2"], data=["fashion-mnist"], seeds=3)
    jobs = asked.jobs({})
    rows = [(job.settings.method, job.variant, job.settings.activation) for job in jobs]
    ends = [number for number in range(1, len(rows)) if rows[number] != rows[number - 1]]
    assert all(end % 3 == 0 for end in ends)
    assert [job.variant for job in jobs[:36:12]] == ["published", "repaired", "sound"]
    assert [job.settings.epsilon for job in jobs[:12]] == [
        e for e in (1, 2, 3, 4) for _ in range(3)
    ]


def test_what_cannot_be_run_asks_for_no_job(bench, small_file):
    text = Path(small_file).read_text()
    Path(small_file).write_text(text.replace("[data.digits]", '[data.digits]\nmissing = "records"'))
    (asked,) = bench.asked_of([small_file])
    assert asked.entries
    assert not asked.jobs({})


def test_a_queue_asks_for_parts_of_tables_in_its_order(bench, small_file, tmp_path, monkeypatch):
    queue = tmp_path / "queue.txt"
    queue.write_text(
        f"# the quick ones first\n\n{small_file} --rows SGD --seeds 2\n"
        f"{small_file} --rows 'DPSGD' --columns 1  # one of them\n{small_file} --rows SGD\n"
    )
    asked = bench.queued(queue)
    assert [one.seeds for one in asked] == [2, 1, 1]
    jobs = [job for one in asked for job in one.jobs({})]
    assert [(job.settings.method, job.settings.seed) for job in jobs] == [
        ("sgd", 0),
        ("sgd", 1),
        ("dpsgd", 0),
        ("sgd", 0),
    ]
    words = ["--queue", str(queue), "--out", str(tmp_path / "out"), "--device", "cpu", "--known"]
    monkeypatch.setattr(sys, "argv", ["reproductions", *words])
    bench.main()
    made = {(e["row"], e["column"]): len(e["runs"]) for e in read(tmp_path / "out")["entries"]}
    assert made == {("SGD", None): 2, ("DPSGD", 1): 1}
    queue.write_text(f"{small_file} --rows nobody\n")
    with pytest.raises(SystemExit, match=r"no entry of .*small\.toml"):
        bench.queued(queue)
