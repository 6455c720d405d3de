"""Where papers print different numbers for the same method, network, data set and ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reproduction_records import place
from reticent.reproduction.reports import digits
from reticent.reproduction.tables import SOUND, Entry, load, names

Record = Mapping[str, Any]
TEMPERED = ("tanh", "tempered-sigmoid")  # tanh is the tempered sigmoid of scale 2


@dataclass(frozen=True)
class Printed:
    """One paper's test accuracy, in percent, and what its settings gave here.

    Attributes:
        table: The paper's first table that has it.
        entry: Where it is there.
        number: The printed one.
        ours: The mean over our seeds; None where nothing was run.
    """

    table: str
    entry: Entry
    number: float
    ours: float | None


def apart(some: Sequence[Printed]) -> float:
    """How many points the printed numbers differ by."""
    numbers = [one.number for one in some]
    return max(numbers) - min(numbers)


def disagreements(records: Sequence[Record], within: float) -> list[list[Printed]]:
    """What papers print more than so many points apart, a list for each such thing."""
    recorded = {record["table"]: record for record in records if not record["changes"]}
    found: dict[tuple[Any, ...], dict[str, Printed]] = {}
    for name in names():
        table = load(name)
        ours = {
            place(line): line["measures"]["accuracy"]["mean"]
            for line in recorded.get(name, {"entries": ()})["entries"]
            if "accuracy" in line["measures"]
        }
        for entry in table.entries():
            number = entry.published.get("accuracy")
            again = table.data[entry.data].like is not None  # printed numbers once more
            if number is None or entry.variant != SOUND or again:
                continue
            one = Printed(name, entry, number, ours.get(place(vars(entry))))
            found.setdefault(_what(entry), {}).setdefault(table.paper, one)
    several = [list(papers.values()) for papers in found.values()]
    return [some for some in several if apart(some) > within]


def _what(entry: Entry) -> tuple[Any, ...]:
    """What papers tell methods and networks apart by."""
    own = entry.settings
    adapt = bool(own.method_options.get("adapt"))
    tempered = own.features == "none" and own.activation in TEMPERED  # on features all are
    epsilon = own.epsilon or 0.0
    return entry.data, own.method, adapt, own.model, own.features, tempered, epsilon


def section(records: Sequence[Record], within: float) -> list[str]:
    """The section of the page; nothing where papers agree."""
    cases = disagreements(records, within)
    if not cases:
        return []
    far = sum(apart(some) > 2 * within for some in cases)
    lines = [
        "## Where papers disagree",
        "",
        "Test accuracies, in percent, printed for the same method, network, data set and ε and more"
        f" than {within:g} point apart. {far} of these {len(cases)} are more than {2 * within:g}"
        f" points apart: no number is within {within:g} point of all that is printed. Of each paper"
        " its first table is named; ours is with that table's settings, where papers leave them"
        " open those of its preset.",
        "",
        "| data | ε | apart | printed (ours) |",
        "|---|---|---|---|",
    ]
    for some in sorted(cases, key=lambda some: _what(some[0].entry)):
        own, numbers = some[0].entry.settings, "; ".join(_text(one) for one in some)
        epsilon = "–" if own.epsilon is None else f"{own.epsilon:g}"
        lines.append(f"| {own.data} | {epsilon} | {apart(some):.2f} | {numbers} |")
    return [*lines, ""]


def _text(one: Printed) -> str:
    ours = "not run" if one.ours is None else digits(one.ours)
    return f"{one.table.replace('/', ' ')}, {one.entry.row}: {digits(one.number)} ({ours})"
