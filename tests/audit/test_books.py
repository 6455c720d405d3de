"""The books of a run: what adds up passes, and every number changed by hand is noticed."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import reticent as rt
from reticent.audit.books import check_books
from reticent.training import read_run

from .problem import DATA, HONEST, network, options_for


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    found = {}
    for name in ("dpsgd", "dpsgd quantile", "noise-decay", "dpis", "dpagd", "dpsur"):
        folder = tmp_path_factory.mktemp("run")
        options = options_for(HONEST[name])
        rt.train(network(), DATA, method=HONEST[name], steps=6, folder=folder, **options)
        found[name] = read_run(folder)
    return found


def failed(report):
    return {check.name for check in check_books(report).checks if not check.passed}


def test_honest_books_add_up(reports):
    for name, report in reports.items():
        assert failed(report) == set(), name
        found = check_books(report)
        assert found.passed
        assert found.epsilon == pytest.approx(report["statement"]["epsilon"], rel=1e-9)


def test_a_folder_is_read_as_well(tmp_path):
    rt.train(
        network(), DATA, method=HONEST["dpsgd"], steps=2, folder=tmp_path, **options_for(rt.DPSGD)
    )
    report = check_books(tmp_path)
    assert report.passed
    json.dumps(report.to_json(), allow_nan=False)


def _ledger(report, **changes):
    report["ledger"]["entries"][0].update(changes)


def _charge(report, **changes):
    report["ledger"]["entries"][0]["charge"].update(changes)


def _restate(report):
    """Make the statement follow from the ledger again: a liar who knows some arithmetic."""
    ledger = rt.Ledger.from_json(report["ledger"])
    report["statement"] = ledger.statement(report["statement"]["delta"]).to_json()


TAMPERED = {
    "ε": (lambda r: r["statement"].update(epsilon=0.1), "follows from the ledger", False),
    "budget": (lambda r: r["budget"].update(epsilon=0.1), "budget is kept", False),
    "fewer charges": (lambda r: _ledger(r, count=3), "every release is charged", True),
    "more noise": (lambda r: _charge(r, multiplier=4.0), "is the noise charged", True),
    "lower rate": (lambda r: _charge(r, rate=0.01), "at the charged rate", True),
    "noise undrawn": (lambda r: r["conduct"]["noise"][0].update(count=5), "was done", False),
    "no noise": (lambda r: r["conduct"].update(noise=[]), "was done", False),
    "no draws": (lambda r: r["conduct"].update(draws=[]), "at the charged rate", False),
    "bound": (
        lambda r: r["conduct"]["noise"][0].update(sensitivity=[0.5, 1.0]),
        "clipping bound",
        False,
    ),
}


@pytest.mark.parametrize("name", TAMPERED)
def test_what_was_changed_is_noticed(name, reports):
    change, check, restate = TAMPERED[name]
    report = copy.deepcopy(reports["dpsgd"])
    change(report)
    if restate:
        _restate(report)
    assert any(check in one for one in failed(report))


def test_choices_must_be_paid_for(reports):
    report = copy.deepcopy(reports["dpagd"])
    report["conduct"]["choices"][0]["epsilon"] *= 2
    assert any("choices" in one for one in failed(report))


def test_trials_are_not_counted(reports):
    assert {line["count"] for line in reports["dpsur"]["conduct"]["noise"]} == {None}
    report = copy.deepcopy(reports["dpsur"])
    report["conduct"]["noise"][0]["multiplier"] *= 0.7
    assert any("is the noise charged" in one for one in failed(report))


def test_a_run_without_a_guarantee_has_nothing_to_compare():
    result = rt.train(
        network(),
        DATA,
        method=rt.DPSGD(batch=30, noise=0.0),
        steps=2,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
    )
    report = check_books(json.loads(json.dumps(result.to_json(), allow_nan=False)))
    assert report.passed
    assert report.epsilon is None


def _other_weights(path):
    save_file({name: value + 1 for name, value in load_file(path).items()}, path)


MODELS = {
    "none": (lambda path: path.unlink(), "does not exist"),
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-8]), "SHA-256 is not the one"),
    "other": (_other_weights, "SHA-256 is not the one in run.json"),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_model_is_the_one_that_the_books_are_about(tmp_path, name):
    options = options_for(HONEST["dpsgd"])
    rt.train(network(), DATA, method=HONEST["dpsgd"], steps=2, folder=tmp_path, **options)
    report = check_books(tmp_path)
    assert report.passed
    assert report.has_model
    assert report.checks[-1].name == "the model is the one this run released"
    run, epsilon = read_run(tmp_path), report.epsilon
    change, said = MODELS[name]
    change(tmp_path / "model.safetensors")
    report = check_books(tmp_path)
    assert [check.name for check in report.checks if not check.passed] == [report.checks[-1].name]
    assert said in report.checks[-1].detail
    assert not report.has_model
    assert report.epsilon == epsilon  # of the books themselves nothing has changed
    # of a run of an earlier version a whole file may be the model, or not
    del run["model_sha256"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    report = check_books(tmp_path)
    assert report.passed == report.has_model == (name == "other")
    if name == "other":
        assert "cannot be told" in report.checks[-1].detail


def test_what_is_no_run_is_refused(reports):
    broken = {key: value for key, value in reports["dpsgd"].items() if key != "ledger"}
    with pytest.raises(rt.CheckpointError, match="ledger"):
        check_books(broken)
    with pytest.raises(rt.CheckpointError, match=r"run\.json"):
        check_books("nowhere")
