"""Where training on one's own data starts is what the recorded search found, by its own rule."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from reticent import PrivateClassifier
from reticent.classifier import LINEAR_RATE
from reticent.data.own import from_columns
from reticent.data.own.starting import STARTS, Start

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
RECORD = json.loads((BENCHMARKS / "results" / "defaults.json").read_text())
KINDS = {kind["kind"]: kind for kind in RECORD["kinds"]}


def in_use(name: str) -> dict[str, Any]:
    if name != "classifier":
        return asdict(STARTS[name])
    options = inspect.signature(PrivateClassifier).parameters
    named = {name: options[name].default for name in ("clip", "steps")}
    return {"learning_rate": LINEAR_RATE, **named}


@pytest.mark.parametrize("name", ["table", "text", "images", "classifier"])
def test_what_was_chosen_is_in_use(name: str) -> None:
    kind = KINDS[name]
    assert kind["chosen"] == in_use(name)
    assert len(kind["settings"]) <= 12
    scores = {json.dumps(line["setting"]): line["validation"] for line in kind["settings"]}
    means = {key: statistics.mean(one) for key, one in scores.items()}
    best, before = json.dumps(kind["best"]), json.dumps(kind["before"])
    assert means[best] == pytest.approx(max(means.values()), abs=1e-4)
    gain = [a - b for a, b in zip(scores[best], scores[before], strict=True)]
    clear = statistics.mean(gain) > 2 * statistics.stdev(gain) / math.sqrt(len(gain))
    assert kind["chosen"] == (kind["best"] if clear else kind["before"])


def test_arrays_start_as_tables_do() -> None:
    assert STARTS["array"] == STARTS["table"]


def test_a_small_search_never_trains_on_what_it_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    defaults = importlib.import_module("defaults")
    rows = {"x": list(range(200)), "y": ["a", "b"] * 100}
    case = defaults.Case.of(
        "made up", from_columns(rows, target="y", classes="a,b", bounds="0..199")
    )
    seen: list[tuple[set[float], set[float]]] = []

    def fit(splits: Any, epsilon: float, setting: Start, seed: int) -> float:
        trained, held = ({float(x) for x in part[0][:, 0]} for part in (splits.train, splits.test))
        seen.append((trained, held))
        return setting.move + 0.001 * seed + 0.01 * epsilon

    grid = [Start(move=1.0), Start(move=2.0), Start(move=3.0)]
    found = defaults.kind("table", [case], grid, grid[1], fit)
    assert found["chosen"] == found["best"] == asdict(grid[2])
    test = {float(x) for x in case.test[0][:, 0]}
    searched = len(grid) * len(defaults.EPSILONS) * len(defaults.SEARCHED)
    for place, (trained, held) in enumerate(seen):
        assert not trained & held
        assert not trained & test
        assert (held == test) == (place >= searched)
    assert len(test) + len({float(x) for x in case.rest[0][:, 0]}) == 200
    close = defaults.kind("table", [case], grid, grid[2], fit)
    assert close["chosen"] == close["before"] == asdict(grid[2])
