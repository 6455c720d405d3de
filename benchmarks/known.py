"""Write `src/reticent/known.toml` from the measured frontiers; no number there is typed.

With `--check`, fail if the file is not what the results give.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

from reticent.best import WITH

RESULTS = Path(__file__).parent / "results"
FILE = Path(__file__).parent.parent / "src" / "reticent" / "known.toml"


def text(results: Path = RESULTS) -> str:
    """The file's content."""
    lines = [
        "# Written by benchmarks/known.py from benchmarks/results/frontier-*.json: test accuracies",
        "# in percent that the best recipe reached at each epsilon.",
    ]
    for path in sorted(results.glob("frontier-*.json")):
        frontier = json.loads(path.read_text())
        if WITH in frontier["data"]:
            continue
        records = {entry["settings"]["batch"] for entry in frontier["entries"]}
        if len(records) != 1:
            raise ValueError(f"{path.name}: entries of {records} records")
        lines += ["", f"[{frontier['data']}]", f"records = {records.pop()}"]
        lines += [f"delta = {frontier['delta']:g}", "", f"[{frontier['data']}.at]"]
        for entry in sorted(frontier["entries"], key=lambda entry: entry["epsilon"]):
            found = [run["accuracy"] for run in entry["runs"]]
            numbers = {
                "mean": round(statistics.mean(found), 2),
                "low": round(min(found), 2),
                "high": round(max(found), 2),
                "runs": len(found),
            }
            shown = ", ".join(f"{key} = {value}" for key, value in numbers.items())
            lines.append(f'"{entry["epsilon"]:g}" = {{ {shown} }}')
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file, or check it."""
    if "--check" in sys.argv:
        if not FILE.exists() or FILE.read_text() != text():
            raise SystemExit(f"{FILE.name} is not what the results give; run benchmarks/known.py")
    else:
        FILE.write_text(text())


if __name__ == "__main__":
    main()
