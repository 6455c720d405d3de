"""Join records of published tables that several machines or processes wrote.

python benchmarks/merge.py DIR DIR

What the folders hold joins what is in `benchmarks/results`. Runs that failed are left out, and so
are those of settings that are no longer the table's.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from reproductions import RESULTS, WHAT, Asked, Keeper
from reticent.files import write_atomically
from reticent.reproduction.tables import load


def merge(folders: Sequence[Path], into: Path) -> list[str]:
    """Bring the records in `into` up to date; the names of those that are."""
    names = sorted({path.name for folder in folders for path in folder.glob(f"{WHAT}-*.json")})
    for name in names:
        first = next(folder / name for folder in folders if (folder / name).exists())
        table = load(json.loads(first.read_text(encoding="utf-8"))["table"])
        with tempfile.TemporaryDirectory() as scratch:
            keeper = Keeper([Asked(table, ())], Path(scratch), 0, {})
            keeper.take_over((*folders, into), failed=False)
            keeper.write()
            if (made := Path(scratch) / name).exists():
                write_atomically(into / name, made.read_bytes())
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+")
    print(*merge(parser.parse_args().folders, RESULTS), sep="\n")


if __name__ == "__main__":
    main()
