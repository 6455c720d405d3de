"""The charts of a comparison: accuracy against ε, what it cost, what attacks found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reticent.report.charts import COLOUR, DASHES, SERIES, Chart, short
from reticent.report.words import epsilon_text, number

DP = "differential-privacy"
_MARKERS = "osD^v<>"
_UNPROVED, _LONGEST = " (no ε)", 20
_APART = 0.012  # how far points of different methods are set apart, as a share of the axis
_LEAST = 2.0  # percentage points that the axis shows above and below all means, at least


def shown_percent(mean: float | None, half: float | None) -> str:
    """`91.25 % ± 0.40`; a dash where nothing is known."""
    if mean is None:
        return "–"
    return f"{mean:.2f} %" if half is None else f"{mean:.2f} % ± {half:.2f}"


def cells_of(found: Mapping[str, Any], label: str) -> dict[float | None, Mapping[str, Any]]:
    """A method's cells by ε."""
    return {cell["epsilon"]: cell for cell in found["cells"] if cell["method"] == label}


def accuracy_chart(found: Mapping[str, Any]) -> Chart | None:
    """Accuracy against ε with intervals; methods without an ε as levels."""
    known = [cell for cell in found["cells"] if cell["mean"] is not None]
    if not any(cell["epsilon"] is not None for cell in known):
        return None
    labels = [method["label"] for method in found["methods"]]
    styles = {label: _style(place) for place, label in enumerate(labels)}
    low, high = _range(known)
    columns = 3 if max(map(len, labels)) < 12 else 2
    epsilons = found["epsilons"]

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons], minor=False)
        axes.set_xticks([], minor=True)
        edge = 1.25 if len(epsilons) == 1 else (epsilons[-1] / epsilons[0]) ** 0.06
        axes.set_xlim(epsilons[0] / edge, epsilons[-1] * edge)
        for place, label in enumerate(labels):
            cells = [c for c in cells_of(found, label).values() if c["mean"] is not None]
            if cells:
                _draw_method(axes, label, cells, styles[label], place - (len(labels) - 1) / 2)
        axes.set_ylim(low, high)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
        axes.set_xlabel("ε that a model may spend (logarithmic)")
        named = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        order = [name for label in labels for name in named if _named(name, label)]
        handles = [named[name] for name in order]
        figure.legend(handles, order, loc="outside lower center", ncols=columns)

    rows = [
        (
            cell["method"],
            "–" if cell["epsilon"] is None else f"{cell['epsilon']:g}",
            "–" if cell["mean"] is None else f"{cell['mean']:.2f} %",
            "–" if cell["half_width"] is None else f"± {cell['half_width']:.2f}",
            ", ".join(f"{value:.2f}" for value in cell["accuracy"].values()) or "–",
        )
        for cell in found["cells"]
    ]
    note = "Mean over seeds on the held-out records."
    if any(cell["half_width"] is not None for cell in known):
        note += (
            " Whiskers are 95 % confidence intervals of the mean; those that leave the picture are "
            "longer, and stand in the table."
        )
    else:
        note += " One seed says nothing about how much another would differ."
    if any(cell["epsilon"] is None for cell in known):
        note += " Levels are methods without an ε."
    best = max(known, key=lambda cell: cell["mean"])
    at = "" if best["epsilon"] is None else f" at ε = {best['epsilon']:g}"
    return Chart(
        "accuracy-curves",
        "Accuracy against ε",
        note,
        f"Line chart of held-out accuracy against ε for {', '.join(labels)}; the highest mean is "
        f"{best['mean']:.2f} %, of {best['method']}{at}.",
        draw,
        ("method", "ε", "mean", "interval", "seeds"),
        rows,
        size=(4.8, 3.3 + 0.18 * -(-len(labels) // columns)),
    )


def _named(name: str, label: str) -> bool:
    """Whether a line of the legend is that of a method."""
    return name.removesuffix(_UNPROVED) == short(label, _LONGEST)


def _style(place: int) -> tuple[str, str, Any]:
    """Colour, marker and dashes: told apart without colours too."""
    return (
        SERIES[place % len(SERIES)],
        _MARKERS[place % len(_MARKERS)],
        DASHES[(place + place // len(SERIES)) % len(DASHES)],
    )


def _draw_method(
    axes: Any,
    label: str,
    cells: Sequence[Mapping[str, Any]],
    style: tuple[str, str, Any],
    apart: float,
) -> None:
    colour, marker, dashes = style
    name = short(label, _LONGEST)
    if cells[0]["epsilon"] is None:
        mean, half = cells[0]["mean"], cells[0]["half_width"]
        axes.axhline(mean, color=colour, linestyle=dashes, linewidth=1.4, label=name + _UNPROVED)
        if half is not None:
            axes.axhspan(mean - half, mean + half, color=colour, alpha=0.1, linewidth=0)
        return
    left, right = axes.get_xlim()
    factor = (right / left) ** (_APART * apart)
    mark = "" if cells[0]["guarantee"] == DP else _UNPROVED
    axes.errorbar(
        [cell["epsilon"] * factor for cell in cells],
        [cell["mean"] for cell in cells],
        [cell["half_width"] or 0.0 for cell in cells],
        color=colour,
        marker=marker,
        linestyle=dashes,
        linewidth=1.4,
        elinewidth=1,
        capsize=2.5,
        label=f"{name}{mark}",
    )


def _range(known: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """What the axis shows: all means, and intervals as far as they leave the means readable."""
    means = [cell["mean"] for cell in known]
    spread = max(max(means) - min(means), 2 * _LEAST)
    ends = [(cell["mean"], cell["half_width"] or 0.0) for cell in known]
    low = max(min(mean - half for mean, half in ends), min(means) - 0.5 * spread)
    high = min(max(mean + half for mean, half in ends), max(means) + 0.5 * spread)
    # not above 100 %, but for the room that a marker takes
    return max(low - _LEAST / 2, 0.0), min(high + _LEAST / 2, 100.6)


def cost_charts(found: Mapping[str, Any]) -> list[Chart]:
    """Time and gradients of one model, by method: a bar from the cheapest to the dearest ε."""
    charts = []
    for key, title, unit, note in (
        (
            "seconds",
            "Seconds for one model",
            "seconds",
            "On the machine of this comparison, evaluations included. Where models were trained "
            "side by side or at once, a model by itself may be faster or slower.",
        ),
        (
            "gradients",
            "Gradients of single records for one model",
            "gradients",
            "As expected from sampling rates and numbers of draws, not counted. It does not depend "
            "on the machine.",
        ),
    ):
        lines = [(m["label"], *_least_and_most(found, m["label"], key)) for m in found["methods"]]
        if any(most is not None for _, _, most in lines):
            charts.append(_bars(key, title, unit, note, lines))
    return charts


def _least_and_most(
    found: Mapping[str, Any], label: str, key: str
) -> tuple[float | None, float | None]:
    values = [cell[key] for cell in cells_of(found, label).values() if cell[key] is not None]
    return (min(values), max(values)) if values else (None, None)


def _bars(
    key: str,
    title: str,
    unit: str,
    note: str,
    lines: Sequence[tuple[str, float | None, float | None]],
) -> Chart:
    top = max(most for _, _, most in lines if most is not None) or 1.0

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.grid(False)
        for place, (_, least, most) in enumerate(lines):
            if least is None or most is None:
                axes.annotate(
                    "not known",
                    (0, place),
                    textcoords="offset points",
                    xytext=(4, 0),
                    va="center",
                    color=COLOUR["soft"],
                )
                continue
            axes.barh(place, most, color=COLOUR["c1"], height=0.55, alpha=0.35)
            axes.barh(place, least, color=COLOUR["c1"], height=0.55)
            axes.annotate(
                _range_text(least, most),
                (most, place),
                textcoords="offset points",
                xytext=(5, 0),
                va="center",
                annotation_clip=False,
            )
        axes.set_xlim(0, top * 1.7)  # room for the numbers
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.set_yticks(range(len(lines)), [short(label, 16) for label, _, _ in lines])
        axes.set_xticks([])
        axes.spines["bottom"].set_visible(False)

    known = [(label, most) for label, _, most in lines if most is not None]
    dear = max(known, key=lambda one: one[1])
    return Chart(
        f"cost-{key}",
        title,
        f"{note} The full bar is the cheapest ε, the pale one the dearest.",
        f"Bar chart of {unit} for one model of each of {len(lines)} methods; the most has "
        f"{dear[0]} with {_text(dear[1])}.",
        draw,
        ("method", "least", "most"),
        [
            (label, *("not known" if value is None else _text(value) for value in (least, most)))
            for label, least, most in lines
        ],
        size=(4.2, 0.7 + 0.36 * len(lines)),
    )


def _text(value: float) -> str:
    return number(round(value, 1) if value < 100 else round(value))


def _range_text(least: float, most: float) -> str:
    low, high = _text(least), _text(most)
    return low if low == high else f"{low} to {high}"


def attack_chart(found: Mapping[str, Any]) -> Chart | None:
    """AUC of every attack on every method and ε, with its interval."""
    lines = [line for line in found["attacks"] if line["auc"] is not None]
    if not lines:
        return None
    names = list(dict.fromkeys(line["attack"] for line in lines))
    rows = list(dict.fromkeys((line["method"], line["epsilon"]) for line in lines))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.grid(False)
        axes.axvline(0.5, color=COLOUR["soft"], linewidth=1, linestyle=":")
        for number_, name in enumerate(names):
            colour, marker, _ = _style(number_)
            offset = 0.0 if len(names) == 1 else (number_ / (len(names) - 1) - 0.5) * 0.5
            mine = [line for line in lines if line["attack"] == name]
            values = [line["auc"] for line in mine]
            ends = [line["auc_interval"] or (line["auc"], line["auc"]) for line in mine]
            axes.errorbar(
                values,
                [rows.index((line["method"], line["epsilon"])) + offset for line in mine],
                xerr=[
                    [max(v - e[0], 0) for v, e in zip(values, ends, strict=True)],
                    [max(e[1] - v, 0) for v, e in zip(values, ends, strict=True)],
                ],
                color=colour,
                marker=marker,
                linestyle="none",
                elinewidth=1,
                capsize=2,
                label=name,
            )
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_yticks(
            range(len(rows)),
            [short(m, 14) + ("" if e is None else f", ε = {e:g}") for m, e in rows],
        )
        axes.set_xlabel("AUC; 0.5 is guessing")
        figure.legend(loc="outside lower center", ncols=min(len(names), 3))

    worst = max(lines, key=lambda line: line["auc"])
    return Chart(
        "attack-auc",
        "What membership attacks find",
        "AUC: how often a record that was trained on scores above one that was not. Whiskers are "
        "95 % intervals for one model and other records, not over seeds.",
        f"Dot chart of the AUC of {len(names)} attacks on {len(rows)} models; the largest is "
        f"{worst['auc']:.3f}, of {worst['attack']} on {worst['method']}.",
        draw,
        ("method", "ε", "attack", "AUC", "interval", "found at 0.1 % false alarms"),
        [
            (
                line["method"],
                "–" if line["epsilon"] is None else f"{line['epsilon']:g}",
                line["attack"],
                f"{line['auc']:.3f}",
                "–"
                if line["auc_interval"] is None
                else "{:.3f} to {:.3f}".format(*line["auc_interval"]),
                "–" if line["tpr@0.001"] is None else f"{100 * line['tpr@0.001']:.2f} %",
            )
            for line in lines
        ],
        size=(4.8, 1.2 + 0.3 * len(rows)),
    )


def proved_text(cell: Mapping[str, Any]) -> str:
    """The ε that is proved for one model of a cell."""
    if cell["guarantee"] != DP:
        return "none"
    return "–" if cell["mean"] is None else epsilon_text(cell["epsilon_proved"])
