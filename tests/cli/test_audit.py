"""`reticent audit` on runs of the embedded data set."""

from __future__ import annotations

import json
import os
import shutil
import stat

import pytest

from reticent.cli import app

from .calling import call, refuse, runner

SHORT = ("--batch", 200, "--steps", 7, "--device", "cpu", "--coin-seed", 3, "--quiet")
# few models, small ones: what is audited here is the command
QUICK = ("--device", "cpu", "--shadows", 4, "--records", 150, "--canaries", 60)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    for name, words in {
        "dpsgd": ("--model", "linear", "--epsilon", 4),
        "dpsur": ("--model", "linear", "--method", "dpsur", "--valid-batch", 100, "--noise", 5),
        "plain": ("--model", "linear", "--non-private"),
    }.items():
        call("train", *SHORT, *words, "--out", root / name)
    return root


def test_everything_at_once(runs, tmp_path):
    folder = runs / "dpsgd"
    plot = tmp_path / "roc.svg"
    told = json.loads(call("audit", folder, *QUICK, "--plot", plot, "--json"))
    assert told["passed"]
    assert told["wrong"] == []
    assert told["books"]["epsilon"] == pytest.approx(
        json.loads((folder / "run.json").read_text())["statement"]["epsilon"]
    )
    assert told["conduct"]["passed"]
    assert told["replay"]["passed"]
    assert told["replay"]["draws_tried"] > 0
    assert told["canaries"]["refuted"] is False
    bounds = {bound["family"]: bound["epsilon"] for bound in told["canaries"]["bounds"]}
    assert all(0 <= bound <= told["books"]["epsilon"] for bound in bounds.values())
    assert set(told["membership"]["attacks"]) == {
        *("population", "reference", "shadow-loss", "likelihood-ratio", "rmia"),
        *("shadow", "white-box"),
    }
    kept = json.loads((folder / "audit.json").read_text())
    assert kept == told
    assert stat.S_IMODE(os.stat(folder / "audit.json").st_mode) == 0o600
    assert "false positive rate" in plot.read_text()
    assert stat.S_IMODE(os.stat(plot).st_mode) == 0o600
    # a second time the shadow models are there, and people get a table
    models = {path: path.stat().st_mtime_ns for path in (folder / "shadows").iterdir()}
    shown = call("audit", folder, *QUICK)
    assert models == {path: path.stat().st_mtime_ns for path in (folder / "shadows").iterdir()}
    for text in ("ε ≤", "ε ≥", "nothing found", "likelihood-ratio", "checks passed"):
        assert text in shown
    assert "earlier" not in shown
    again = call("audit", folder, "--attacks", "none", "--canaries", 0, "--releases", 0)
    assert "from an earlier audit of this run: conduct, replay, canaries, membership" in again


def test_a_procedure_is_attacked_too(runs):
    words = ("--attacks", "population,likelihood-ratio", "--against", "halves", "--targets", 2)
    told = json.loads(
        call("audit", runs / "dpsgd", *QUICK, *words, "--canaries", 0, "--releases", 0, "--json")
    )
    assert set(told["membership"]["attacks"]) == {"population", "likelihood-ratio"}
    assert all(len(found) == 2 for found in told["membership"]["attacks"].values())
    assert told["membership"]["shadows"] == 4
    assert "conduct" in told  # of the audit before: another one replaces what it does again
    assert "halves" in told["membership"]["about"]


def test_the_split_of_the_papers(runs):
    words = ("--against", "split", "--canaries", 0, "--releases", 0, "--json")
    told = json.loads(call("audit", runs / "dpsgd", *QUICK, *words))
    assert "2:1:2:1" in told["membership"]["about"]
    assert len(told["membership"]["attacks"]) == 7
    assert told["membership"]["notes"] == []


def test_selected_updates_are_audited(runs):
    words = ("--attacks", "rmia", "--canaries", 20, "--releases", 2)
    told = json.loads(call("audit", runs / "dpsur", *QUICK, *words, "--json"))
    assert told["passed"]
    assert told["canaries"]["method"]["name"] == "dpsur"
    assert told["replay"]["method"] == "dpsur"


def test_a_run_without_a_guarantee_is_attacked_all_the_same(runs):
    words = ("--attacks", "white-box", "--releases", 2)
    told = json.loads(call("audit", runs / "plain", *QUICK, *words, "--json"))
    assert told["passed"]
    assert told["books"]["epsilon"] is None
    assert "canaries" not in told
    assert "nothing to compare" in told["conduct"]["checks"][0]["detail"]


def test_a_tampered_run_fails(runs, tmp_path):
    report = json.loads((runs / "dpsgd" / "run.json").read_text())
    report["statement"]["epsilon"] = 0.5
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text(json.dumps(report))
    words = ("audit", str(folder), "--attacks", "none", "--canaries", "0", "--releases", "0")
    result = runner.invoke(app, list(words))
    assert result.exit_code == 1
    assert "follows from the ledger" in result.output
    told = json.loads((folder / "audit.json").read_text())
    assert not told["passed"]


BOOKS_ONLY = ("--attacks", "none", "--canaries", 0, "--releases", 0)
AS_PRIVATE = "computed from the records without noise"
BOOKS_ALONE = "computed from run.json and model.safetensors, not from the records"


