"""What a comparison says and what it does not, in sentences that are exactly true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reticent.comparison.drawings import DP, shown_percent
from reticent.report.words import Limit, delta_text, epsilon_text

_WHY = {
    "none": "no guarantee at all",
    "empirical": "no proven guarantee: it resists attacks that were tried",
    "plausible-deniability": "plausible deniability of each update, which is not an ε",
}


def findings(found: Mapping[str, Any]) -> list[str]:
    """At every ε, who has the highest mean, and who cannot be told from it."""
    said = []
    for epsilon in found["epsilons"]:
        cells = [
            cell
            for cell in found["cells"]
            if cell["epsilon"] == epsilon and cell["mean"] is not None and cell["guarantee"] == DP
        ]
        if not cells:
            continue
        ranked = sorted(cells, key=lambda cell: -cell["mean"])
        best = ranked[0]
        text = (
            f"At ε = {epsilon:g}, {best['method']} has the highest mean accuracy, "
            f"{shown_percent(best['mean'], best['half_width'])}."
        )
        if len(ranked) > 1:
            text += f" {_against(best, ranked[1:])}"
        said.append(text)
    return said


def _against(best: Mapping[str, Any], others: list[Mapping[str, Any]]) -> str:
    if best["half_width"] is None or any(cell["half_width"] is None for cell in others):
        return "Some have fewer than two seeds: whether the others are worse, nobody can tell."
    low = best["mean"] - best["half_width"]
    close = [c["method"] for c in others if c["mean"] + c["half_width"] >= low]
    if not close:
        return "No other interval reaches it."
    return f"Its interval overlaps with that of {', '.join(close)}: these may be as good."


def without_epsilon(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Methods whose ε, if any was asked for, is no guarantee; and why."""
    return [
        (
            method["label"],
            method["promise"]
            if method["variant"] != "sound"
            else _WHY.get(method["guarantee"], "no guarantee"),
        )
        for method in found["methods"]
        if method["guarantee"] != DP
    ]


def whole_cost(found: Mapping[str, Any]) -> list[str]:
    """What all models together cost, of one's own records."""
    total = found["total"]
    if total is None:
        return []
    said = []
    epsilon, delta = total["epsilon_of_private_models"], total["delta"]
    if total["models"] and epsilon is None:
        said.append("Of the models that were trained on these records, no common ε is known.")
    elif total["models"]:
        bound = f"ε = {epsilon_text(epsilon)} and δ = {delta_text(delta)}"
        said.append(
            f"One private model was trained on these records, with {bound}. That is the privacy "
            "cost of this comparison: state it wherever the model, or a number of this page, is "
            "passed on."
            if total["models"] == 1
            else f"{total['models']:,} private models were trained on these records. For somebody "
            f"who sees all of these, {bound} hold. That is the privacy cost of the "
            "whole comparison: state it, and not the ε of a single model, wherever one of the "
            "models, or a number of this page, is passed on."
        )
        if total["added"] is not None and total["models"] > 1:
            said.append(
                "It is less than the sum of the ε of the models, "
                f"{epsilon_text(total['added'])}, since those that were planned in one go are "
                "accounted for together."
                if epsilon < total["added"]
                else "It is the sum of the ε of the models."
            )
    if total["unfinished"]:
        count = total["unfinished"]
        said.append(
            f"{_models(count)} of these {'has' if count == 1 else 'have'} no result (stopped, or "
            f"deleted), and {'counts' if count == 1 else 'count'} with the whole budget all the "
            "same."
        )
    if total["models"]:
        said.append("Models of the same records in other folders are not counted here: add theirs.")
    if total["unbounded"]:
        said.append(
            f"Models without an ε were trained too ({', '.join(total['unbounded'])}). Nothing "
            "bounds what they, and their accuracies on this page, reveal about the records: all "
            "models together have no ε."
        )
    return said


def _models(count: int) -> str:
    return "One model" if count == 1 else f"{count:,} models"


def remarks(found: Mapping[str, Any]) -> list[Limit]:
    """What a reader must know before quoting this page."""
    own = found["data"]["own"]
    said = [
        Limit(
            "An ε is for one model.",
            "Whoever publishes several models of the same records, or a mean over their seeds, has "
            "released them all, and their ε add up.",
        ),
        Limit(
            "The best of several is chosen.",
            "Whoever keeps the method that did best on the held-out records has selected by them: "
            "its accuracy here is likely better than on new records, the more so the more methods "
            "and ε were compared.",
        ),
        Limit(
            "Methods are compared with the settings they had.",
            "Each method has its own recipe for this data set, listed below. Not all of them were "
            "searched for with the same care, so a method that is behind may only lack settings.",
        ),
    ]
    if own:
        said.insert(
            1,
            Limit(
                "Choosing among models of your own records.",
                "Even if one model alone is passed on, it was chosen by looking at all of them. "
                "State the ε of the whole comparison with it.",
            ),
        )
        said.append(
            Limit(
                "Held-out records.",
                "Accuracy was computed from them exactly and without noise, and ε does not cover "
                "them.",
            )
        )
    else:
        said.insert(
            0,
            Limit(
                "These models are not private.",
                "The records are public, and the noise of every model follows from its settings: "
                "whoever runs this again gets the same numbers. Each ε is what the same training "
                "guarantees with noise that nobody can guess, as reticent train draws it.",
            ),
        )
    if any(cell["half_width"] is not None for cell in found["cells"]):
        said.append(
            Limit(
                "Intervals are over seeds.",
                f"They say how far the mean of {found['seeds']} seeds may be from that of many, if "
                "models of different seeds are normally distributed (Student’s t), each interval "
                "by itself. They say nothing about other held-out records.",
            )
        )
    if found["attacks"]:
        said.append(
            Limit(
                "Attacks are lower bounds.",
                "An attack at chance proves nothing. The attacked models are others than those "
                "above, trained by the same settings on a third of the records.",
            )
        )
    return said
