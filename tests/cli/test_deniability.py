from __future__ import annotations

import json
import math

import pytest

from reticent.cli.building import budget_of, build_method
from reticent.cli.settings import resolve, saved_settings
from reticent.methods.deniability import plausibility, smallest_distance
from reticent.training import Training

from .calling import call, refuse

SHORT = ("--device", "cpu", "--coin-seed", 1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pd-sgd") / "run"
    words = ("--method", "pd-sgd", "--steps", 150, "--private-diagnostics", "--quiet")
    shown = call("train", *words, *SHORT, "--out", folder)
    return folder, shown


def test_how_often_each_record_was_used_stays_private(trained):
    folder, _ = trained
    kept = json.loads((folder / "diagnostics.private.json").read_text())
    accepted = sum(line["accepted"] for line in kept["releases"])
    updates = kept["updates"]
    assert len(updates) == 1437
    assert 143 * accepted <= sum(updates) <= 144 * accepted  # batches of a tenth
    assert max(updates) == kept["releases"][-1]["most_updates"]
    assert '"updates"' not in (folder / "run.json").read_text()


def test_one_command_trains_on_digits(trained):
    folder, shown = trained
    kept = json.loads((folder / "run.json").read_text())
    assert kept["guarantee"] == "plausible-deniability"
    assert kept["statement"]["epsilon"] is None
    assert kept["budget"] is None
    assert kept["seconds"] is None
    assert kept["metrics"][-1]["accuracy"] > 0.8
    assert len(kept["metrics"]) == 1  # only of the final model
    # the recipe's, and the certificate that follows
    assert kept["method"]["batches"] == 10
    found = kept["released"]["certificate"]
    assert found["dimension"] == 5050
    assert found["limits"][0]["one_batch"] == smallest_distance(0.05, 0.02, 200.0)
    told = " ".join(shown.replace("│", " ").split())
    assert "plausible deniability of each update; no ε" in told
    assert "only the final model is seen" in told
    assert f"farther than {math.sqrt(found['limits'][1]['update']):.4g} from" in told
    assert "it depends on the records" in told
    assert "ε =" not in told


def test_no_epsilon_is_written_anywhere(trained):
    folder, _ = trained
    for name in ("run.json", "settings.json"):
        text = (folder / name).read_text()
        assert '"epsilon": 3' not in text
        assert '"clip"' not in text
    settings = saved_settings(folder)
    assert budget_of(settings) is None
    assert build_method(settings).options()["gamma"] == 200.0


def test_rejections_are_in_the_private_diagnostics_alone(trained):
    folder, _ = trained
    kept = json.loads((folder / "diagnostics.private.json").read_text())
    assert len(kept["releases"]) == 150
    assert {"accepted", "evaluated", "plausible", "nearest"} <= set(kept["releases"][0])
    for word in set(kept["releases"][0]) - {"seed"}:  # the model has one too
        assert f'"{word}"' not in (folder / "run.json").read_text()


def test_json_of_a_training(tmp_path):
    words = ("--method", "pd-sgd", "--steps", 2, *SHORT, "--json")
    told = json.loads(call("train", *words, "--out", tmp_path / "a"))
    assert (told["guarantee"], told["epsilon"]) == ("plausible-deniability", None)
    assert "certificate" in told["released"]
    assert "delta" not in told
    ablation = ("--set", "random_rejection=0.5")
    told = json.loads(call("train", *words, *ablation, "--out", tmp_path / "b"))
    assert (told["guarantee"], told["released"]) == ("none", {"ablation": "random rejection"})


def test_plain_training(tmp_path):
    words = ("--method", "sgd", "--steps", 150, *SHORT, "--out", tmp_path / "run")
    shown = call("train", *words)
    assert "promises nothing" in shown
    assert "releases of about 64" in " ".join(shown.split())
    assert "multiplier" not in shown
    kept = json.loads((tmp_path / "run" / "run.json").read_text())
    assert kept["guarantee"] == "none"
    assert kept["metrics"][-1]["accuracy"] > 0.9
    assert len(kept["metrics"]) == 10


def test_a_resumed_command_needs_no_flags(tmp_path, monkeypatch):
    words = ("--method", "pd-sgd", "--steps", 12, *SHORT, "--json", "--out")
    whole = json.loads(call("train", *words, tmp_path / "whole"))
    finish = Training.finish

    def stop(training, on_release=None):
        for release in training:
            if release.step == 5:
                training.stop()
        raise KeyboardInterrupt

    monkeypatch.setattr(Training, "finish", stop)
    with pytest.raises(AssertionError):
        call("train", *words, tmp_path / "part")
    monkeypatch.setattr(Training, "finish", finish)
    again = json.loads(call("train", "--resume", tmp_path / "part", "--json"))
    assert again["loss"] == whole["loss"]


@pytest.mark.parametrize("method", ["pd-sgd", "sgd"])
@pytest.mark.parametrize(
    "words", [("--epsilon", 3), ("--delta", 1e-6), ("--epsilon", 0), ("--non-private",)]
)
def test_an_epsilon_is_refused_and_explained(method, words, tmp_path):
    said = refuse("train", "--method", method, *words, "--out", tmp_path / "run")
    assert words[0] in said
    assert f"{method} promises no differential privacy" in said
    assert not (tmp_path / "run").exists()


def test_an_epsilon_in_a_file_is_refused_too(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('method = "pd-sgd"\nepsilon = 2.0\n')
    said = refuse("train", "--config", path)
    assert said.startswith("epsilon = 2.0: in config ")
    assert "pd-sgd promises no" in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--batch", 100), "batch = 100: is not an option of pd-sgd: batches"),
        (("--clip", 1.0), "clip = 1.0: is not an option"),
        (("--sigma", 0.1), "--sigma = 0.1: is not an option"),
        (("--epochs", 2), "epochs = 2.0: pd-sgd has no batch; give steps"),
        (("--set", "threshold=11"), "threshold = 11: exceeds the number of batches 10"),
        (("--set", "preset=mnist"), "preset = 'mnist': must be one of cifar10-1"),
        (("--set", "batches=5000"), "batches = 5000: exceeds the number of records"),
        (("--beta", 1.0), "beta = 1.0: is not an option"),
    ],
)
def test_what_it_does_not_take(words, named, tmp_path):
    said = refuse("train", "--method", "pd-sgd", *words, *SHORT, "--out", tmp_path / "run")
    assert named in said