def test_what_is_said_of_the_file_is_true(runs, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(runs / "dpsgd", folder, ignore=shutil.ignore_patterns("audit.json", "shadows"))
    for words, said, other in (
        (BOOKS_ONLY, BOOKS_ALONE, AS_PRIVATE),
        ((*BOOKS_ONLY[:4], "--releases", 1, "--device", "cpu"), AS_PRIVATE, BOOKS_ALONE),
        (BOOKS_ONLY, AS_PRIVATE, BOOKS_ALONE),  # what was found before is kept
    ):
        shown = call("audit", folder, *words)
        assert f"audit.json: {said}" in shown.replace("\n", "")
        assert other not in shown
        kept = json.loads((folder / "audit.json").read_text())
        assert kept["warning"].startswith(said)


@pytest.mark.parametrize("model", ["none", "truncated", "without privacy"])
def test_the_model_must_be_the_runs(runs, tmp_path, model):
    folder = tmp_path / "run"
    shutil.copytree(runs / "dpsgd", folder, ignore=shutil.ignore_patterns("audit.json", "shadows"))
    path, whole = folder / "model.safetensors", (runs / "dpsgd/model.safetensors").read_bytes()
    if model == "none":
        path.unlink()
    elif model == "truncated":
        path.write_bytes(whole[:100])
    else:
        shutil.copy(runs / "plain" / path.name, path)
    result = runner.invoke(app, ["audit", str(folder), *map(str, BOOKS_ONLY)])
    assert result.exit_code == 1
    assert "the model is the one this run released" in result.output
    found = json.loads((folder / "audit.json").read_text())
    assert len(found["wrong"]) == 1
    said = "does not exist" if model == "none" else "is not the file that this run wrote"
    assert f"model.safetensors {said}" in found["wrong"][0]
    assert f"model.safetensors {said}" in (folder / "report.html").read_text()
    # what another model gives away says nothing of this run
    words = ("--attacks", "population", *BOOKS_ONLY[2:], "--device", "cpu")
    result = runner.invoke(app, ["audit", str(folder), *map(str, words)])
    assert result.exit_code == 1
    assert "the model was not attacked" in result.output
    assert "membership" not in json.loads((folder / "audit.json").read_text())
    path.write_bytes(whole)
    told = call("audit", folder, *words)
    assert "nothing found" in told
    assert "population" in told


def test_bad_options_are_named(runs, tmp_path):
    folder = runs / "dpsgd"
    assert "run.json" in refuse("audit", tmp_path)
    assert "attacks" in refuse("audit", folder, "--attacks", "guess")
    assert "shadows" in refuse("audit", folder, "--shadows", 3)
    assert "canaries" in refuse("audit", folder, "--canaries", -1)
    assert "canaries" in refuse("audit", folder, "--canaries", 1)
    assert "--canary-kind" in refuse("audit", folder, "--canary-kind", "bird")
    assert "--canary-view" in refuse("audit", folder, "--canary-view", "bird")
    assert "confidence" in refuse("audit", folder, "--confidence", 1.5)
    assert "seed" in refuse("audit", folder, "--seed", -1)
    assert "targets" in refuse("audit", folder, "--targets", 3)
    assert "attacks" in refuse("audit", folder, "--attacks", ",")
    assert "releases" in refuse("audit", folder, "--releases", -1)
    assert "against" in refuse("audit", folder, "--against", "everyone")
    assert "duplicates" in refuse("audit", folder, "--duplicates", "keep")
    assert "plot" in refuse("audit", folder, "--plot", tmp_path / "roc.txt")
    assert "device" in refuse("audit", folder, "--device", "nowhere")
    report = json.loads((folder / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(report))
    assert "settings.json" in refuse("audit", tmp_path)
    (tmp_path / "settings.json").write_text("[1]")
    assert "settings.json" in refuse("audit", tmp_path)
    for damage in (
        {"conduct": {"noise": [{}]}},
        {"conduct": [1]},
        {"budget": {"eps": 1}},
        {"statement": {"epsilon": "x", "delta": 1e-5}},
        {"method": None},
        {"ledger": {}},
    ):
        (tmp_path / "run.json").write_text(json.dumps({**report, **damage}))
        assert "run.json" in refuse("audit", tmp_path)
    (tmp_path / "audit.json").mkdir()
    assert "audit.json" in refuse("audit", tmp_path)


def test_statistics_paid_before_the_run_are_no_part_of_it(tmp_path):
    words = ("--standardise", "--standardise-bound", 16, "--standardise-noise", 10, "--noise", 10)
    call("train", *SHORT, "--model", "linear", "--epsilon", 8, *words, "--out", tmp_path / "run")
    told = json.loads(
        call("audit", tmp_path / "run", "--attacks", "none", "--canaries", 0, "--json")
    )
    assert told["passed"]


def test_methods_without_an_epsilon_are_attacked(tmp_path):
    words = ("--method", "pd-sgd", "--steps", 5, "--device", "cpu", "--quiet")
    call("train", "--model", "linear", *words, "--out", tmp_path / "run")
    told = json.loads(call("audit", tmp_path / "run", *QUICK, "--attacks", "rmia", "--json"))
    assert told["passed"]
    assert "conduct" not in told
    assert set(told["membership"]["attacks"]) == {"rmia"}
