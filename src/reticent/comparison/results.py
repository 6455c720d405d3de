"""What came of a comparison: by method and ε, over seeds, as data and as a table of all models."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from scipy.special import stdtrit

from reticent import methods
from reticent.cli.own_data import shown_name
from reticent.comparison.plans import ATTACK_METRICS, Cell, Comparison
from reticent.comparison.spending import Total
from reticent.report.folder import without_paths
from reticent.reproduction.jobs import Outcome
from reticent.reproduction.measures import ACCURACY
from reticent.reproduction.tables import VARIANTS
from reticent.training.result import versions

FORMAT = "reticent-comparison/1"
CONFIDENCE = 0.95
COLUMNS = (
    *("data", "method", "epsilon", "seed", "accuracy", "epsilon_proved", "delta", "guarantee"),
    *("steps", "seconds", "gradients", "state"),
)


def interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean, and half the width of its 95 % confidence interval; None of what is not known.

    Student's t over seeds, which treats the models of several seeds as normal.

    >>> interval([90.0, 92.0])[0], round(interval([90.0, 92.0])[1], 1)
    (91.0, 12.7)
    >>> interval([90.0])
    (90.0, None)
    """
    if not values:
        return None, None
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, None
    quantile = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2))
    return mean, quantile * statistics.stdev(values) / math.sqrt(len(values))


def gather(
    comparison: Comparison, outcomes: Mapping[str, Outcome], total: Total | None = None
) -> dict[str, Any]:
    """All that is known, as JSON-ready data.

    Args:
        comparison: What was asked for.
        outcomes: By key; jobs without one are reported as open.
        total: What all models cost together, where the records are the user's own.
    """
    stated = next((c.settings.n for c in comparison.cells if c.settings.n), None)
    return {
        "format": FORMAT,
        "data": {
            "name": shown_name(comparison.data),
            "own": comparison.own,
            # who states a nominal number of records need not tell the real one
            "records": stated or comparison.records,
            "test_records": None if stated else comparison.test_records,
            "classes": comparison.classes,
        },
        "epsilons": list(comparison.epsilons),
        "delta": max((c.settings.delta for c in comparison.cells if c.epsilon), default=None),
        "seeds": comparison.seeds,
        "confidence": CONFIDENCE,
        "methods": [_method(comparison, label) for label in comparison.labels],
        "cells": [_cell(comparison, cell, outcomes) for cell in comparison.cells],
        "attacks": _attacks(comparison, outcomes),
        "total": None if total is None else total.to_json(),
        "notes": _notes(outcomes),
        "shared": without_paths(dict(comparison.shared)),
        "overrides": {
            label: without_paths(dict(values)) for label, values in comparison.overrides.items()
        },
        "versions": versions(),
    }


def _method(comparison: Comparison, label: str) -> dict[str, Any]:
    cell = next(cell for cell in comparison.cells if cell.label == label)
    card = methods.describe(cell.settings.method)
    promise = card.promise if cell.variant == "sound" else VARIANTS[cell.variant]
    return {
        "label": label,
        "method": card.name,
        "variant": cell.variant,
        "title": card.title,
        "paper": card.paper,
        "guarantee": cell.guarantee,
        "promise": promise,
        "cost": card.cost,
    }


