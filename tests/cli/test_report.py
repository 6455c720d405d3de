import json
import shutil
import stat
import sys
import webbrowser

import pytest

from reticent.cli import app
from reticent.cli import report as command
from reticent.methods import DPSUR

from .calling import call, refuse, runner

SMALL = ("train", "--batch", 200, "--steps", 6, "--noise", 4, "--device", "cpu", "--coin-seed", 1)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "first"
    board = folder.parent / "board"
    words = (*SMALL, "--out", folder, "--private-diagnostics", "--tensorboard", board)
    out = call(*words, "--json")
    return folder, board, json.loads(out[out.index("{") :])  # after a warning


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made[0], tmp_path / "run")


def test_train_leaves_its_reports(made):
    folder, _, shown = made
    assert shown["report"] == str(folder / "report.html")
    run = json.loads((folder / "run.json").read_text())
    counts = run["held_out"]["confusion"]
    right = sum(row[k] for k, row in enumerate(counts))
    assert right / sum(map(sum, counts)) == pytest.approx(shown["accuracy"])
    assert run["held_out"]["classes"] == list("0123456789")
    public, private = (
        (folder / name).read_text() for name in ("report.html", "report.private.html")
    )
    assert "Gradient norms" in private
    assert "Gradient norms" not in public
    assert stat.S_IMODE((folder / "report.private.html").stat().st_mode) == 0o600
    norms = json.loads((folder / "diagnostics.private.json").read_text())["gradient_norms"]
    assert norms["records"] == sum(norms["counts"]) > 600
    assert (folder / "MODEL_CARD.md").read_text().startswith("---\ntags: ")


def test_report_writes_where_it_is_told(folder, tmp_path, monkeypatch):
    for name in ("report.html", "MODEL_CARD.md"):
        (folder / name).unlink()
    out = call("report", folder)
    assert f"written: {folder / 'report.html'}" in out
    assert not (folder / "MODEL_CARD.md").exists()
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    there = tmp_path / "pages" / "mine.html"
    shown = json.loads(call("report", folder, "--out", there, "--card", "--open", "--json"))
    assert shown == {
        "report": str(there),
        "card": str(there.parent / "MODEL_CARD.md"),
        "private": False,
        "finished": True,
        "model_trouble": None,
    }
    assert opened == [there.as_uri()]
    assert there.read_text() == (folder / "report.html").read_text()
    assert (there.parent / "MODEL_CARD.md").exists()


def test_report_says_where_the_model_is_another_one(folder):
    assert json.loads(call("report", folder, "--json"))["model_trouble"] is None
    (folder / "model.safetensors").unlink()
    ended = runner.invoke(app, ["report", str(folder)])
    assert ended.exit_code == 0
    assert "model.safetensors does not exist; the page says so" in ended.stderr
    assert "does not exist" in (folder / "report.html").read_text()


def test_report_private_warns(folder):
    result = runner.invoke(app, ["report", str(folder), "--private"])
    assert "must not leave" in " ".join(result.output.split())
    assert "report.private.html" in result.output


def test_what_cannot_work_is_named(folder, tmp_path):
    assert "give the folder of a run" in refuse("report", tmp_path / "nowhere")
    assert "is a folder" in refuse("report", folder, "--out", tmp_path)
    assert "is not a folder" in refuse("report", folder, "--out", folder / "run.json" / "x.html")
    (folder / "run.json").unlink()
    out = call("report", folder)
    assert "not finished" in out
    assert "is not finished" in refuse("report", folder, "--card")


def test_a_report_that_fails_does_not_fail_the_run(tmp_path, monkeypatch):
    def broken(*args, **options):
        raise RuntimeError("no paper")

    monkeypatch.setattr(command, "write_report", broken)
    result = runner.invoke(app, [*map(str, SMALL), "--out", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "no report was written: no paper" in result.output
    assert (tmp_path / "run" / "run.json").exists()


def test_an_audit_refreshes_the_reports(folder):
    (folder / "report.private.html").unlink()
    before = (folder / "report.html").read_text()
    words = ("--attacks", "none", "--canaries", 0, "--releases", 0, "--quiet")
    call("audit", folder, *words)
    after = (folder / "report.html").read_text()
    assert "No audit is in this folder." in before
    assert "An audit of this folder exists." in after
    assert "Nothing was found" in (folder / "report.private.html").read_text()


def test_another_run_leaves_no_old_report(folder, monkeypatch):
    monkeypatch.setattr(command, "write_report", lambda *a, **k: 1 / 0)
    call(*SMALL, "--out", folder, "--overwrite", "--quiet")
    assert not (folder / "report.html").exists()
    assert not (folder / "report.private.html").exists()


# -- TensorBoard ------------------------------------------------------------------------------


def events(board):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="needs tensorboard"
    ).EventAccumulator(str(board))
    accumulator.Reload()
    return {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}


def test_only_public_numbers_reach_tensorboard(made):
    folder, board, shown = made
    found = events(board)
    assert set(found) == {
        "held-out/accuracy",
        "held-out/loss",
        "privacy/epsilon",
        "privacy/noise multiplier",
        "learning rate",
    }
    run = json.loads((folder / "run.json").read_text())
    for name in ("accuracy", "loss"):
        lines = [(line["step"], line[name]) for line in run["metrics"]]
        assert [(e.step, e.value) for e in found[f"held-out/{name}"]] == [
            (step, pytest.approx(value)) for step, value in lines
        ]
    spent = [event.value for event in found["privacy/epsilon"]]
    assert spent == sorted(spent)
    assert spent[-1] == pytest.approx(shown["epsilon"])
    assert {event.value for event in found["privacy/noise multiplier"]} == {4.0}
    # when an evaluation was made would say how long releases took
    assert len({event.wall_time for lines in found.values() for event in lines}) == 1


def test_where_time_is_private_nothing_is_written_before_the_end(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from reticent.cli import tensorboard

    written = []
    plain = tensorboard.Board._write
    monkeypatch.setattr(
        tensorboard.Board, "_write", lambda self: (written.append(len(self._held)), plain(self))
    )
    words = ("train", "--method", "dpsur", "--steps", 4, "--noise", 4, "--device", "cpu")
    call(*words, "--out", tmp_path / "run", "--tensorboard", tmp_path / "board", "--quiet")
    assert DPSUR.timing_is_private
    assert written == [4]
    assert len(events(tmp_path / "board")["held-out/accuracy"]) == 4


def test_a_missing_tensorboard_is_told_before_anything_is_spent(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    message = refuse(*SMALL, "--out", tmp_path / "run", "--tensorboard", tmp_path / "board")
    assert "pip install reticent[tensorboard]" in message
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    message = refuse(*SMALL, "--out", tmp_path / "run", "--tensorboard", tmp_path / "file")
    assert "tensorboard = " in message
