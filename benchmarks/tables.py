"""Write `docs/results.md` from `benchmarks/results/*.json`; no number there is typed.

With `--check`, fail if the page is not what the results give.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results.md"


def machine(record: dict[str, Any]) -> str:
    told = record["machine"]
    where = told["accelerator"] or f"{told['processor']}, {told['threads']} thread(s)"
    return f"{where}; PyTorch {told['versions']['torch']}"


def trainings(records: list[dict[str, Any]]) -> list[str]:
    lines = [
        "## Trainings by command line",
        "",
        "`reticent train --data NAME --epsilon E`, nothing else set. Accuracy on the test split"
        " after the last release. Where settings come from a search (`benchmarks/recipes.py`), the"
        " search is not part of ε. Seconds are wall-clock, with other trainings on the machine.",
        "",
        "| data | model | settings from | ε (bound) | δ | accountant | test accuracy | runs "
        "| seconds | machine |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for record in sorted(records, key=lambda r: (r["data"], r["epsilon"], r["device"])):
        runs = record["runs"]
        accuracy = [100 * run["accuracy"] for run in runs]
        shown = f"{statistics.mean(accuracy):.2f} %"
        if len(runs) > 1:
            shown += f" ({min(accuracy):.2f} to {max(accuracy):.2f})"
        lines.append(
            f"| {record['data']} | {record['settings']['model']} | {record['settings_from']} | "
            f"{max(run['epsilon'] for run in runs):.4f} | {runs[0]['delta']:g} | "
            f"{runs[0]['accountant']} | {shown} | {len(runs)} | "
            f"{statistics.mean(run['seconds'] for run in runs):.0f} | {machine(record)} |"
        )
    notes = [f"{r['data']}: {r['data_note']}." for r in records if "data_note" in r]
    return [*lines, "", *(line for note in notes for line in (note, ""))]


def steps(record: dict[str, Any]) -> list[str]:
    lines = [
        f"## Cost of a private step ({record['device']})",
        "",
        f"Clipped sum against forward and backward of the same batch, in turns, median of "
        f"{record['repeats']}. {machine(record)}.",
        "",
        "| model | batch | plain ms | private ms | ratio | spread |",
        "|---|---|---|---|---|---|",
    ]
    for name, case in record["cases"].items():
        low, high = case["ratio_spread"]
        lines.append(
            f"| {name} | {case['batch']} | {case['plain_ms']:.1f} | {case['private_ms']:.1f} | "
            f"{case['ratio']:.2f} | {low:.2f} to {high:.2f} |"
        )
    return [*lines, ""]


def recipes(record: dict[str, Any]) -> list[str]:
    lines = [
        "## The search behind the recipes",
        "",
        "The best five of each data set on held-out training records, ε = 3, δ = 1e-5; all are in"
        " `benchmarks/results/recipes.json`. They differ by less than their spread over runs; the"
        " recipes in use are among these (for `digits` at the same rate on all training records).",
        "",
        "| data | candidates | model | batch | steps | lr | momentum | average | held-out |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for data in sorted({one["data"] for one in record["tried"]}):
        tried = [one for one in record["tried"] if one["data"] == data]
        for one in sorted(tried, key=lambda o: -o["held_out_accuracy"])[:5]:
            lines.append(
                f"| {data} | {len(tried)} | {one['model']} | {one['batch']} | {one['steps']} | "
                f"{one['lr']:g} | {one['momentum']:g} | {one['average']:g} | "
                f"{100 * one['held_out_accuracy']:.2f} % ({one['repeats']} run(s)) |"
            )
    return [*lines, ""]


VARIANTS = {
    "published": "public code: rejected gradients stay in the momentum, old losses are kept",
    "repaired": "the same number of accepted updates, without the leaks",
    "sound": "as many accepted updates as ε affords, without the leaks",
    "dpsgd": "DP-SGD, averaged weights",
}


def dpsur(record: dict[str, Any]) -> list[str]:
    lines = [
        f"## DPSUR on {record['data']} with scattering features: leak and repair",
        "",
        "`reticent reproduce dpsur/table2` (settings of the paper; learning rates as listed, all of"
        " those tried are here) and `reticent train --features scattering` for DP-SGD. Accuracy on"
        f" the test split, mean and range over seeds. {machine(record)}.",
        "",
        "| claimed ε | what ran | learning rate | updates | trials per update | ε (bound) "
        "| test accuracy | published | seeds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    keys = dict.fromkeys((r["claimed_epsilon"], r["variant"], r["lr"]) for r in record["runs"])
    for epsilon, variant, lr in keys:
        runs = [
            r
            for r in record["runs"]
            if (r["claimed_epsilon"], r["variant"], r["lr"]) == (epsilon, variant, lr)
        ]
        accuracy = [100 * run["accuracy"] for run in runs]
        seen = [r["trials_per_update"] for r in runs if r["trials_per_update"] is not None]
        trials = f"{statistics.mean(seen):.2f}" if seen else "-"
        proved = "none" if runs[0]["epsilon"] is None else f"{max(r['epsilon'] for r in runs):.4f}"
        known = record["published"].get(str(epsilon)) if variant == "published" else None
        lines.append(
            f"| {epsilon:g} | {VARIANTS[variant]} | {lr:g} | {runs[0]['steps']} | {trials} | "
            f"{proved} | {statistics.mean(accuracy):.2f} % ({min(accuracy):.2f} to "
            f"{max(accuracy):.2f}) | {'-' if known is None else f'{known:.2f} %'} | {len(runs)} |"
        )
    return [*lines, ""]


def selection(record: dict[str, Any]) -> list[str]:
    lines = [
        "## DPSUR: what the published settings cost",
        "",
        f"δ = {record['delta']:g}. The updates are the most that the paper's accountant allows at"
        " the claimed ε. The explicit instance is a pair of laws that a loss surface can produce:"
        " a lower bound on what any sound accountant must say. `selective-exact` is the default"
        " accountant; the last column is how many updates it allows at the claimed ε.",
        "",
        "| data | claimed ε | updates | explicit instance, at least | selective-exact "
        "| selective-pld | selective-rdp | updates at the claimed ε |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in record["rows"]:
        lines.append(
            f"| {r['data']} | {r['claimed']:.4f} | {r['updates']} | {r['instance']:.4f} | "
            f"{r['exact']:.4f} | {r['pld']:.4f} | {r['rdp']:.4f} | {r['affordable']} |"
        )
    return [*lines, ""]


def trials(record: dict[str, Any]) -> list[str]:
    parts = record["parts_ms"]
    lines = [
        f"## Cost of a trial of DPSUR ({record['device']})",
        "",
        f"`{record['model']}`, batch {record['batch']}, validation batch {record['valid_batch']},"
        f" random records. A clipped sum alone takes {parts['clipped sum']:.1f} ms, a forward pass"
        f" of the validation batch {parts['forward']:.1f} ms. {machine(record)}.",
        "",
        "| candidates together | ms per trial | over one clipped sum and two forward passes "
        "| ms per accepted update |",
        "|---|---|---|---|",
    ]
    for count, case in record["together"].items():
        lines.append(
            f"| {count} | {case['ms_per_trial']:.1f} | {case['trial_over_parts']:.2f} | "
            f"{case['ms_per_update']:.1f} |"
        )
    return [*lines, ""]


def page() -> str:
    records = [json.loads(path.read_text()) for path in sorted((HERE / "results").glob("*.json"))]
    lines = [
        "# Results",
        "",
        "Generated by `python benchmarks/tables.py` from `benchmarks/results/*.json`.",
        "",
        *trainings([r for r in records if r["what"] == "trainings"]),
    ]
    for record in records:
        if record["what"] == "steps":
            lines += steps(record)
        if record["what"] == "trials":
            lines += trials(record)
    for record in records:
        if record["what"] == "selection":
            lines += selection(record)
    for record in records:
        if record["what"] == "dpsur":
            lines += dpsur(record)
    for record in records:
        if record["what"] == "recipes":
            lines += recipes(record)
    return "\n".join(lines)


def main() -> None:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() != page():
            raise SystemExit("docs/results.md is not up to date: run python benchmarks/tables.py")
        return
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
