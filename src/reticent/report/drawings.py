"""The charts that may be shown to everybody: learning curve, per-class accuracy, confusion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reticent.report.charts import COLOUR, Chart, percent, share, short
from reticent.report.spent import POINTS, spent_at
from reticent.report.words import epsilon_text, number

MOST_CLASSES = 25  # more do not fit into a matrix
WRITTEN = 12  # up to so many classes the counts stand in the matrix
DEEPEST = 0.42  # opacity of the fullest cell: letters on it stay readable
CONFUSIONS = 20
_ACROSS = 26  # letters that fit below a matrix


def _thinned(lines: Sequence[Any], most: int) -> list[Any]:
    """Evenly spread, the first and the last among them."""
    if len(lines) <= most:
        return list(lines)
    return [lines[round(k * (len(lines) - 1) / (most - 1))] for k in range(most)]


def learning_curve(run: dict[str, Any]) -> Chart | None:
    """Accuracy (or loss) on held-out records against ε spent, or releases where ε has no order."""
    lines = [line for line in run.get("metrics") or () if isinstance(line.get("step"), int | float)]
    name = "accuracy" if any(line.get("accuracy") is not None for line in lines) else "loss"
    lines = [line for line in lines if line.get(name) is not None]
    if len(lines) < 2:
        return None
    lines = _thinned(lines, POINTS)
    steps = [int(line["step"]) for line in lines]
    values = [float(line[name]) for line in lines]
    spent = spent_at(run, steps)
    across = steps if spent is None else spent

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.plot(across, values, color=COLOUR["c1"], marker="o", clip_on=False)
        axes.set_xlabel("releases" if spent is None else "ε spent")
        axes.set_xlim(left=0)
        if name == "accuracy":
            axes.yaxis.set_major_formatter(percent)
            axes.set_ylim(*_shares_shown(values))
        else:
            axes.set_ylim(bottom=0)
            axes.margins(y=0.14)
        end = percent(values[-1]) if name == "accuracy" else number(values[-1])
        axes.annotate(
            end, (across[-1], values[-1]), textcoords="offset points", xytext=(0, 8), ha="right"
        )

    note = "Each point is an evaluation on the same held-out records. "
    if spent is not None:
        note += "ε on the way is for orientation: what is guaranteed is the ε at the end."
    else:
        note += "Of this training no ε is known before its end."
    return Chart(
        "curve",
        f"{name.capitalize()} on held-out records " + ("by release" if spent is None else "by ε"),
        note,
        f"Line chart: {name} on held-out records rises or falls from {number(values[0])} after "
        f"{steps[0]} releases to {number(values[-1])} after {steps[-1]}.",
        draw,
        ("release", "ε spent", "accuracy", "loss"),
        [
            (
                f"{step:,}",
                "–" if spent is None else epsilon_text(spent[place]),
                _cell(line.get("accuracy")),
                _cell(line.get("loss")),
            )
            for place, (step, line) in enumerate(zip(steps, lines, strict=True))
        ],
    )


def _shares_shown(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis of shares: room around the values, a tenth at least, none beyond 1.

    >>> [round(end, 2) for end in _shares_shown([1.0, 1.0])]
    [0.9, 1.0]
    """
    low, high = min(values), max(values)
    room = max(0.14 * (high - low), (0.1 - (high - low)) / 2, 0.01)
    low, high = low - room, high + room
    if high > 1:
        low, high = low - max(0.1 - (1 - low), 0), 1.0
    return max(low, 0.0), max(high, 0.1)


def _cell(value: Any) -> str:
    return "–" if value is None else f"{float(value):.4f}"


