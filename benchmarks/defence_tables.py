"""The part of `docs/results.md` about methods without an ε."""

from __future__ import annotations

import statistics
from typing import Any


def defences(record: dict[str, Any], described: str) -> list[str]:
    """Accuracy and rejections of every method on one data set."""
    lines = [
        f"## Methods without an ε on {record['data']}",
        "",
        "`reticent train --method NAME` with its defaults (`benchmarks/defences.py`); DP-SGD for"
        " comparison. First guesses, not searched. Accuracy on the test split, mean and range over"
        " seeds; rejections are private diagnostics, shown here because the records are public."
        f" {described}.",
        "",
        "| method | guarantee | ε | releases | seeds | accuracy | rejected | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in record["methods"].items():
        runs = one["runs"]
        found = [100 * run["accuracy"] for run in runs]
        spread = f" ({min(found):.2f} to {max(found):.2f})" if len(runs) > 1 else ""
        rejected = [run["rejected"] for run in runs if run["rejected"] is not None]
        epsilon = runs[0]["epsilon"]
        row = [
            name,
            runs[0]["guarantee"],
            "none" if epsilon is None else f"{epsilon:.2f}",
            f"{runs[0]['steps']:,}",
            f"{len(runs)}",
            f"{statistics.mean(found):.2f} %{spread}",
            f"{100 * statistics.mean(rejected):.1f} %" if rejected else "",
            f"{statistics.median(run['seconds'] for run in runs):.0f}",
        ]
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, ""]


def steps(record: dict[str, Any], described: str) -> list[str]:
    """What one release of PD-SGD costs beside those of SGD and DP-SGD."""
    kinds = list(next(iter(record["cases"].values()))["milliseconds"])
    lines = [
        "## One step of PD-SGD",
        "",
        f"Milliseconds of a release through the whole training loop, {record['batches']} batches,"
        f" T = {record['threshold']}: an update that passes needs that many gradients, one that is"
        " rejected nearly all of them (`benchmarks/defences.py --steps ...`). In brackets: over"
        " DP-SGD of the same batch. The paper reports 0.41 and 0.71 there, against a DP-SGD that"
        f" takes 7 to 38 times as long as SGD. {described}.",
        "",
        "| model | batch | " + " | ".join(kinds) + " |",
        "|---|---|" + "---|" * len(kinds),
    ]
    for case in record["cases"].values():
        times = case["milliseconds"]
        cells = [f"{times[kind]:.1f} ({times[kind] / times['dpsgd']:.2f})" for kind in kinds]
        lines.append(f"| {case['label']} | {case['batch']} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def poisoning(record: dict[str, Any], described: str) -> list[str]:
    """How often a batch with flipped labels is rejected."""
    lines = [
        f"## PD-SGD and a poisoned batch of {record['data']}",
        "",
        f"Figure 3 of the paper: a share of the labels in one batch is flipped, and the batch stays"
        f" together for {record['steps']} steps (`benchmarks/poisoning.py`). {described}.",
        "",
        "| flipped | seed | poisoned batch rejected | other batches rejected | accuracy |",
        "|---|---|---|---|---|",
    ]
    for run in record["runs"]:
        rates = [run[name]["rate"] for name in ("poisoned", "normal")]
        shown = [f"{100 * rate:.1f} %" for rate in rates]
        lines.append(
            f"| {100 * run['share']:g} % | {run['seed']} | {shown[0]} | {shown[1]} |"
            f" {100 * run['accuracy']:.2f} % |"
        )
    figure = f"figures/poisoning-{record['data']}.svg"
    return [*lines, "", f"![Rejection rates against the share of flipped labels]({figure})", ""]