def test_a_preset_goes_before_the_recipe_and_after_flags():
    given = {"method": "pd-sgd", "method_options": {"preset": "cifar10-2"}}
    method = build_method(resolve(None, given))
    assert (method.batches, method.sigma, method.gamma) == (10, 0.3, 2.0)
    given["method_options"]["gamma"] = 7.0
    assert build_method(resolve(None, given)).gamma == 7.0
    on_purchases = resolve(None, {"method": "pd-sgd", "data": "purchase100"})
    assert build_method(on_purchases).gamma == 1000.0


@pytest.mark.parametrize("method", ["pd-sgd", "sgd"])
@pytest.mark.parametrize("data", ["digits", "mnist", "fashion-mnist", "cifar10", "imdb"])
def test_every_data_set_has_a_start(method, data):
    settings = resolve(None, {"method": method, "data": data})
    assert build_method(settings).name == method
    assert settings.steps or (settings.epochs and method == "sgd")


def test_the_cards():
    assert "plausible-deniability: no ε" in " ".join(call("methods", "show", "pd-sgd").split())
    assert "neither clipping nor noise" in call("methods", "show", "sgd")
    cards = {card["name"]: card for card in json.loads(call("methods", "list", "--json"))}
    assert cards["pd-sgd"]["guarantee"] == "plausible-deniability"
    assert cards["sgd"]["guarantee"] == "none"


WORDS = ("deniability", "--sigma", 0.3, "--gamma", 2, "--batches", 20)


def test_the_certificate_is_shown():
    shown = " ".join(call(*WORDS, "--dimension", 7680).split())
    assert "√(d*/k) = 0.01422" in shown
    assert "no epsilon" in shown
    assert "than the final model" in shown
    told = json.loads(call(*WORDS, "--threshold", 2, "--distance", 1, "--distance", 9, "--json"))
    assert [row["distance"] for row in told["rows"]] == [1, 9]
    assert told["rows"][0]["plausibility"] == plausibility(1.0, 0.3, 2.0)
    assert told["rows"][1]["pass_probability"] == pytest.approx(19 * plausibility(9.0, 0.3, 2.0))
    assert "every update passes" in call(*WORDS, "--threshold", 1)


def test_the_figure(tmp_path):
    path = tmp_path / "distances.svg"
    shown = call(*WORDS, "--dimension", 7680, "--plot", path)
    assert "drawn to" in shown
    first = path.read_bytes()
    text = first.decode()
    assert "σ = 0.3<" in text
    assert "k = 7680" in text
    assert json.loads(call(*WORDS, "--dimension", 7680, "--plot", path, "--json"))["plot"]
    assert path.read_bytes() == first
    assert "plot" in refuse(*WORDS, "--plot", tmp_path / "distances.pdf")


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--threshold", 21), "threshold = 21"),
        (("--distance", -1), "distance = -1.0"),
        (("--dimension", 0), "dimension = 0"),
        (("--gamma", 0), "gamma = 0.0"),
    ],
)
def test_errors_name_option_and_value(words, named):
    assert named in refuse(*WORDS, *words)
