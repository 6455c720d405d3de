"""A report as a figure: published hollow, ours filled with the spread over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reticent.figures import COLOURS, save_figure
from reticent.reproduction.reports import rows_of

MOST_TICKS = 8
_MARKERS = "osD^v<>ph"


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw a report; one panel for each data set and measure.

    Args:
        found: What `reports.report` gave.
        path: Where to; ends in .svg or .png.
    """
    panels = [
        (data, measure)
        for data in found["data"]
        if any(entry["data"] == data for entry in found["entries"])
        for measure in found["measures"]
    ]
    across = min(len(panels), 3)
    down = -(-len(panels) // across)
    styles = {
        label: (COLOURS[number % len(COLOURS)], _MARKERS[number % len(_MARKERS)])
        for number, (label, _) in enumerate(rows_of(found["entries"]))
    }

    def fill(figure: Any) -> None:
        axes = figure.subplots(down, across, squeeze=False)
        flat = [axis for line in axes for axis in line]
        for axis, (data, measure) in zip(flat, panels, strict=False):
            entries = [entry for entry in found["entries"] if entry["data"] == data]
            _panel(axis, found, entries, measure, styles)
            axis.set_title(found["data"][data])
        for axis in flat[len(panels) :]:
            axis.set_visible(False)
        told: dict[str, Any] = {}
        for axis in flat:
            told |= dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        shown = [label for label in styles if label in told]
        if shown:
            handles = [told[label] for label in shown]
            figure.legend(handles, shown, loc="outside lower center", ncols=across, frameon=False)

    legend = 0.2 * -(-len(styles) // across) + 0.2
    save_figure(path, fill, size=(3.4 * across, 2.6 * down + legend))


def _panel(
    axis: Any,
    found: Mapping[str, Any],
    entries: Sequence[Mapping[str, Any]],
    measure: str,
    styles: Mapping[str, tuple[str, str]],
) -> None:
    columns = found["columns"] or [None]
    numeric = all(isinstance(column, (int, float)) for column in columns)
    places = list(columns) if numeric else list(range(len(columns)))
    printed: set[str] = set()  # variants share what was published
    for label, cells in rows_of(entries):
        colour, marker = styles[label]
        lines = [cells.get(column, cells.get(None)) for column in columns]
        curves = [line for line in lines if line is not None and _curves(line, measure)]
        for line in curves:
            for curve in _curves(line, measure):
                axis.plot(range(1, len(curve) + 1), curve, color=colour, label=label)
        if curves:
            continue
        published = _points(places, lines, measure, "published", "published_deviation")
        ours = _points(places, lines, measure, "mean", "deviation")
        style = {"color": colour, "marker": marker, "linestyle": "none", "capsize": 2}
        row = next(iter(cells.values()))["row"]
        if published[0] and row not in printed:
            printed.add(row)
            axis.errorbar(*published, markerfacecolor="none", **style)
        axis.errorbar(*ours, label=label, **style)
    if numeric and min(columns) > 0 and max(columns) > 50 * min(columns):
        axis.set_xscale("log")
    elif len(columns) <= MOST_TICKS and not any(line.get_linestyle() == "-" for line in axis.lines):
        axis.set_xticks(places, ["" if column is None else str(column) for column in columns])
    axis.set_xlabel("ε" if found["axis"] == "epsilon" else (found["axis"] or ""))
    axis.set_ylabel(f"{measure}, %" if measure in found["percent"] else measure)


def _curves(entry: Mapping[str, Any], measure: str) -> list[list[float]]:
    values = entry["measures"][measure]["seeds"].values()
    return [value for value in values if isinstance(value, list)]


def _points(
    places: Sequence[Any],
    entries: Sequence[Mapping[str, Any] | None],
    measure: str,
    value: str,
    deviation: str,
) -> tuple[list[Any], list[float], list[float] | None]:
    """Where, how much and how far around, of the entries that have it."""
    found = [
        (place, numbers[value], numbers[deviation] or 0.0)
        for place, entry in zip(places, entries, strict=True)
        if entry is not None and (numbers := entry["measures"][measure])[value] is not None
    ]
    around = [d for _, _, d in found]
    return [p for p, _, _ in found], [v for _, v, _ in found], around if any(around) else None
