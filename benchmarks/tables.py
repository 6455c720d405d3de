"""Write `docs/results.md`, `frontier.md` and `reproductions.md`, and the README's accuracies.

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
import defence_tables
import frontier_tables
import reproduction_tables

HERE = Path(__file__).parent
ROOT = HERE.parent
PAGE = ROOT / "docs" / "results.md"
FROM_OTHERS = {
    "attacks": audit_tables.attacks,
    "canaries": audit_tables.canaries,
    "defences": defence_tables.defences,
    "deniable-steps": defence_tables.steps,
    "poisoning": defence_tables.poisoning,
}


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


STEPS = {
    "plain": "plain SGD",
    "plain compiled": "plain SGD, `torch.compile`",
    "plain graph": "plain SGD, CUDA graph",
    "reticent": "Reticent, `RepeatedSum`",
    "reticent eager": "Reticent, `clipped_sum`",
    "opacus hooks": "Opacus, hooks",
    "opacus functorch": "Opacus, functorch",
    "opacus ghost": "Opacus, ghost",
}


def spread(values: list[float]) -> str:
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def steps(record: dict[str, Any]) -> list[str]:
    if not all("contestants" in case for case in record["cases"].values()):
        return []  # a record of an older form
    exact = ""
    if record["tf32"]:
        exact = (
            "Matrix products and convolutions are timed in TF32, where an update may be off by"
            f" {record['tolerance_tf32']:g}. "
        )
    rival = f"Opacus {record['opacus']}. " if record["opacus"] else ""
    lines = [
        f"## Cost of a private step ({record['device']})",
        "",
        "One whole optimizer step on a fixed random batch, all in turns in one process: median of"
        f" {record['repeats']} rounds, and the ratio to the plain step of the same round with its"
        " 5 % and 95 % quantiles. Before, the update of each private step without noise was"
        f" compared with {record['checked']} examples one at a time; what was off by more than"
        f" {record['tolerance']:g} of the largest entry is not timed. {exact}{rival}"
        f"{machine(record)}.",
        "",
        "| model | batch | step | ms | over plain | peak MiB | over the best Opacus |",
        "|---|---|---|---|---|---|---|",
    ]
    notes: dict[str, None] = {}
    for case in record["cases"].values():
        others = [
            one["ms"][1]
            for name, one in case["contestants"].items()
            if name.startswith("opacus") and "ms" in one
        ]
        for name, one in case["contestants"].items():
            start = f"| {case['label']} | {case['batch']} | {STEPS[name]} |"
            if "note" in one:
                notes[f"{case['label']} for Opacus: {one['note']}."] = None
            if "failed" in one or "wrong" in one:
                reason = one.get("failed") or f"wrong, {one['wrong']}"
                lines.append(f"{start} {reason.replace('|', '/')} | - | - | - |")
            if "ratio" not in one or "failed" in one:
                continue
            peak = f"{one['peak_mib']:.0f}" if "peak_mib" in one else "-"
            ours = name.startswith("reticent") and others
            best = f"{one['ms'][1] / min(others):.2f}" if ours else "-"
            lines.append(f"{start} {one['ms'][1]:.1f} | {spread(one['ratio'])} | {peak} | {best} |")
        if "remark" in case:
            notes[f"{case['label']}: {case['remark']}."] = None
        if case["path"] != "fast":
            notes[f"{case['label']} in Reticent: {case['path']}."] = None
    return [*lines, "", *(line for note in notes for line in (note, ""))]


def scaling(record: dict[str, Any]) -> list[str]:
    figure = PAGE.parent / "figures" / f"scaling-{record['device']}.svg"
    lines = [
        f"## How the cost grows ({record['device']})",
        "",
        "Private over plain, one size changed at a time (`benchmarks/scaling.py`), median of"
        f" {record['repeats']} rounds. The noise covers every weight, used in the batch or not: the"
        f" vocabulary is where it shows. {machine(record)}.",
        "",
        *([f"![Ratios against sizes](figures/{figure.name})", ""] if figure.exists() else []),
        "| against | model | size | batch | plain ms | private ms | over plain |",
        "|---|---|---|---|---|---|---|",
    ]
    for curve in record["curves"]:
        for point in curve["points"]:
            lines.append(
                f"| {curve['what']} | {curve['model']} | {point['size']} | {point['batch']} | "
                f"{point['plain_ms']:.2f} | {point['private_ms']:.2f} | {spread(point['ratio'])} |"
            )
    return [*lines, ""]


def profiles(records: list[dict[str, Any]]) -> list[str]:
    if not records:
        return []
    lines = [
        "## Where the time of a step goes",
        "",
        "Operations (CPU) or kernels (GPU) with the most time of their own, by"
        " `benchmarks/profiles.py`; the first five of each.",
        "",
        "| model | batch | step | ms | calls | most time | machine |",
        "|---|---|---|---|---|---|---|",
    ]
    for record in records:
        for name, one in record["contestants"].items():
            top = ", ".join(
                f"`{part['name']}` {100 * part['share']:.0f} %" for part in one["top"][:5]
            )
            lines.append(
                f"| {record['label']} | {record['batch']} | {STEPS[name]} | {one['ms']:.1f} | "
                f"{one['calls']} | {top} | {machine(record)} |"
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


def runs(record: dict[str, Any]) -> list[str]:
    """Whole trainings, and a batch that does not fit."""
    lines = [f"## Whole trainings ({record['device']})", ""]
    if "trainings" in record:
        lines += [
            "`scatter-cnn` on Fashion-MNIST's scattering features (`benchmarks/runs.py`), one seed;"
            f" noise, optimizer, ledger and sampling included, warm-up not. {machine(record)}.",
            "",
            "| method | batch | updates | trials per update | seconds | ms per trial | warm-up "
            "| test accuracy |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for method, one in record.get("trainings", {}).items():
        lines.append(
            f"| {method} | {one['batch']} | {one['steps']} | {one['trials_per_update']:.2f} | "
            f"{one['seconds']:.1f} | {one['ms_per_trial']:.2f} | "
            f"{one['warm_up_seconds']:.1f} s for {one['warm_up_steps']} updates | "
            f"{100 * one['accuracy']:.2f} % |"
        )
    if "memory" in record:
        one = record["memory"]
        lines += [
            "",
            f"One release of {one['batch']} of {one['records']} made-up images, {one['model']}:"
            f" {one['seconds']:.1f} s in pieces of {one['microbatch']}, which were measured to fit;"
            f" at most {one['peak_mib']:.0f} MiB"
            + (" of this process." if record["device"] == "cpu" else " allocated on the device."),
        ]
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


def pages() -> dict[Path, str]:
    """Everything that is generated, by file."""
    records = [json.loads(path.read_text()) for path in sorted((HERE / "results").glob("*.json"))]
    readme = ROOT / "README.md"
    return {
        PAGE: page(records),
        PAGE.with_name("frontier.md"): frontier_tables.page(records, machine),
        PAGE.with_name("reproductions.md"): reproduction_tables.page(records),
        readme: frontier_tables.with_part(readme.read_text(), records),
    }


def main() -> None:
    for path, text in pages().items():
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path.name} is not up to date: run python benchmarks/tables.py")


if __name__ == "__main__":
    main()
