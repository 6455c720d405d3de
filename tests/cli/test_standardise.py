"""Private standardisation by command: paid, kept, and never drawn twice for one run."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import reticent as rt
from reticent import data, features, models
from reticent.cli import app
from reticent.cli.preparing import STATISTICS_FILE
from reticent.training import Training

from ..small_encoder import write_image_encoder
from .calling import call, refuse, runner, shown
from .test_commands import start

# all records in every release: the noise has a closed form and is calibrated in no time
SMALL = ("train", "--model", "linear", "--batch", 1437, "--steps", 4, "--device", "cpu")
STANDARD = (*SMALL, "--standardise", "--quiet")


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def run_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text())


def crash(*words: object) -> None:
    """A command that ends before its first release, as a killed one would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Training, "finish", lambda training: 1 / 0)
        result = runner.invoke(app, [str(word) for word in words])
    assert isinstance(result.exception, ZeroDivisionError), result.output


def resume(folder: Path) -> None:
    """Go on with a run; statistics drawn again would be a second release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            features, "channel_statistics", lambda *_, **__: pytest.fail("a second release")
        )
        call("train", "--resume", folder, "--quiet")


def test_the_statistics_are_paid_kept_and_applied_to_both_splits(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shown = json.loads(call(*SMALL, "--standardise", "--out", folder, "--json"))
    run = run_json(folder)
    entries = run["ledger"]["entries"]
    purposes = {entry["purpose"]: entry["charge"]["multiplier"] for entry in entries}
    assert purposes == {
        "channel means": 8.0,
        "channel variances": 8.0,
        "training": run["method"]["noise"],
    }
    assert any("standardised by channel" in note for note in run["ledger"]["notes"])
    assert 2.99 < shown["epsilon"] <= 3
    again = json.loads(call("account", "--ledger", folder / "run.json", "--json"))
    assert again["epsilon"] == shown["epsilon"]
    statistics, paid = features.ChannelStatistics.load(folder / STATISTICS_FILE)
    assert [entry.to_json() for entry in paid.entries] == entries[:2]
    inputs, labels = data.load("digits").test
    model = rt.load_weights(models.build("linear", classes=10, input_shape=(1, 8, 8)), folder)
    right = model(statistics(inputs)).argmax(1) == labels
    assert float(right.float().mean()) == pytest.approx(shown["accuracy"])


def test_a_killed_run_goes_on_with_the_same_statistics(tmp_path: Path) -> None:
    words = ("--standardise", "--model", "linear", "--batch", 200, "--steps", 150, "--noise", 4)
    words = (*words, "--epsilon", 30, "--every", 150, "--device", "cpu", "--coin-seed", 1)
    call("train", *words, "--out", tmp_path / "whole", "--quiet")
    process = start(tmp_path / "half", *words, "--checkpoint-every", 0, "--quiet")
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = (tmp_path / "half" / STATISTICS_FILE).read_bytes()
    assert "holds an unfinished run" in refuse("train", *words, "--out", tmp_path / "half")
    resume(tmp_path / "half")
    assert (tmp_path / "half" / STATISTICS_FILE).read_bytes() == kept
    one, other = (tmp_path / name / "model.safetensors" for name in ("half", "whole"))
    assert one.read_bytes() == other.read_bytes()
    ledgers = [run_json(tmp_path / name)["ledger"] for name in ("half", "whole")]
    assert ledgers[0] == ledgers[1]
    assert [entry["count"] for entry in ledgers[0]["entries"]] == [1, 1, 150]


def test_a_run_killed_before_its_first_checkpoint_begins_with_its_statistics(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    crash(*STANDARD, "--out", folder)
    assert {path.name for path in folder.iterdir()} == {STATISTICS_FILE, "settings.json"}
    kept = (folder / STATISTICS_FILE).read_bytes()
    said = refuse(*STANDARD, "--out", folder)
    assert "released statistics of an unfinished run" in said
    resume(folder)
    assert (folder / STATISTICS_FILE).read_bytes() == kept
    run = run_json(folder)
    assert [entry["count"] for entry in run["ledger"]["entries"]] == [1, 1, 4]
    assert 2.99 < run["statement"]["epsilon"] <= 3


def test_overwriting_is_a_new_run_with_statistics_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    crash(*STANDARD, "--out", folder)
    kept = (folder / STATISTICS_FILE).read_bytes()
    assert "epsilon = -1" in refuse(*STANDARD, "--out", folder, "--epsilon", -1, "--overwrite")
    assert (folder / STATISTICS_FILE).read_bytes() == kept
    call(*STANDARD, "--out", folder, "--overwrite")
    assert (folder / STATISTICS_FILE).read_bytes() != kept
    assert [entry["count"] for entry in run_json(folder)["ledger"]["entries"]] == [1, 1, 4]
    assert "holds a finished run" in refuse(*STANDARD, "--out", folder)
    call(*SMALL, "--quiet", "--out", folder, "--overwrite")
    assert not (folder / STATISTICS_FILE).exists()


def test_statistics_of_another_run_are_refused(tmp_path: Path) -> None:
    crash(*STANDARD, "--out", tmp_path / "one")
    crash(*STANDARD, "--standardise-noise", 9, "--out", tmp_path / "other")
    other = (tmp_path / "other" / STATISTICS_FILE).read_bytes()
    (tmp_path / "one" / STATISTICS_FILE).write_bytes(other)
    assert "belongs to another run" in refuse("train", "--resume", tmp_path / "one")
    (tmp_path / "one" / STATISTICS_FILE).unlink()
    assert STATISTICS_FILE in refuse("train", "--resume", tmp_path / "one")


def test_statistics_of_another_encoder_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_image_encoder(tmp_path / "tiny.pt2", side=8)
    words = ("--features", "image-encoder", "--feature", "encoder=tiny.pt2", "--steps", 4)
    crash("train", *words, "--standardise", "--quiet", "--device", "cpu", "--out", "run")
    kept = (tmp_path / "tiny.pt2").read_bytes()
    write_image_encoder(tmp_path / "tiny.pt2", side=8, rows=7)
    assert "made with other files" in refuse("train", "--resume", "run")
    (tmp_path / "tiny.pt2").write_bytes(kept)
    resume(Path("run"))
    notes = run_json(Path("run"))["ledger"]["notes"]
    assert sum("image-encoder features" in note for note in notes) == 1


def test_settings_come_from_the_file_and_features_know_their_reach(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        'features = "scattering"\nmodel = "linear"\nstandardise = true\nstandardise_noise = 10\n'
    )
    words = ("train", "--config", config, "--batch", 1437, "--steps", 2, "--device", "cpu")
    call(*words, "--quiet", "--standardise-bound", 2, "--out", tmp_path / "run")
    statistics, _ = features.ChannelStatistics.load(tmp_path / "run" / STATISTICS_FILE)
    assert len(statistics.mean) == 81
    options = {key: value for key, value in statistics.options.items() if key != "floor"}
    assert options == {"noise": 10, "bound": 2, "clip": 0.5, "n": 1437}
    settings = run_json(tmp_path / "run")["config"]["settings"]
    assert (settings["standardise"], settings["standardise_noise"]) == (True, 10)


def test_the_nominal_number_divides(tmp_path: Path) -> None:
    call(*STANDARD, "--n", 2000, "--noise", 20, "--out", tmp_path / "run")
    statistics, _ = features.ChannelStatistics.load(tmp_path / "run" / STATISTICS_FILE)
    assert statistics.options["n"] == 2000
    mean = float(data.load("digits").train[0].mean())
    assert float(statistics.mean) == pytest.approx(mean * 1437 / 2000, abs=5 * 8 / 2000)


def test_without_privacy_the_noise_stays(tmp_path: Path) -> None:
    call(*STANDARD, "--non-private", "--out", tmp_path / "run")
    run = run_json(tmp_path / "run")
    assert run["guarantee"] == "none"
    assert run["ledger"]["entries"][0]["purpose"] == "channel means"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--standardise-noise", 8), "--standardise-noise = 8.0: means nothing without"),
        (("--standardise-clip", 8), "--standardise-clip = 8.0: means nothing without standardise"),
        (("--standardise", "--standardise-noise", 0), "--standardise-noise = 0"),
        (("--standardise", "--standardise-noise", -1), "--standardise-noise = -1"),
        (("--standardise", "--standardise-noise", "nan"), "--standardise-noise = nan"),
        (("--standardise", "--standardise-bound", 0), "--standardise-bound = 0"),
        (("--standardise", "--standardise-clip", -2), "--standardise-clip = -2"),
        (("--standardise", "--epsilon", 0.1), "'channel means, channel variances'"),
    ],
)
def test_what_cannot_work_is_named_and_leaves_nothing(
    words: tuple[object, ...], message: str, tmp_path: Path
) -> None:
    assert message in refuse(*SMALL, *words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> data.Splits:
    """A few made-up reviews, whose label is whether a word of the second half leads."""
    vectors = torch.randn(50, 6)
    vectors[0] = 0
    vectors[25:, 0] += 3
    tokens = torch.randint(1, 50, (240, 8))
    tokens[:, 0] = 0
    labels = ((tokens >= 25).sum(1) > 3).long()
    splits = data.Splits(
        (tokens[:200], labels[:200]),
        (tokens[200:], labels[200:]),
        data.lookup("imdb"),
        {"vectors": vectors},
    )
    monkeypatch.setattr(data, "load", lambda name, root=None: splits)
    return splits


TEXTS = ("train", "--data", "imdb", "--device", "cpu", "--batch", 200, "--steps", 10)


@pytest.mark.parametrize("model", [(), ("--model", "mlp"), ("--model", "linear-head")])
def test_texts_are_learned_from_word_vectors(
    texts: data.Splits, tmp_path: Path, home: Path, model: tuple[str, ...]
) -> None:
    words = (*TEXTS, "--features", "word-vectors", "--standardise", *model, "--epsilon", 50)
    words = (*words, "--optimizer", "sgd", "--lr", 2, "--out", tmp_path / "run", "--json")
    assert shown(*words)["accuracy"] > 0.7
    assert len(list((home / "features").iterdir())) == 2
    run = run_json(tmp_path / "run")
    assert run["config"]["settings"]["model"] == (model[1] if model else "linear")
    assert any("word-vectors features (pooling both)" in note for note in run["ledger"]["notes"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--standardise",), "standardise = True: imdb holds tokens, which have no mean"),
        (("--model", "linear"), "model = 'linear': takes numbers, imdb holds tokens; turn them"),
        (
            ("--features", "word-vectors", "--model", "imdb-bilstm"),
            "model = 'imdb-bilstm': takes tokens; these inputs are numbers",
        ),
        (("--features", "scattering", "--model", "linear"), "takes images"),
    ],
)
def test_models_that_do_not_fit_texts_are_named(
    texts: data.Splits, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    assert message in refuse(*TEXTS, *words, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()
