"""What private steps cost: the sections of `docs/results.md`, and a table for the README."""

from __future__ import annotations

from pathlib import Path
from typing import Any

Record = dict[str, Any]
FIGURES = Path(__file__).parent.parent / "docs" / "figures"
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


def machine(record: dict[str, Any]) -> str:
    told = record["machine"]
    where = told["accelerator"] or f"{told['processor']}, {told['threads']} thread(s)"
    return f"{where}; PyTorch {told['versions']['torch']}"


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
        "One whole optimizer step on a fixed random batch, all steps of a model in turns in one"
        " process: median of"
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
        others = _rivals(case)
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
    figure = FIGURES / f"scaling-{record['device']}.svg"
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


def part(records: list[Record]) -> str:
    """The README's table: our step over the plain one, and against the best mode of Opacus."""
    found = [one for one in records if one["what"] == "steps" and one["opacus"]]
    devices = {one["device"]: one for one in found}
    shown = [("cuda", "GPU"), ("cpu", "CPU")]
    heads = [f"{title}: over plain SGD | {title}: times faster than Opacus" for _, title in shown]
    lines = [f"| one private step | {' | '.join(heads)} |", "|---|---|---|---|---|"]
    for name, case in devices["cuda"]["cases"].items():
        cells = []
        for device, _ in shown:
            ours = devices[device]["cases"][name]["contestants"]["reticent"]
            best = min(_rivals(devices[device]["cases"][name]))
            cells += [f"{ours['ratio'][1]:.2f}", f"{best / ours['ms'][1]:.1f}"]
        lines.append(f"| {case['label']} | {' | '.join(cells)} |")
    machines = "; ".join(f"{title}: {machine(devices[device])}" for device, title in shown)
    versions = " and ".join(sorted({one["opacus"] for one in found}))
    lines += [
        "",
        "Median, measured in turns in one process, against the fastest of three modes of Opacus"
        f" {versions} that computes the right update. {machines}."
        " [Everything that was measured](docs/results.md), [why it is fast](docs/speed.md).",
    ]
    return "\n".join(lines)


def _rivals(case: Record) -> list[float]:
    """Milliseconds of the modes of Opacus that take part."""
    return [
        one["ms"][1]
        for name, one in case["contestants"].items()
        if name.startswith("opacus") and "ms" in one
    ]
