"""`reticent compare` from words to files."""

from __future__ import annotations

import json
import random
import shutil
import signal
import stat

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from reticent.cli import app, compare, comparing
from reticent.training.checkpoint import CHECKPOINT

from .calling import call, refuse

PUBLIC = (
    *("compare", "--data", "digits", "--methods", "dpsgd,sgd", "--epsilon", "3,1", "--seeds", 2),
    *("--model", "linear", "--steps", 4, "--set", "dpsgd.noise=12.0", "--device", "cpu"),
)
OWN = (
    *("compare", "--methods", "dpsgd,sgd", "--epsilon", "1,2", "--seeds", 2, "--steps", 5),
    *("--target", "ill", "--classes", "no,yes", "--bounds", "age=0..120", "--device", "cpu"),
)


@pytest.fixture
def people(tmp_path):
    path = tmp_path / "held" / "people.csv"
    path.parent.mkdir()
    ages = [random.Random(k).randint(18, 90) for k in range(200)]
    path.write_text("age,ill\n" + "".join(f"{a},{'yes' if a > 50 else 'no'}\n" for a in ages))
    return path


def run(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def read(folder):
    return json.loads((folder / "comparison.json").read_text())


def test_public_data_from_words_to_a_page(tmp_path):
    out = tmp_path / "out"
    shown = call(*PUBLIC, "--out", out)
    assert "dpsgd at ε = 1, seed 0: accuracy" in shown
    assert "* no ε is proved: sgd" in shown
    names = {path.name for path in out.iterdir()} - {".lock"}
    assert names == {"comparison.csv", "comparison.html", "comparison.json", "jobs"}
    found = read(out)
    assert found["epsilons"] == [1.0, 3.0]
    assert [len(cell["accuracy"]) for cell in found["cells"]] == [2, 2, 2]
    assert found["cells"][0]["epsilon_proved"] <= 1
    assert len((out / "comparison.csv").read_text().splitlines()) == 7
    page = (out / "comparison.html").read_text()
    assert "--set dpsgd.noise=12.0" in page
    assert str(tmp_path) not in page
    # the same command takes what is there; a larger one adds to it
    before = {path: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()}
    again = json.loads(call(*PUBLIC, "--out", out, "--json"))
    assert again["cells"] == found["cells"]
    assert {path: path.stat().st_mtime_ns for path in (out / "jobs").iterdir()} == before
    # noise follows from the settings: whoever repeats it elsewhere gets the same
    call(*PUBLIC, "--out", tmp_path / "other", "--together")
    for mine, theirs in zip(read(tmp_path / "other")["cells"], found["cells"], strict=True):
        assert mine["mean"] == pytest.approx(theirs["mean"], abs=0.3)  # rounding: one record


def test_own_records_from_words_to_a_page(people, tmp_path):
    out = tmp_path / "out"
    result = run(*OWN, "--data", people, "--out", out)
    assert result.exit_code == 0, result.output
    assert "your own records: the models have secret noise" in result.stdout
    assert "spend up to ε = 6" in result.stdout
    found = read(out)
    total = found["total"]
    assert (total["models"], total["unbounded"], total["epsilon"]) == (4, ["sgd"], None)
    assert total["epsilon_of_private_models"] < total["added"] <= 6
    assert any("public seed" in note for note in found["notes"])  # who is held out
    page = (out / "comparison.html").read_text()
    assert "Noted in the ledgers" in page
    runs = sorted(path for path in (out / "runs").iterdir())
    assert len(runs) == 6
    # a run is as `reticent train` leaves it: it can be audited and reported on
    checked = json.loads(call("report", runs[0], "--json"))
    assert checked["finished"] is True
    fingerprint = json.loads((out / "records.json").read_text())["fingerprint"]
    for path in out.rglob("*"):
        if path.is_file() and stat.S_IMODE(path.stat().st_mode) != 0o600:
            content = path.read_bytes()
            assert fingerprint.encode() not in content, path
            assert str(people.parent).encode() not in content, path
    # another command in the same folder adds to what was spent; the same one does not
    call(*OWN, "--data", people, "--out", out)
    assert read(out)["total"] == total
    assert sorted((out / "runs").iterdir()) == runs
    more = ("--methods", "dpsgd", "--epsilon", "0.5", "--seeds", 1)
    shown = call(*OWN, "--data", people, "--out", out, *more)
    assert "6 models were trained on these records in this folder before" in shown
    wider = read(out)["total"]
    assert wider["models"] == 5
    grown = wider["epsilon_of_private_models"] - total["epsilon_of_private_models"]
    assert 0.4 < grown <= 0.5
    assert wider["unbounded"] == ["sgd"]  # it was trained, though not asked for now


def test_what_was_learned_without_paying_is_said(people, tmp_path):
    words = [word for word in OWN if word not in ("--classes", "no,yes")]
    small = ("--methods", "dpsgd", "--epsilon", "1", "--seeds", 1, "--data", people)
    result = run(*words, *small, "--out", tmp_path / "out", "--json")
    assert result.exit_code == 0
    assert "warning:" in result.stderr
    assert "classes" in result.stderr
    notes = json.loads(result.stdout)["notes"]
    assert any("label" in note or "class" in note for note in notes)


def test_noise_on_own_records_is_drawn_anew(people, tmp_path):
    small = ("--methods", "dpsgd", "--epsilon", "1", "--seeds", 1, "--data", people)
    found = []
    for name in ("one", "two"):
        call(*OWN, *small, "--out", tmp_path / name)
        (folder,) = (tmp_path / name / "runs").iterdir()
        weights = load_file(folder / "model.safetensors")
        found.append(torch.cat([weights[key].flatten() for key in sorted(weights)]))
    assert not torch.equal(*found)


def interrupting(monkeypatch, after):
    """Ctrl-C when so many releases of all jobs were made; what they were is returned."""
    made = []
    inner = comparing.View.__init__

    def watching(self, *given):
        inner(self, *given)
        tell = self.outlook.tell

        def heard(event):
            tell(event)
            if event.what == "going":
                made.append((event.key, event.done))
                if len(made) == after:
                    signal.raise_signal(signal.SIGINT)

        self.outlook.tell = heard

    monkeypatch.setattr(comparing.View, "__init__", watching)
    return made


@pytest.mark.parametrize("own", [False, True])
def test_ctrl_c_keeps_everything_and_says_how_to_go_on(people, tmp_path, monkeypatch, own):
    out = tmp_path / "out"
    words = (*OWN, "--data", people) if own else PUBLIC
    steps = 5 if own else 4
    made = interrupting(monkeypatch, 2 * steps + 2)
    result = run(*words, "--out", out)
    assert result.exit_code == 130
    assert "stopped with 2 of 6 done; go on with: reticent compare" in result.stderr
    assert f"--out {out}" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not (out / "comparison.html").exists()
    assert len(list((out / "jobs").iterdir())) == 2
    (unfinished,) = out.glob(f"*/*/{CHECKPOINT}")
    first = list(made)
    said = result.stderr.split("go on with: reticent ")[1].split()
    assert run(*said).exit_code == 0  # the very words that were said
    # no release was made twice, and none was left out
    assert len(made) == len(set(made)) == 6 * steps
    assert made[: len(first)] == first
    assert not unfinished.exists()
    found = read(out)
    assert all(len(cell["accuracy"]) == 2 for cell in found["cells"])
    if own:
        assert found["total"]["unfinished"] == 0
        whole = [run["ledger"]["entries"] for run in map(run_file, (out / "runs").iterdir())]
        assert all(sum(line["count"] for line in entries) == steps for entries in whole)
    else:
        call(*words, "--out", tmp_path / "at-once")
        assert read(tmp_path / "at-once")["cells"][0]["mean"] == found["cells"][0]["mean"]


def run_file(folder):
    return json.loads((folder / "run.json").read_text())


def test_a_comparison_that_was_given_up_is_still_paid_for(people, tmp_path, monkeypatch):
    out = tmp_path / "out"
    words = (*OWN, "--data", people, "--out", out)
    with monkeypatch.context() as patch:
        interrupting(patch, 3)  # in the middle of the first model
        assert run(*words, "--methods", "dpsgd", "--epsilon", "2").exit_code == 130
    call(*words, "--methods", "dpsgd", "--epsilon", "1", "--seeds", 1)
    total = read(out)["total"]
    assert (total["models"], total["unfinished"]) == (2, 1)
    assert total["epsilon"] == pytest.approx(total["added"])
    assert 2.9 < total["epsilon"] <= 3
    assert total["delta"] == pytest.approx(2e-5)


def test_models_that_were_deleted_are_still_paid_for(people, tmp_path):
    out = tmp_path / "out"
    words = (*OWN, "--methods", "dpsgd", "--epsilon", "1", "--seeds", 1, "--data", people)
    call(*words, "--out", out)
    once = read(out)["total"]
    assert once["models"] == 1
    for name in ("runs", "jobs"):
        shutil.rmtree(out / name)
    call(*words, "--out", out)
    twice = read(out)["total"]
    assert (twice["models"], twice["unfinished"]) == (2, 1)
    assert twice["epsilon"] == pytest.approx(once["epsilon"] + 1)
    (out / "plan.json").unlink()
    assert "is missing, but models left traces" in str(run(*words, "--out", out).exception)


def test_no_folder_of_the_records_is_in_what_is_shared(people, tmp_path):
    test = people.with_name("held.csv")
    test.write_text(people.read_text())
    words = (*OWN, "--methods", "dpsgd", "--epsilon", "1", "--seeds", 1, "--data", people)
    call(*words, "--test", test, "--out", tmp_path / "out")
    for name in ("comparison.json", "comparison.csv", "comparison.html"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()


def test_counts_of_held_out_records_can_be_left_out(people, tmp_path):
    words = (*OWN, "--methods", "dpsgd", "--epsilon", 1, "--seeds", 1, "--data", people)
    call(*words, "--no-confusion", "--out", tmp_path)
    (folder,) = (tmp_path / "runs").iterdir()
    assert "held_out" not in run_file(folder)
    assert "--no-confusion" in (tmp_path / "comparison.html").read_text()


def test_changed_records_are_refused(people, tmp_path):
    words = (*OWN, "--methods", "dpsgd", "--epsilon", 1, "--seeds", 1, "--data", people)
    call(*words, "--out", tmp_path / "out")
    people.write_text(people.read_text() + "40,no\n")
    assert "the records have changed" in refuse(*words, "--out", tmp_path / "out")


def test_a_failed_job_is_told_and_the_others_go_on(tmp_path):
    out = tmp_path / "out"
    words = [*PUBLIC, "--set", "sgd.lr=1e38", "--set", "sgd.momentum=0.9", "--seeds", 1]
    result = run(*words, "--out", out)
    assert result.exit_code == 1
    assert "failed sgd, seed 0: diverged" in result.stderr
    assert [cell["mean"] is None for cell in read(out)["cells"]] == [False, False, True]


def test_attacks_are_in_the_page(tmp_path):
    small = ("--methods", "sgd", "--seeds", 1, "--attacks", "population", "--shadows", 2)
    words = [word for word in PUBLIC if word not in ("--set", "dpsgd.noise=12.0")]
    found = json.loads(call(*words, *small, "--out", tmp_path, "--json"))
    (line,) = found["attacks"]
    assert (line["attack"], line["method"], line["state"]) == ("population", "sgd", "done")
    assert 0 <= line["auc_interval"][0] <= line["auc"] <= line["auc_interval"][1] <= 1
    assert 'id="attacks"' in (tmp_path / "comparison.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--methods", "dpsdg"), "methods = 'dpsdg'"),
        (("--methods", ""), "methods = ''"),
        (("--methods", "dpsgd,,sgd"), "methods = 'dpsgd,,sgd'"),
        (("--methods", "sgd,sgd"), "methods = 'sgd'"),
        (("--epsilon", "0"), "epsilon = 0"),
        (("--epsilon", "1,-1"), "epsilon = -1"),
        (("--epsilon", "nan"), "epsilon = nan"),
        (("--epsilon", ""), "epsilon = ''"),
        (("--epsilon", "1,1"), "epsilon = 1.0"),
        (("--epsilon", "one"), "epsilon = 'one'"),
        (("--seeds", "0"), "seeds = 0"),
        (("--workers", "0"), "workers = 0"),
        (("--data", "mnits"), "data = 'mnits'"),
        (("--data", "gone.csv"), "gone.csv"),
        (("--attacks", "magic"), "attacks = 'magic'"),
        (("--target", "y"), "target = 'y'"),
        (("--set", "lr=1"), "set = 'lr'"),
        (("--set", "dpsgd.lr"), "set = 'dpsgd.lr'"),
        (("--set", "dpis.lr=1"), "set = 'dpis.lr'"),
        (("--set", "dpsgd.clip_stag=1"), "clip_stage, clipping, noise; did you mean clip_stage?"),
        (("--batch", "100000"), "--methods = 'dpsgd': at --epsilon = 1: --batch = 100000"),
        (("--model", "cnn9"), "--model = 'cnn9': must be one of cifar-cnn"),
    ],
)
def test_bad_input_is_named(tmp_path, words, says):
    told = refuse(*PUBLIC, *words, "--out", tmp_path / "out")
    assert says in told
    assert "\n" not in told
    left = [path for path in (tmp_path / "out").rglob("*") if path.name != ".lock"]
    assert left == []


