"""A table as measured here, beside what was published: as data and as Markdown.

The Markdown is made from the data alone, so the two cannot disagree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reticent.files import to_json, write_atomically
from reticent.reproduction.jobs import FORMAT, Outcome, job_of
from reticent.reproduction.measures import IN_PERCENT
from reticent.reproduction.tables import PUBLISHED, SOUND, VARIANTS, Entry, Table

TABLE_JSON, TABLE_MARKDOWN = "table.json", "table.md"
_NONE = "–"


def report(
    table: Table,
    entries: Sequence[Entry],
    outcomes: Mapping[str, Outcome],
    *,
    seeds: Sequence[int],
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is known of these entries, as JSON-ready data.

    Args:
        table: The published table.
        entries: Those of it that are reported.
        outcomes: By key; entries without one are reported with what was published.
        seeds: Whose outcomes are looked for.
        changes: Settings that override the table's.
    """
    changed = dict(changes or {})
    found = []
    for entry in entries:
        keys = [job_of(table, entry, seed, **changed).key for seed in seeds]
        known = [
            (seed, outcomes[key]) for seed, key in zip(seeds, keys, strict=True) if key in outcomes
        ]
        found.append(_entry(table, entry, known))
    return {
        "format": FORMAT,
        "table": table.id,
        "paper": table.paper,
        "name": table.name,
        "title": table.title,
        "kind": table.kind,
        "measures": list(table.measures),
        "percent": [*(m for m in table.measures if m in IN_PERCENT), *table.percent],
        "axis": table.axis,
        "columns": list(table.columns),
        "data": {name: data.title for name, data in table.data.items()},
        "missing": {n: data.missing for n, data in table.data.items() if data.missing},
        "bring": {n: data.bring for n, data in table.data.items() if data.bring},
        "runs": table.runs,
        "changes": changed,
        "notes": list(table.notes),
        "entries": found,
    }


def _entry(table: Table, entry: Entry, known: Sequence[tuple[int, Outcome]]) -> dict[str, Any]:
    done = [(seed, outcome) for seed, outcome in known if outcome.state == "done"]
    measures = {measure: _measured(table, entry, measure, done) for measure in table.measures}
    sound = [outcome.sound_epsilon for _, outcome in done]
    claims = [outcome.claimed_epsilon for _, outcome in done]
    return {
        "row": entry.row,
        "data": entry.data,
        "column": entry.column,
        "variant": entry.variant,
        "paper_is_sound": entry.sound,
        "why": entry.why,
        "measures": measures,
        "claimed_epsilon": _most(claims),
        "sound_epsilon": _most(sound),
        "guarantee": "none" if entry.variant == PUBLISHED else None,
        "steps": [outcome.steps for _, outcome in done],
        "seconds": [outcome.seconds for _, outcome in done],
        "seeds": [seed for seed, _ in done],
        "failed": {
            str(seed): outcome.error for seed, outcome in known if outcome.state == "failed"
        },
        "absent": sorted({str(o.error) for _, o in known if o.state == "missing"}),
        "missing": entry.missing,
        "claim": done[0][1].claim if done else {},
        "outcome_notes": sorted({note for _, outcome in done for note in outcome.notes}),
        "settings": {
            name: value
            for name, value in entry.settings.to_json().items()
            if name not in ("seed", "device", "root")
        },
        "options": entry.options,
        "made": [outcome.made for _, outcome in done],
    }


def _measured(
    table: Table, entry: Entry, measure: str, done: Sequence[tuple[int, Outcome]]
) -> dict[str, Any]:
    """Published and ours of one measure; curves have no mean."""
    unit = 100.0 if measure in table.percent else 1.0
    seeds: dict[str, Any] = {}
    intervals: dict[str, list[float]] = {}
    for seed, outcome in done:
        value = outcome.values.get(measure)
        seeds[str(seed)] = unit * value if isinstance(value, (int, float)) else value
        if measure in outcome.intervals:
            intervals[str(seed)] = [unit * end for end in outcome.intervals[measure]]
    numbers = [value for value in seeds.values() if isinstance(value, (int, float))]
    return {
        "published": entry.published.get(measure),
        "published_deviation": entry.spread.get(measure),
        "mean": statistics.fmean(numbers) if numbers else None,
        "deviation": statistics.stdev(numbers) if len(numbers) > 1 else None,
        "seeds": seeds,
        "intervals": intervals,
    }


def _most(values: Sequence[float | None]) -> float | None:
    """The largest, which is what holds for all; None where one has none."""
    if not values or any(value is None or math.isinf(value) for value in values):
        return None
    return max(value for value in values if value is not None)


# -- for people -------------------------------------------------------------------------------


def markdown(found: Mapping[str, Any]) -> str:
    """The paper's layout: ours, then in brackets what was published."""
    lines = [f"# {found['paper']}, {found['name']}: {found['title']}", ""]
    lines += ["Ours, with the standard deviation over seeds; in brackets what was published.", ""]
    if found["changes"]:
        changed = ", ".join(f"{name} = {value}" for name, value in found["changes"].items())
        lines += [f"Changed for all entries: {changed}.", ""]
    for data, title in found["data"].items():
        entries = [entry for entry in found["entries"] if entry["data"] == data]
        if not entries:
            continue
        lines += [f"## {title}", ""]
        for reason in _not_run(found, data, entries):
            lines += [f"Not run: {reason}", ""]
        for measure in found["measures"]:
            lines += [*_grid(found, entries, measure), ""]
    lines += _remarks(found)
    return "\n".join(lines) + "\n"


