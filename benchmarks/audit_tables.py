"""The audits' part of `docs/results.md`."""

from __future__ import annotations

from typing import Any

NAMES = (
    "population",
    "shadow-loss",
    "reference",
    "likelihood-ratio",
    "rmia",
    "shadow",
    "white-box",
)


def attacks(record: dict[str, Any], described: str) -> list[str]:
    """AUC and TPR of every attack on every procedure."""
    names = [name for name in NAMES if name in record["procedures"][0]["attacks"]]
    level = f"{100 * record['confidence']:g} %"
    lines = [
        f"## Membership attacks on {record['records']:,} records of {record['data']}",
        "",
        f"`{record['model']}` on random halves of {record['records']:,} records less the"
        f" population; {record['targets']} targets, {record['shadows']} shadow models"
        f" (`benchmarks/attacks.py`). Over-fitted: {record['epochs']} epochs without clipping or"
        f" noise; private: {record['private_epochs']} epochs at δ = {record['delta']:g}; settings"
        f" were not searched. AUC, mean over targets; in bold where the {level} interval of a"
        f" target leaves out 0.5. {described}.",
        "",
        "| procedure | ε | accuracy | " + " | ".join(names) + " |",
        "|---|---|---|" + "---|" * len(names),
    ]
    for one in record["procedures"]:
        cells = []
        for name in names:
            targets = one["attacks"][name]["targets"]
            mean = sum(target["auc"]["value"] for target in targets) / len(targets)
            mark = "" if all(target["chance"] for target in targets) else "**"
            cells.append(f"{mark}{mean:.3f}{mark}")
        epsilon = "none" if one["epsilon"] is None else f"{one['epsilon']:g}"
        row = [one["name"], epsilon, f"{100 * one['accuracy']:.2f} %", *cells]
        lines.append("| " + " | ".join(row) + " |")
    lines += ["", "TPR at an FPR of 0.1 %, mean over targets, in per cent:", ""]
    lines += ["| procedure | ε | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for one in record["procedures"]:
        cells = []
        for name in names:
            targets = one["attacks"][name]["targets"]
            low = [t["low_false"][0]["tpr"]["value"] for t in targets]
            cells.append(f"{100 * sum(low) / len(low):.2f}")
        epsilon = "none" if one["epsilon"] is None else f"{one['epsilon']:g}"
        lines.append("| " + " | ".join([one["name"], epsilon, *cells]) + " |")
    figure = f"figures/attacks-{record['data']}-{record['records']}.svg"
    return [*lines, "", f"![ROC curves of the attacks on an over-fitted model]({figure})", ""]


def canaries(record: dict[str, Any], described: str) -> list[str]:
    """Lower bounds by family, beside what the ledger states."""
    families = list(record["audits"][0]["runs"][0]["bounds"])
    lines = [
        "## Canaries: lower bounds on ε",
        "",
        "One training of DP-SGD with gradient-space canaries, every release seen"
        f" (`benchmarks/canaries.py`), δ = {record['delta']:g}, confidence"
        f" {100 * record['confidence']:g} % for each bound; means over"
        f" {len(record['audits'][0]['runs'])} seeds. `closed-form` and `approximate` assume"
        " nothing; `gaussian` and `ledger` assume that the mechanism is of that family"
        f" ([canaries](canaries.md)). {described}.",
        "",
        "| ledger: ε ≤ | releases | rate | canaries | guesses | " + " | ".join(families) + " |",
        "|---|---|---|---|---|" + "---|" * len(families),
    ]
    for one in record["audits"]:
        upper = sum(run["upper"] for run in one["runs"]) / len(one["runs"])
        means = [sum(run["bounds"][f] for run in one["runs"]) / len(one["runs"]) for f in families]
        row = [
            f"{upper:.3f}",
            f"{one['steps']}",
            f"{one['rate']:g}",
            f"{one['canaries']:,}",
            f"{one['guesses']}",
            *(f"{mean:.2f}" for mean in means),
        ]
        lines.append("| " + " | ".join(row) + " |")
    return [*lines, ""]
