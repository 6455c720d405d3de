"""Join records of published tables that several machines or processes wrote.

python benchmarks/merge.py DIR DIR
python benchmarks/merge.py --set-aside "why these settings were given up"

What the folders hold joins what is in `benchmarks/results`. Runs that failed are left out, and so
are those of settings that are no longer the table's. With `--set-aside`, such runs leave the
records for `results/set-aside.json`, with the reason: nothing that was measured is lost.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from reproduction_records import WHAT, matched
from reproductions import RESULTS, Asked, Keeper
from reticent.files import write_atomically
from reticent.reproduction.tables import load

ASIDE = "set-aside.json"


def merge(folders: Sequence[Path], into: Path) -> list[str]:
    """Bring the records in `into` up to date; the names of those that are."""
    names = sorted({path.name for folder in folders for path in folder.glob(f"{WHAT}-*.json")})
    for name in names:
        first = next(folder / name for folder in folders if (folder / name).exists())
        table = load(json.loads(first.read_text(encoding="utf-8"))["table"])
        with tempfile.TemporaryDirectory() as scratch:
            keeper = Keeper([Asked(table, (), 0)], Path(scratch), {})
            keeper.take_over((*folders, into), failed=False)
            keeper.write()
            if (made := Path(scratch) / name).exists():
                write_atomically(into / name, made.read_bytes())
    return names


def outdated(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a record whose settings are no longer the table's."""
    table = load(record["table"])
    changes = record.get("changes") or {}
    return [line for line, entry in matched(record, table, changes) if entry is None]


def set_aside(why: str, results: Path) -> int:
    """Move outdated runs out of the records; how many entries there were.

    They are among those set aside before they leave the records: whatever happens in between,
    nothing is lost.
    """
    left: dict[Path, dict[str, Any]] = {}
    runs = []
    for path in sorted(results.glob(f"{WHAT}-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        old = outdated(record)
        runs += [kept(record, line) for line in old]
        if old:
            left[path] = {
                **record,
                "entries": [line for line in record["entries"] if line not in old],
            }
    if not runs:
        return 0
    aside = results / ASIDE
    before = {"what": "set-aside", "groups": []}
    if aside.exists():
        before = json.loads(aside.read_text(encoding="utf-8"))
    _write(aside, {**before, "groups": [*before["groups"], {"why": why, "runs": runs}]})
    for path, record in left.items():
        if record["entries"]:
            _write(path, record)
        else:
            path.unlink()
    return len(runs)


def kept(record: dict[str, Any], line: dict[str, Any]) -> dict[str, Any]:
    """All of an entry that is no longer the table's, on its own."""
    machines = record["machines"]
    return {
        "table": record["table"],
        **line,
        "settings": {**record["settings"], **line["settings"]},
        "runs": [{**run, "machine": machines[run["machine"]]} for run in line["runs"]],
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    write_atomically(path, json.dumps(content, indent=1, allow_nan=False).encode() + b"\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="*")
    parser.add_argument("--set-aside", metavar="WHY", help="First, move outdated runs away.")
    options = parser.parse_args()
    if not options.folders and not options.set_aside:
        parser.error("name folders, or why to set runs aside")
    if options.set_aside:
        print(f"{set_aside(options.set_aside, RESULTS)} entries set aside")
    print(*merge(options.folders, RESULTS), sep="\n")


if __name__ == "__main__":
    main()
