"""The part of the results page about where training on one's own data starts."""

from __future__ import annotations

import statistics
from typing import Any

_NAMES = {
    "table": "own tables",
    "text": "own texts",
    "images": "own images",
    "classifier": "`PrivateClassifier`",
}


def _setting(setting: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in setting.items())


def _share(values: list[float]) -> str:
    middle = f"{100 * statistics.mean(values):.1f} %"
    return f"{middle} ({100 * min(values):.1f} to {100 * max(values):.1f})"


def defaults(record: dict[str, Any], machine: str) -> list[str]:
    """What was searched and chosen, then the tests."""
    runs = len(record["seeds"]["test"])
    tried = sorted({len(kind["settings"]) for kind in record["kinds"]})
    lines = [
        "## Defaults for one's own data",
        "",
        f"Of {' or '.join(map(str, tried))} settings for each kind, the one with the best mean"
        " accuracy on validation rows (a quarter of the rows that are not tested), over data sets,"
        f" ε and {len(record['seeds']['search'])} seeds; it replaces the former one if it is better"
        " by more than two standard errors of the paired difference. Test rows had no part in the"
        " choice, but for the bounds of wine and breast cancer, which are the ranges of all rows."
        " The validation of the best of several is optimistic; the tests below are not"
        f" (`benchmarks/defaults.py`). {machine}.",
        "",
        "| kind | former setting | validation | best setting | validation | taken |",
        "|---|---|---|---|---|---|",
    ]
    for kind in record["kinds"]:
        means = {_setting(line["setting"]): line["mean"] for line in kind["settings"]}
        before, best = _setting(kind["before"]), _setting(kind["best"])
        lines.append(
            f"| {_NAMES[kind['kind']]} | {before} | {100 * means[before]:.1f} % | {best} | "
            f"{100 * means[best]:.1f} % | {'yes' if kind['chosen'] != kind['before'] else 'no'} |"
        )
    lines += [
        "",
        f"Test accuracy of {runs} runs at δ = {record['delta']:g}, mean (least to most), beside"
        " scikit-learn's logistic regression without privacy:",
        "",
        "| kind | data | records | ε | former setting | setting taken | not private |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in record["kinds"]:
        for row in kind["tests"]:
            same = kind["chosen"] == kind["before"]
            lines.append(
                f"| {_NAMES[kind['kind']]} | {row['data']} | {row['n']:,} | {row['epsilon']:g} | "
                f"{_share(row['before'])} | {'the same' if same else _share(row['chosen'])} | "
                f"{100 * row['not private']:.1f} % |"
            )
    return [*lines, ""]
