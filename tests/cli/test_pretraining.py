"""`reticent features pretrain`: a file of weights, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from reticent.cli import app, pretraining
from reticent.features import image_network
from reticent.features.image_network import load_network, weights_origin
from reticent.features.random_images import RandomImages
from reticent.pretraining import contrastive
from reticent.pretraining.contrastive import Pretraining

from .calling import call, refuse, runner

TINY = ("features", "pretrain", "--images", 16, "--batch", 4, "--steps", 2, "--side", 8)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(contrastive, "_PIECE", 16)
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))


def test_weights_are_learned_kept_and_used(tmp_path: Path) -> None:
    out = tmp_path / "made" / "mine.safetensors"
    words = (*TINY, "--lr", 0.01, "--seed", 4, "--device", "cpu")
    told = json.loads(call(*words, "--out", out, "--json"))
    assert told["out"] == str(out)
    plan = Pretraining(
        images=16, drawn_side=12, side=8, batch=4, steps=2, lr=0.01, seed=4
    ).to_json()
    origin = weights_origin(str(out))
    assert origin.pop("version")
    assert origin == {**plan, "loss": told["loss"]}
    net = load_network(str(out))
    assert not torch.equal(net.stem.weight, load_network().stem.weight)
    again = tmp_path / "again.safetensors"
    shown = call(*words, "--out", again)
    assert "after 2 steps" in shown
    assert f"--feature weights={again}" in "".join(shown.split("\n"))
    assert again.read_bytes() == out.read_bytes()
    options: dict[str, Any] = {"parts": "1x1", "images": 8, "process": "strokes"}
    images = torch.rand(3, 1, 8, 8)
    mine, shipped = (
        RandomImages((1, 8, 8), weights=weights, **options)(images) for weights in (str(out), "")
    )
    assert not torch.allclose(mine, shipped, atol=1e-2)


def test_nothing_is_left_of_what_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*some: Any) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "mine.safetensors"
    out.write_text("an older one")
    monkeypatch.setattr(contrastive, "contrast", stopped)
    result = runner.invoke(app, [str(word) for word in (*TINY, "--out", out, "--overwrite")])
    assert result.exit_code != 0
    assert "stopped; nothing was written" in result.output
    assert out.read_text() == "an older one"
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_what_cannot_work_is_refused_before_anything_is_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "learn_network", lambda *a, **k: 1 / 0)
    there = tmp_path / "there"
    there.write_text("")
    assert "is there already; say --overwrite" in refuse(*TINY, "--out", there)
    assert "is a folder; name a file" in refuse(*TINY, "--out", tmp_path)
    assert "is not a folder" in refuse(*TINY, "--out", there / "below")
    assert "steps = 0: must be at least 1" in refuse(*TINY, "--steps", 0, "--out", tmp_path / "x")
    assert "batch = 1" in refuse(*TINY, "--batch", 1, "--out", tmp_path / "x")
    assert "device = 'magic'" in refuse(*TINY, "--device", "magic", "--out", tmp_path / "x")


def test_defaults_are_the_plan_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Pretraining] = []

    def planned(plan: Pretraining, **told: Any) -> Any:
        asked.append(plan)
        return image_network.network(), 1.0

    monkeypatch.setattr(pretraining, "learn_network", planned)
    call("features", "pretrain", "--out", tmp_path / "x", "--device", "cpu")
    assert asked == [Pretraining()]


def test_show_tells_where_the_shipped_weights_come_from() -> None:
    shown = " ".join(call("features", "show", "random-images").split())
    told = weights_origin()
    assert f"steps {told['steps']}" in shown
    assert "loss 3.74" in shown
    assert json.loads(call("features", "show", "random-images", "--json"))["learned"] == told
    assert "learned:" not in call("features", "show", "scattering")
