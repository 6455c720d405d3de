"""Write `src/reticent/best.toml` from what the searches chose; no number there is typed.

With `--check`, fail if the file is not what the results give.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from reticent.best import WITH

RESULTS = Path(__file__).parent / "results"
FILE = Path(__file__).parent.parent / "src" / "reticent" / "best.toml"
FEATURES = {"imdb": "word-clusters"}


def common(search: dict[str, Any]) -> dict[str, Any]:
    """What the recipe has at every ε."""
    data, _, encoder = search["data"].partition(WITH)
    return {
        "features": encoder or FEATURES.get(data, "random-images"),
        "feature_options": search["options"],
        "model": "linear-head",
        "model_options": {"bias": False, "zero": True},
        "optimizer": "sgd",
        "momentum": search["momentum"],
    }


def chosen(row: dict[str, Any]) -> dict[str, Any]:
    """What it has at one; the search counts its rate in clips."""
    return {
        "clip": row["clip"],
        "steps": row["steps"],
        "lr": round(row["rate"] / row["clip"], 6),
    }


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(part)}" for key, part in value.items()) + " }"
    return json.dumps(value)


def text(results: Path = RESULTS) -> str:
    """The file's content."""
    lines = [
        "# Written by benchmarks/best.py from benchmarks/results/search-*.json: the best features",
        "# of each data set, and with them the best settings for each epsilon that was searched.",
    ]
    for path in sorted(results.glob("search-*.json")):
        search = json.loads(path.read_text())
        name = search["data"] if WITH not in search["data"] else f'"{search["data"]}"'
        lines += ["", f"[{name}]"]
        lines += [f"{key} = {_value(value)}" for key, value in common(search).items()]
        lines += ["", f"[{name}.at]"]
        lines += [f'"{row["epsilon"]:g}" = {_value(chosen(row))}' for row in search["chosen"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        if FILE.read_text() != text():
            raise SystemExit(f"{FILE.name} is not what the results give; run benchmarks/best.py")
    else:
        FILE.write_text(text())
