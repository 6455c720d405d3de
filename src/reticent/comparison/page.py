"""A comparison as one page: no script, no network, nothing that is not in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reticent.comparison.drawings import (
    DP,
    accuracy_chart,
    attack_chart,
    cells_of,
    cost_charts,
    proved_text,
    shown_percent,
)
from reticent.comparison.remarks import findings, remarks, whole_cost, without_epsilon
from reticent.report.again import to_toml
from reticent.report.document import document
from reticent.report.markup import Child, Markup, clean, el, joined, table
from reticent.report.sections import section
from reticent.report.words import delta_text, number

_SECTIONS = {
    "findings": "Findings",
    "accuracy": "Accuracy",
    "privacy": "Privacy",
    "cost": "Cost",
    "attacks": "Attacks",
    "remarks": "Before you quote this",
    "settings": "Settings",
}
_NONE = "–"
_MOST_ROWS = 16  # more are folded away


def render(found: Mapping[str, Any], command: str | None = None) -> str:
    """The page of a comparison.

    Args:
        found: What `results.gather` gave.
        command: The command that made it, to be done again.
    """
    data = found["data"]
    parts = [
        _findings(found),
        _accuracy(found),
        _privacy(found),
        _cost(found),
        _attacks(found),
        _remarks(found),
        _settings(found, command),
    ]
    seeds = "one seed" if found["seeds"] == 1 else f"{found['seeds']} seeds"
    held = data["test_records"]
    besides = "" if held is None else f" and {held:,} held-out"
    return document(
        joined(parts),
        title=f"Comparison on {clean(data['name'])}",
        over="Comparison of private training methods",
        heading=str(data["name"]),
        subject=(
            f"{len(found['methods'])} methods, {seeds} each; {data['records']:,} training{besides} "
            f"records, {data['classes']} classes"
        ),
        sections=_SECTIONS,
        footer="Made by Reticent from the comparison’s own files; it loads nothing.",
    )


def _findings(found: Mapping[str, Any]) -> Markup:
    said = findings(found)
    costs = whole_cost(found)
    return section(
        "findings",
        "What was found",
        el(
            "div",
            [el("p", text, class_="lead") for text in said]
            or el("p", "No private model is finished, so there is nothing to rank.", class_="lead"),
            el(
                "p",
                "The records are public and the noise can be repeated, so none of these models is "
                "private by itself."
                if not found["data"]["own"]
                else "Only methods with a proven ε are ranked.",
            ),
            class_="card",
        ),
        _cost_of_all(costs),
        first=True,
    )


def _cost_of_all(costs: list[str]) -> Child:
    if not costs:
        return None
    return el(
        "div",
        el("p", el("strong", "What all of this cost. "), costs[0]),
        [el("p", text) for text in costs[1:]],
        class_="warn",
    )


def _accuracy(found: Mapping[str, Any]) -> Markup:
    chart = accuracy_chart(found)
    return section(
        "accuracy",
        "How accurate?",
        chart.figure() if chart is not None else None,
        el(
            "div",
            _grid(found, "Accuracy on held-out records, mean over seeds", _mean),
            class_="gap",
        ),
        _failures(found),
    )


def _mean(cell: Mapping[str, Any]) -> str:
    if cell["mean"] is None and cell["seeds"]:
        return "failed"
    return shown_percent(cell["mean"], cell["half_width"])


def _grid(found: Mapping[str, Any], caption: str, text: Any) -> Markup:
    """Methods by ε; those without an ε have a column of their own."""
    alone = any(cell["epsilon"] is None for cell in found["cells"])
    columns = [*found["epsilons"], *([None] if alone else [])]
    heads = ["no ε" if column is None else f"ε = {column:g}" for column in columns]
    rows = []
    for method in found["methods"]:
        cells = cells_of(found, method["label"])
        rows.append(
            (
                _name(method),
                *(text(cells[column]) if column in cells else "" for column in columns),
            )
        )
    return table(("method", *heads), rows, caption, wide=len(columns) > 3)


def _name(method: Mapping[str, Any]) -> Child:
    if method["guarantee"] == DP:
        return str(method["label"])
    return [str(method["label"]), " ", el("span", "no\N{NO-BREAK SPACE}ε", class_="bad")]


def _failures(found: Mapping[str, Any]) -> Child:
    lines = [
        (cell["method"], cell["epsilon"], seed, one)
        for cell in found["cells"]
        for seed, one in cell["seeds"].items()
        if one["state"] != "done"
    ]
    if not lines:
        return None
    return [
        el("h3", "Without a result"),
        el(
            "ul",
            [
                el(
                    "li",
                    f"{method}{'' if epsilon is None else f' at ε = {epsilon:g}'}, seed {seed}: ",
                    # the message of a training on somebody's records may be about them
                    one["error"] or "failed; the command said why",
                )
                for method, epsilon, seed, one in lines
            ],
            class_="plain",
        ),
    ]


def _privacy(found: Mapping[str, Any]) -> Markup:
    without = without_epsilon(found)
    delta = found["delta"]
    return section(
        "privacy",
        "What is guaranteed?",
        el(
            "p",
            "Proved by the ledger of each training, for one model, adding or removing one record; "
            "the largest over seeds, rounded up"
            + ("." if delta is None else f", at δ = {delta_text(delta)}."),
        ),
        _grid(found, "ε proved for one model", proved_text),
        el("h3", "Whose ε is no guarantee") if without else None,
        el(
            "ul",
            [el("li", el("strong", f"{label}: "), f"{why}.") for label, why in without],
            class_="plain",
        )
        if without
        else None,
        el("h3", "Noted in the ledgers") if found["notes"] else None,
        el("ul", [el("li", note) for note in found["notes"]], class_="plain")
        if found["notes"]
        else None,
    )


def _cost(found: Mapping[str, Any]) -> Markup:
    charts = cost_charts(found)
    rows = [
        (
            cell["method"],
            _NONE if cell["epsilon"] is None else f"{cell['epsilon']:g}",
            *(_number(cell[name]) for name in ("steps", "seconds", "gradients")),
        )
        for cell in found["cells"]
    ]
    numbers = table(
        ("method", "ε", "releases", "seconds", "gradients"), rows, "One model, mean over seeds"
    )
    hidden = any(cell["mean"] is not None and cell["seconds"] is None for cell in found["cells"])
    return section(
        "cost",
        "What does it take?",
        el("p", "Where a method’s time depends on the records, it is private and not shown.")
        if hidden and found["data"]["own"]
        else None,
        el("div", [chart.figure() for chart in charts], class_="pair") if charts else None,
        el("div", numbers, class_="gap")
        if len(rows) <= _MOST_ROWS
        else el("details", el("summary", "By method and ε"), numbers, class_="gap"),
    )


def _number(value: float | None) -> str:
    if value is None:
        return _NONE
    return number(round(value, 1) if value < 100 else round(value))


def _attacks(found: Mapping[str, Any]) -> Markup | None:
    if not found["attacks"]:
        return None
    chart = attack_chart(found)
    failed = {
        line["method"] + ("" if line["epsilon"] is None else f" at ε = {line['epsilon']:g}")
        for line in found["attacks"]
        if line["state"] != "done"
    }
    return section(
        "attacks",
        "What leaks in fact?",
        el(
            "p",
            "Membership attacks on one model of each method and ε: who was it trained on? They "
            "find a lower bound on what is given away; ε is the upper one.",
        ),
        chart.figure() if chart is not None else None,
        el("p", f"Not attacked: {', '.join(sorted(failed))}.", class_="bad") if failed else None,
    )


def _remarks(found: Mapping[str, Any]) -> Markup:
    return section(
        "remarks",
        "Before you quote this",
        el(
            "ul",
            [el("li", el("strong", one.name), " ", one.text) for one in remarks(found)],
            class_="plain",
        ),
    )


def _settings(found: Mapping[str, Any], command: str | None) -> Markup:
    return section(
        "settings",
        "Settings",
        [el("p", "The same command goes on with what is there:"), el("pre", el("code", command))]
        if command
        else None,
        [_of_method(found, method) for method in found["methods"]],
        el("h3", "Versions"),
        el(
            "p",
            ", ".join(f"{name} {version}" for name, version in found["versions"].items()),
            class_="soft",
        ),
    )


def _of_method(found: Mapping[str, Any], method: Mapping[str, Any]) -> Markup:
    """What a method is, and how it was trained; what changes with ε is named once for each."""
    cells = cells_of(found, method["label"])
    shown = [
        el(
            "pre",
            el("code", (f"# ε = {epsilon:g}\n" if epsilon is not None else "") + to_toml(settings)),
            tabindex=0,
            role="region",
            aria_label=f"Settings of {method['label']}",
        )
        for epsilon, settings in _different(cells).items()
    ]
    return el(
        "details",
        el("summary", f"{method['label']}: {method['title']}"),
        el("p", f"{method['paper']}. {method['cost'].capitalize()}.", class_="soft"),
        shown,
    )


def _different(
    cells: Mapping[float | None, Mapping[str, Any]],
) -> dict[float | None, dict[str, Any]]:
    """The first ε's settings, and of the others what differs from them."""
    found: dict[float | None, dict[str, Any]] = {}
    first: dict[str, Any] = {}
    for epsilon, cell in cells.items():
        settings = dict(cell["settings"])
        changed = {name: value for name, value in settings.items() if first.get(name) != value}
        found[epsilon] = changed if first else settings
        first = first or settings
    return found
