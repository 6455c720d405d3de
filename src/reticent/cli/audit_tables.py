"""What `reticent audit` found, on the screen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from reticent.cli.output import epsilon_text, errors, number, screen


def show_audit(report: dict[str, Any], path: Path) -> None:
    """The table of an audit, that of its attacks, and how private its file is."""
    books = report["books"]
    table = Table(show_header=False)
    stated = "no ε"
    if books["epsilon"] is not None:
        stated = f"ε ≤ {epsilon_text(books['epsilon'])} at δ = {books['delta']:g}"
    table.add_row("promised", stated)
    canaries = report.get("canaries")
    if canaries:
        for bound in canaries["bounds"]:
            shown = "no bound" if bound["epsilon"] is None else f"ε ≥ {bound['epsilon']:.3f}"
            table.add_row(f"canaries, {bound['family']}", f"{shown} ({report['confidence']:.0%})")
    for wrong in report["wrong"] or ["nothing found"]:
        table.add_row("wrong", escape(wrong))
    screen.print(table)
    membership = report.get("membership")
    if membership:
        _show_attacks(membership)
    errors.print(f"[bold]{escape(str(path))}[/]: {report['warning']}", soft_wrap=True)


def _show_attacks(membership: dict[str, Any]) -> None:
    table = Table(title=membership["about"], box=SIMPLE, padding=(0, 1, 0, 0))
    for column in ("attack", "AUC", "accuracy", "TPR 0.1 %", "0.01 %", ""):
        table.add_column(column, no_wrap=True)
    for name, results in membership["attacks"].items():
        for found in results:
            low = [found["low_false"][place] for place in (0, 1)]
            table.add_row(
                name,
                _interval(found["auc"]),
                f"{found['accuracy']['value']:.3f}",
                *(f"{one['tpr']['value']:.4f}{'' if one['resolved'] else ' *'}" for one in low),
                "chance"
                if found["chance"]
                else "above"
                if found["auc"]["value"] > 0.5
                else "below",
            )
    screen.print(table)
    if any(
        not one["resolved"] for r in membership["attacks"].values() for one in r[0]["low_false"]
    ):
        screen.print("* too few non-members for so small a rate: at no false positive at all")
    for note in membership["notes"]:
        screen.print(f"note: {note}")
    twice = membership["duplicates"]
    if twice and (twice["near_across"] or twice["repeats"]):
        count = max(twice["near_across"], twice["repeats"])
        screen.print(f"note: {count} (nearly) repeated records were found")


def _interval(estimate: dict[str, float]) -> str:
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if not all(map(math.isfinite, (low, high))):
        return number(value)
    return f"{value:.3f} [{low:.3f}, {high:.3f}]"