class HeldOut:
    """Counts of true and predicted classes over the held-out records, as `run.json` has them."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.counts = [[int(cell) for cell in row] for row in data["confusion"]]
        size = len(self.counts)
        if not size or any(len(row) != size for row in self.counts):
            raise ValueError("the confusion matrix is not square")
        if any(cell < 0 for row in self.counts for cell in row):
            raise ValueError("the confusion matrix has negative counts")
        names = data.get("classes")
        if not isinstance(names, list) or len(names) != size:
            names = range(size)
        self.names = [str(name) for name in names]
        self.records = sum(map(sum, self.counts))
        self.totals = [sum(row) for row in self.counts]
        self.right = [self.counts[k][k] for k in range(size)]
        self.predicted = [sum(row[k] for row in self.counts) for k in range(size)]

    @property
    def shares(self) -> list[float]:
        """Of each class the share found, the recall; 0 where there are no records."""
        return [right / max(total, 1) for right, total in zip(self.right, self.totals, strict=True)]

    @property
    def largest(self) -> float | None:
        """The accuracy of naming the most frequent class every time; None without records."""
        return max(self.totals) / self.records if self.records else None

    def mistakes(self) -> list[tuple[str, str, int]]:
        """The most frequent mistakes: true class, predicted class, how often."""
        found = [
            (self.names[i], self.names[j], cell)
            for i, row in enumerate(self.counts)
            for j, cell in enumerate(row)
            if i != j and cell
        ]
        return sorted(found, key=lambda one: -one[2])[:CONFUSIONS]


def by_class(held: HeldOut) -> Chart:
    """The share of each class's records that were recognised."""
    shares, size = held.shares, len(held.names)
    order = range(size) if size <= MOST_CLASSES else sorted(range(size), key=lambda k: shares[k])
    order = list(order)
    least = min(range(size), key=lambda k: shares[k])

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.grid(False)
        places = range(size)
        axes.barh(places, [1.0] * size, color=COLOUR["rule"], height=0.62, alpha=0.6)
        axes.barh(places, [shares[k] for k in order], color=COLOUR["c1"], height=0.62)
        axes.set_xlim(0, 1)
        axes.set_ylim(size - 0.4, -0.6)
        axes.xaxis.set_major_formatter(percent)
        if size <= MOST_CLASSES:
            axes.set_yticks(list(places), [short(held.names[k]) for k in order])
            for place, k in zip(places, order, strict=True):
                axes.annotate(
                    share(shares[k], 0) if held.totals[k] else "no records",
                    (1, place),
                    textcoords="offset points",
                    xytext=(6, 0),
                    va="center",
                    annotation_clip=False,
                )
        else:
            axes.set_yticks([])
            axes.set_ylabel(f"{size} classes, worst first")

    return Chart(
        "classes",
        "Accuracy by class",
        "The share of each class’s held-out records that the model recognised.",
        f"Bar chart of accuracy for {size} classes; the lowest is {held.names[least]} with "
        f"{share(shares[least])}.",
        draw,
        ("class", "records", "recognised", "share", "predicted so", "of these right"),
        [
            (
                held.names[k],
                f"{held.totals[k]:,}",
                f"{held.right[k]:,}",
                share(shares[k]) if held.totals[k] else "–",
                f"{held.predicted[k]:,}",
                share(held.right[k] / held.predicted[k]) if held.predicted[k] else "–",
            )
            for k in range(size)
        ],
        size=(4.2, min(1.0 + 0.26 * size, 4.4)),
    )


def confusion(held: HeldOut) -> Chart | None:
    """Which classes are taken for which; None where there are too many to be seen."""
    size = len(held.names)
    if size > MOST_CLASSES:
        return None
    wrong = held.records - sum(held.right)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.grid(False)
        for i, row in enumerate(held.counts):
            for j, cell in enumerate(row):
                if not cell:
                    continue
                colour = COLOUR["c1" if i == j else "c2"]
                deep = 0.06 + (DEEPEST - 0.06) * (cell / max(held.totals[i], 1)) ** 0.5
                axes.add_patch(_square(j, i, colour, deep))
                if size <= WRITTEN:
                    axes.text(j, i, f"{cell}", ha="center", va="center", fontsize=8)
        axes.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5), aspect="equal")
        names = [short(name, 9) for name in held.names]
        turned = max(map(len, names)) * size > _ACROSS
        axes.set_xticks(
            range(size), names, rotation=90 if turned else 0, fontsize=8 if size <= WRITTEN else 6.5
        )
        axes.set_yticks(range(size), names, fontsize=8 if size <= WRITTEN else 6.5)
        axes.set_xlabel("predicted")
        axes.set_ylabel("true")
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)

    return Chart(
        "confusion",
        "What is taken for what",
        "Counts of held-out records: rows are true classes, columns what the model said. Blue is "
        "right, orange wrong; the stronger, the larger the share of the row.",
        f"Confusion matrix of {size} classes: {held.records - wrong:,} of {held.records:,} "
        f"held-out records on the diagonal, {wrong:,} off it.",
        draw,
        ("true \\ predicted", *held.names),
        [(held.names[k], *(f"{cell:,}" for cell in row)) for k, row in enumerate(held.counts)],
        size=(4.2, min(2.3 + 0.3 * size, 4.1)),
    )


def _square(x: int, y: int, colour: str, deep: float) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((x - 0.46, y - 0.46), 0.92, 0.92, facecolor=colour, alpha=deep, linewidth=0)