def test_own_records_are_neither_attacked_nor_trained_at_once(people, tmp_path):
    words = (*OWN, "--data", people, "--out", tmp_path / "out")
    assert "attacks = 'shadow'" in refuse(*words, "--attacks", "shadow")
    assert "together = True" in refuse(*words, "--together")
    assert not (tmp_path / "out").exists()


def test_errors_are_one_line_and_status_2(capsys, monkeypatch):
    from reticent.cli import main

    monkeypatch.setattr("sys.argv", ["reticent", "compare", "--seeds", "0"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert len(told) == 1
    assert "seeds = 0" in told[0]


def test_an_interrupted_command_says_one_line(tmp_path, capsys, monkeypatch):
    from reticent.cli import main

    def interrupted(*given, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("reticent.comparison.running.run_comparison", interrupted)
    words = ["reticent", "compare", "--methods", "sgd", "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    told = capsys.readouterr().err.strip().splitlines()
    assert told == [f"stopped with 0 of 3 done; go on with: {' '.join(words)}"]


def test_the_folder_is_named_for_the_data(people, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(compare, "_run", lambda plan, folder, *rest: seen.append(str(folder)))
    call(*PUBLIC)
    call(*OWN, "--data", people)
    assert seen == ["comparisons/digits", "comparisons/people"]


def test_a_command_for_a_page_has_no_folders():
    words = ["reticent", "compare", "--data", "/home/ann/x.csv", "--out", "a/b"]
    assert compare._without_folders(words) == "reticent compare --data x.csv --out a/b"


def test_the_table_while_it_fills():
    from rich.console import Console

    from reticent.comparison.plans import compare_plan
    from reticent.reproduction.jobs import Outcome
    from reticent.reproduction.running import Event

    plan = compare_plan("digits", ["dpsgd", "sgd"], [1, 3], seeds=2)
    view = comparing.View(plan, 1)
    console = Console(width=120, record=True, force_terminal=True, file=open("/dev/null", "w"))  # noqa: SIM115

    def shown():
        console.print(view)
        return console.export_text()

    keys = [job.key for job in plan.jobs()]
    assert "0 of 6 done, time left not known yet" in shown()
    for key, accuracy in ((keys[0], 80.0), (keys[3], 82.0), (keys[1], 91.5)):
        outcome = Outcome(key, values={"accuracy": accuracy}, seconds=1.0)
        view.outlook.tell(Event("kept", key, outcome=outcome))
    view.outlook.tell(Event("kept", keys[2], outcome=Outcome(keys[2], "failed", error="x")))
    view.outlook.tell(Event("started", keys[4]))
    view.outlook.tell(Event("going", keys[4], 3, 4))
    text = shown()
    assert "81.00 ± 12.71" in text
    assert "91.50 (1/2)" in text
    assert "failed" in text
    assert "now: dpsgd at ε = 3, seed 1 75 %" in text
    assert "4 of 6 done" in text