def _cell(comparison: Comparison, cell: Cell, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    found = {
        seed: outcomes[key]
        for seed in range(comparison.seeds)
        if (key := comparison.job(cell, seed).key) in outcomes
    }
    done = {seed: outcome for seed, outcome in found.items() if outcome.state == "done"}
    values = [float(outcome.values[ACCURACY]) for outcome in done.values()]  # type: ignore[arg-type]
    mean, half = interval(values)
    hidden = ("seed", "device", "root", "confusion")
    return {
        "method": cell.label,
        "epsilon": cell.epsilon,
        "delta": None if cell.epsilon is None else cell.settings.delta,
        "mean": mean,
        "half_width": half,
        "accuracy": {str(seed): value for seed, value in zip(done, values, strict=True)},
        "guarantee": cell.guarantee,
        "epsilon_proved": _most([outcome.sound_epsilon for outcome in done.values()]),
        "steps": _mean([outcome.steps for outcome in done.values()]),
        "seconds": _mean([outcome.seconds for outcome in done.values()]),
        "gradients": _mean([outcome.gradients for outcome in done.values()]),
        "seeds": {
            str(seed): {
                "state": outcome.state,
                "epsilon_proved": outcome.sound_epsilon,
                "steps": outcome.steps,
                "seconds": outcome.seconds,
                "gradients": outcome.gradients,
                # of one's own records, why something failed may say something about them
                "error": None if comparison.own else outcome.error,
                "notes": list(outcome.notes),
            }
            for seed, outcome in found.items()
        },
        "settings": {
            name: value
            for name, value in cell.settings.to_json().items()
            if name not in hidden and value is not None and value != {}
        },
    }


def _notes(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What ledgers on one's own records assume, such as a list of classes that was not paid for."""
    ledgers = [outcome.ledger for outcome in outcomes.values() if outcome.ledger is not None]
    return list(dict.fromkeys(str(note) for ledger in ledgers for note in ledger["notes"]))


def _attacks(comparison: Comparison, outcomes: Mapping[str, Outcome]) -> list[dict[str, Any]]:
    found = []
    for cell in comparison.cells if comparison.attacks else ():
        outcome = outcomes.get(comparison.attack_job(cell).key)
        if outcome is None:
            continue
        for attack in comparison.attacks:
            line: dict[str, Any] = {
                "method": cell.label,
                "epsilon": cell.epsilon,
                "attack": attack,
                "state": outcome.state,
                "error": outcome.error,
                "notes": list(outcome.notes),
            }
            for metric in ATTACK_METRICS:
                name = f"{attack}.{metric}"
                ends = outcome.intervals.get(name)
                line[metric] = outcome.values.get(name)
                line[f"{metric}_interval"] = None if ends is None else list(ends)
            found.append(line)
    return found


def _most(values: Sequence[float | None]) -> float | None:
    """The largest, which holds for all; None where one has none."""
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    return max(value for value in values if value is not None)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known and len(known) == len(values) else None


def to_csv(found: Mapping[str, Any]) -> str:
    """Every model in a line, for a spreadsheet or a data frame.

    What attacks found is the same in all lines of a method and ε: they were on one other model.
    """
    text = io.StringIO()
    attacked = _attack_columns(found["attacks"])
    names = dict.fromkeys(name for columns in attacked.values() for name in columns)
    writer = csv.DictWriter(text, (*COLUMNS, *names), lineterminator="\n")
    writer.writeheader()
    for cell in found["cells"]:
        for seed, one in cell["seeds"].items():
            writer.writerow(
                {
                    "data": _plain(found["data"]["name"]),
                    "method": cell["method"],
                    "epsilon": cell["epsilon"],
                    "seed": seed,
                    "accuracy": cell["accuracy"].get(seed),
                    "epsilon_proved": one["epsilon_proved"],
                    "delta": cell["delta"],
                    "guarantee": cell["guarantee"],
                    "steps": one["steps"],
                    "seconds": one["seconds"],
                    "gradients": one["gradients"],
                    "state": one["state"],
                    **attacked.get((cell["method"], cell["epsilon"]), {}),
                }
            )
    return text.getvalue()


def _attack_columns(
    attacks: Sequence[Mapping[str, Any]],
) -> dict[tuple[str, float | None], dict[str, float | None]]:
    """What attacks found by method and ε: a value and the ends of its interval for each metric."""
    found: dict[tuple[str, float | None], dict[str, float | None]] = {}
    for line in attacks:
        columns = found.setdefault((line["method"], line["epsilon"]), {})
        for metric in ATTACK_METRICS:
            name = f"attack_{line['attack']}_{metric}"
            low, high = line[f"{metric}_interval"] or (None, None)
            columns |= {name: line[metric], f"{name}_low": low, f"{name}_high": high}
    return found


def _plain(text: str) -> str:
    """A name that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
