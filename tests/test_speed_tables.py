"""The README's generated parts, and its table of what a private step costs."""

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def _found(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def steps(device, ours, rivals, **more):
    times = {"ms": [0.9 * ours, ours, 1.1 * ours], "ratio": [0.1, ours / 10, 9.0]}
    contestants = {"plain": {"ms": [9, 10, 11]}, "reticent": times}
    for name, value in rivals.items():
        contestants[f"opacus {name}"] = {"ms": [0, value, 1e6]} if value else {"wrong": "off"}
    return {
        "what": "steps",
        "device": device,
        "opacus": "1.6.0",
        "machine": {
            "accelerator": "H" if device == "cuda" else None,
            "processor": "P",
            "threads": 2,
            "versions": {"torch": "2.11"},
        },
        "cases": {"small": {"label": "small CNN", "contestants": contestants}},
        **more,
    }


def test_medians_over_plain_and_against_the_fastest_right_rival():
    part = importlib.import_module("speed_tables").part
    text = part(
        [
            steps("cuda", 5.0, {"hooks": 40.0, "ghost": 20.0, "functorch": None}),
            {"what": "runs"},
            steps("cpu", 14.0, {"hooks": 28.0, "ghost": 70.0}),
        ]
    )
    assert "| small CNN | 0.50 | 4.0 | 1.40 | 2.0 |" in text
    assert "Opacus 1.6.0 that computes" in text
    assert "GPU: H; PyTorch 2.11; CPU: P, 2 thread(s); PyTorch 2.11." in text


def test_only_the_parts_between_the_markers_change():
    with_parts = importlib.import_module("tables").with_parts
    text = "before\n<!-- a -->\nold\n<!-- /a -->\nbetween\n<!-- b -->\n<!-- /b -->\nafter"
    once = with_parts(text, {"a": "new", "b": "other"})
    assert once == (
        "before\n<!-- a -->\nnew\n<!-- /a -->\nbetween\n<!-- b -->\nother\n<!-- /b -->\nafter"
    )
    assert with_parts(once, {"a": "new", "b": "other"}) == once
    for broken in ("no markers", text + "<!-- a -->", text.replace("/a", "/x")):
        with pytest.raises(SystemExit, match="once each"):
            with_parts(broken, {"a": "new"})
