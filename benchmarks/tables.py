"""Write `docs/results.md`, `frontier.md` and `reproductions.md`, and the README's tables.

All come from `benchmarks/results/*.json` and the published tables; no number there is typed. With
`--check`, fail if one is not what these give. `benchmarks/figures.py` draws the figures.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import audit_tables
import default_tables
import defence_tables
import frontier_tables
import reproduction_tables
import speed_tables
from speed_tables import machine, profiles, runs, scaling, steps

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "results.md"
FROM_OTHERS = {
    "attacks": audit_tables.attacks,
    "canaries": audit_tables.canaries,
    "defaults": default_tables.defaults,
    "defences": defence_tables.defences,
    "deniable-steps": defence_tables.steps,
    "poisoning": defence_tables.poisoning,
}


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


def importance(record: dict[str, Any]) -> list[str]:
    """DPIS and DP-SGD at equal budget."""
    lines = [
        "## Importance sampling",
        "",
        f"DPIS and DP-SGD on {record['data']}, {record['epochs']} epochs of batch"
        f" {record['batch']}, clip {record['clip']:g}, learning rate {record['lr']:g},"
        f" momentum 0.9, k = 5, divider {record['divider']:g};"
        f" {len(record['budgets'][0]['dpis'])} seed(s), settings not searched"
        f" (`benchmarks/importance.py`). {machine(record)}.",
        "",
        "| ε | method | noise multiplier | K̃/(ÑC), first and last | test accuracy | seconds |",
        "|---|---|---|---|---|---|",
    ]
    for found in record["budgets"]:
        for method in ("dpsgd", "dpis"):
            run = found[method][0]
            if method == "dpis":
                noise = f"{run['noise'][0]:.3f} to {run['noise'][-1]:.3f} (filter)"
                share = f"{run['share'][0]:.2f}, {run['share'][-1]:.2f}"
            else:
                noise, share = f"{run['noise']} (PLD), {run['by_rdp']} (RDP)", ""
            accuracy = 100 * statistics.mean(one["accuracy"] for one in found[method])
            lines.append(
                f"| {found['epsilon']:g} | {method} | {noise} | {share} | {accuracy:.2f} % | "
                f"{run['seconds']:.1f} |"
            )
    return [*lines, ""]


def features(record: dict[str, Any]) -> list[str]:
    """How long the scattering transform takes."""
    lines = [
        f"## Scattering transform ({record['device']})",
        "",
        "Random images, J = 2, L = 8, second order, in pieces of 1024 that are then dropped"
        f" (`benchmarks/features.py`). Memory is the most"
        f" {'of the process' if record['device'] == 'cpu' else 'allocated'}. {machine(record)}.",
        "",
        "| images | shape | seconds | MiB at most |",
        "|---|---|---|---|",
    ]
    for run in record["runs"]:
        shape = "x".join(str(size) for size in run["shape"])
        lines.append(
            f"| {run['images']:,} | {shape} | {run['seconds']:.1f} | {run['peak_mib']:.0f} |"
        )
    return [*lines, ""]


def page(records: list[dict[str, Any]]) -> str:
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
        if record["what"] == "runs":
            lines += runs(record)
    for record in records:
        if record["what"] == "scaling":
            lines += scaling(record)
    lines += profiles([r for r in records if r["what"] == "profile"])
    kinds = {"selection": selection, "dpsur": dpsur, "importance": importance, "features": features}
    for what, draw in kinds.items():
        for record in records:
            lines += draw(record) if record["what"] == what else []
    for record in records:
        other = FROM_OTHERS.get(record["what"])
        lines += [] if other is None else other(record, machine(record))
    for record in records:
        if record["what"] == "recipes":
            lines += recipes(record)
    return "\n".join(lines)


def with_parts(readme: str, parts: dict[str, str]) -> str:
    """The README with its generated parts, each between two comments, as the results give them."""
    for name, text in parts.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        if readme.count(start) != 1 or readme.count(end) != 1:
            raise SystemExit(f"README.md needs {start} and {end}, once each")
        before, _, rest = readme.partition(start)
        _, _, after = rest.partition(end)
        readme = f"{before}{start}\n{text}\n{end}{after}"
    return readme


def pages() -> dict[Path, str]:
    """Everything that is generated, by file."""
    records = [json.loads(path.read_text()) for path in sorted((HERE / "results").glob("*.json"))]
    readme = ROOT / "README.md"
    return {
        PAGE: page(records),
        PAGE.with_name("frontier.md"): frontier_tables.page(records, machine),
        PAGE.with_name("reproductions.md"): reproduction_tables.page(records),
        readme: with_parts(
            readme.read_text(),
            {"frontier": frontier_tables.part(records), "speed": speed_tables.part(records)},
        ),
    }


def main() -> None:
    for path, text in pages().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path.name} is not up to date: run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