def _not_run(
    found: Mapping[str, Any], data: str, entries: Sequence[Mapping[str, Any]]
) -> list[str]:
    """What stands in the way on a data set, and how to make what is wanting."""
    if data in found["missing"]:
        return [found["missing"][data]]
    reasons = sorted({reason for entry in entries for reason in entry["absent"]})
    return [*reasons, *([found["bring"][data]] if reasons and data in found["bring"] else [])]


def _grid(
    found: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], measure: str
) -> list[str]:
    columns = found["columns"] or [None]
    heads = [_head(found["axis"], column) for column in columns]
    unit = ", %" if measure in found["percent"] else ""
    lines = [
        f"| {measure}{unit} | {' | '.join(heads)} |",
        f"|---|{'---|' * len(columns)}",
    ]
    for label, cells in rows_of(entries):
        texts = []
        for column in columns:
            entry = cells.get(column, cells.get(None))
            texts.append(_NONE if entry is None else cell_text(entry, measure))
        lines.append(f"| {label} | {' | '.join(texts)} |")
        epsilons = [
            _NONE if (entry := cells.get(column, cells.get(None))) is None else epsilon_pair(entry)
            for column in columns
        ]
        if any(text != _NONE for text in epsilons):
            lines.append(f"| {label}: ε claimed / proved | {' | '.join(epsilons)} |")
    return lines


def rows_of(
    entries: Sequence[Mapping[str, Any]],
) -> list[tuple[str, dict[Any, Mapping[str, Any]]]]:
    """Entries by row and variant, and within these by column."""
    rows: dict[str, dict[Any, Mapping[str, Any]]] = {}
    several = {entry["row"] for entry in entries if entry["variant"] != SOUND}
    for entry in entries:
        variant = f" ({entry['variant']})" if entry["row"] in several else ""
        rows.setdefault(f"{entry['row']}{variant}", {})[entry["column"]] = entry
    return list(rows.items())


def _head(axis: str | None, column: Any) -> str:
    if column is None:
        return "all"
    shown = "ε" if axis == "epsilon" else (axis or "").rsplit(".", 1)[-1]
    return f"{shown} = {_short(column)}" if shown else _short(column)


def _short(value: Any) -> str:
    if value is None:
        return "single value"
    return f"{value:g}" if isinstance(value, float) else str(value)


def cell_text(entry: Mapping[str, Any], measure: str) -> str:
    """`89.12 ± 0.10 (89.71)`: ours, and what was published."""
    numbers = entry["measures"][measure]
    published = numbers["published"]
    printed = "" if published is None else f"({digits(published)})"
    if numbers["mean"] is None:
        curve = any(isinstance(value, list) for value in numbers["seeds"].values())
        ours = "curve" if curve else "failed" if entry["failed"] else _NONE
    else:
        ours = digits(numbers["mean"])
        if numbers["deviation"] is not None:
            ours += f" ± {digits(numbers['deviation'], like=numbers['mean'])}"
    return f"{ours} {printed}".strip()


def digits(value: float, *, like: float | None = None) -> str:
    """Two digits behind the point for percentages and the like, more for numbers below 2.

    >>> digits(89.7), digits(0.503), digits(0.1, like=89.7)
    ('89.70', '0.5030', '0.10')
    """
    size = abs(value if like is None else like)
    return f"{value:.2f}" if size >= 2 or size == 0 else f"{value:.4f}"


def epsilon_pair(entry: Mapping[str, Any]) -> str:
    """`1.00 / 1.18`: what the paper claims, and what is proved of ours, rounded up."""
    if not entry["seeds"]:
        return _NONE
    claimed, sound = entry["claimed_epsilon"], entry["sound_epsilon"]
    if claimed is None and sound is None:
        return _NONE
    return f"{_up(claimed)} / {'none' if sound is None else _up(sound)}"


def _up(value: float | None) -> str:
    return _NONE if value is None else f"{math.ceil(value * 100 - 1e-9) / 100:.2f}"


def _remarks(found: Mapping[str, Any]) -> list[str]:
    lines = []
    unsound = {e["row"]: e["why"] for e in found["entries"] if not e["paper_is_sound"]}
    if unsound:
        lines += ["## Whose published ε is not a bound", ""]
        lines += [f"- {row}: {why}." for row, why in unsound.items()] + [""]
    used = {entry["variant"] for entry in found["entries"]}
    if used - {SOUND}:
        lines += ["## Variants", ""]
        lines += [f"- {name}: {text}." for name, text in VARIANTS.items() if name in used] + [""]
    failed = {
        f"{entry['row']} on {entry['data']}, {_short(entry['column'])}, seed {seed}: {error}"
        for entry in found["entries"]
        for seed, error in entry["failed"].items()
    }
    if failed:
        lines += ["## Failed", "", *(f"- {line}" for line in sorted(failed)), ""]
    seeds = {len(entry["seeds"]) for entry in found["entries"] if entry["seeds"]}
    lines += ["## Notes", ""]
    if seeds:
        count = str(max(seeds)) if len(seeds) == 1 else f"{min(seeds)} to {max(seeds)}"
        paper = f"; the paper averages {found['runs']}" if found["runs"] else ""
        lines.append(f"- Seeds of an entry: {count}{paper}.")
    lines += [f"- {note}" for note in found["notes"]]
    return lines


def write_report(found: Mapping[str, Any], out: Path) -> None:
    """Write `table.json` and `table.md`."""
    write_atomically(out / TABLE_JSON, to_json(found))
    write_atomically(out / TABLE_MARKDOWN, markdown(found).encode())
