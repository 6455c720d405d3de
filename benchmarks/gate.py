"""Has a private step become slower? Compare a record of `steps.py` with the one kept.

python benchmarks/gate.py NEW.json [--against benchmarks/results/steps-cpu.json]

Ratios to the plain step are compared, not milliseconds. Leaves with 1 and the names of what
regressed, with 2 where the records cannot be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any, NamedTuple

RESULTS = Path(__file__).parent / "results"
OURS = "reticent"
LEAST_BAND, WIDEST_BAND = 0.10, 0.50


class Unfit(Exception):
    """The records cannot be compared."""


class Row(NamedTuple):
    """One contestant of ours on one case; `problem` is empty where all is well."""

    case: str
    contestant: str
    old: float | None
    new: float | None
    band: float | None
    problem: str = ""


def load(path: Path) -> dict[str, Any]:
    """A record of steps, or `Unfit` with what is the matter with it."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Unfit(f"{path.name} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Unfit(f"{path.name} is not JSON, or cut short: {error}") from None
    if not isinstance(record, dict) or record.get("what") != "steps":
        raise Unfit(f"{path.name} is not a record of benchmarks/steps.py")
    try:
        place(record)
        for case in record["cases"].values():
            for one in case["contestants"].values():
                one.get("ratio")
            case["batch"], case["input"]
    except (KeyError, TypeError, AttributeError):
        raise Unfit(f"{path.name} is in an older form, or incomplete: measure again") from None
    return record


def place(record: dict[str, Any]) -> dict[str, Any]:
    """What has to be the same for ratios to be comparable."""
    told = record["machine"]
    return {
        "device": record["device"],
        "processor": told["processor"],
        "accelerator": told["accelerator"],
        "threads": told["threads"],
        "torch": told["versions"]["torch"],
    }


def ratio(one: dict[str, Any]) -> tuple[float, float] | None:
    """The median ratio and half its spread; None where there is no usable number."""
    try:
        low, middle, high = (float(value) for value in one["ratio"])
    except (KeyError, TypeError, ValueError):
        return None
    if not all(math.isfinite(v) and v > 0 for v in (low, middle, high)):
        return None
    return middle, (high - low) / 2


def why_not(one: dict[str, Any]) -> str:
    """Why a contestant has no number."""
    for key in ("wrong", "failed", "skipped"):
        if key in one:
            return f"{key}: {one[key]}"
    return "its ratio is not a number"


def compare(old: dict[str, Any], new: dict[str, Any]) -> list[Row]:
    """A row for each of our contestants that either record has a number for."""
    rows = []
    for name, case in old["cases"].items():
        fresh = new["cases"].get(name)
        if fresh and (fresh["batch"], fresh["input"]) != (case["batch"], case["input"]):
            raise Unfit(f"{name}: batch or input differ between the records")
        for title, one in case["contestants"].items():
            if not title.startswith(OURS):
                continue
            before = ratio(one)
            if before is None:
                if "ratio" in one:
                    raise Unfit(f"{name}, {title}: the ratio kept is not a number")
                continue
            if fresh is None or title not in fresh["contestants"]:
                rows.append(Row(name, title, before[0], None, None, "not measured"))
                continue
            after = ratio(fresh["contestants"][title])
            if after is None:
                reason = why_not(fresh["contestants"][title])
                rows.append(Row(name, title, before[0], None, None, reason))
                continue
            band = max(LEAST_BAND, math.hypot(before[1], after[1]) / before[0])
            if band > WIDEST_BAND:
                raise Unfit(
                    f"{name}, {title}: rounds differ by {100 * band:.0f} %, too much to judge; "
                    "measure again on a calm machine"
                )
            slower = after[0] > before[0] * (1 + band)
            rows.append(Row(name, title, before[0], after[0], band, "slower" if slower else ""))
    if not rows:
        raise Unfit("the record kept has no ratio of ours")
    return rows


def table(rows: list[Row]) -> str:
    """The rows as text."""
    lines = [f"{'case':14} {'contestant':16} {'kept':>7} {'new':>7} {'band':>7}"]
    for row in rows:
        old, new = (f"{v:7.2f}" if v is not None else f"{'-':>7}" for v in (row.old, row.new))
        band = f"{100 * row.band:5.0f} %" if row.band is not None else f"{'-':>7}"
        lines.append(f"{row.case:14} {row.contestant:16} {old} {new} {band} {row.problem}".rstrip())
    return "\n".join(lines)


def judge(new: Path, against: Path | None, other_machine: bool) -> int:
    """The exit status, after printing what was found."""
    try:
        fresh = load(new)
        kept = load(against or RESULTS / f"steps-{fresh['device']}.json")
        differing = [
            f"{key}: {place(kept)[key]} kept, {value} new"
            for key, value in place(fresh).items()
            if value != place(kept)[key]
        ]
        if differing and not other_machine:
            raise Unfit(
                "measured on different machines (" + "; ".join(differing) + "); measure again on "
                "the same one, or compare all the same with --other-machine"
            )
        rows = compare(kept, fresh)
    except Unfit as error:
        print(f"cannot compare: {error}", file=sys.stderr)
        return 2
    print(table(rows))
    failed = [row for row in rows if row.problem]
    for row in failed:
        print(f"regressed: {row.case}, {row.contestant}: {row.problem}", file=sys.stderr)
    return 1 if failed else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("new", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--other-machine", action="store_true")
    options = parser.parse_args()
    raise SystemExit(judge(options.new, options.against, options.other_machine))


if __name__ == "__main__":
    main()
