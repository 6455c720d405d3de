"""What a run saw and ε does not cover, for the eyes of whoever holds the records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reticent.cli.output import errors
from reticent.files import to_json, write_atomically
from reticent.report.folder import DIAGNOSTICS_FILE
from reticent.training import Training

DIAGNOSTICS_WARNING = "not covered by ε; must not leave whoever holds the records"


def keep_diagnostics(training: Training, folder: Path) -> None:
    """Write what must stay private to a file that only its owner can read."""
    kept = training.run.diagnostics or []
    path = folder / DIAGNOSTICS_FILE
    report: dict[str, Any] = {
        "warning": DIAGNOSTICS_WARNING,
        "peak_memory_bytes": training.peak_memory_bytes,
        "releases": kept,
    }
    seen = training.run.norms_seen
    if seen is not None and (norms := seen.to_json()) is not None:
        report["gradient_norms"] = norms
    updates = training.run.private.get("updates")
    if updates is not None:  # of each record, how many of its updates were made
        report["updates"] = updates.tolist()
    write_atomically(path, to_json(report), mode=0o600)
    errors.print(f"[bold]{path}[/]: {DIAGNOSTICS_WARNING}")
    trials = [line["trials"] for line in kept if "trials" in line]
    if trials:
        errors.print(
            f"trials per release: {sum(trials) / len(trials):.2f} on average, {max(trials):g} at "
            "most (private)"
        )
    accepted = [line["accepted"] for line in kept if "accepted" in line]
    if accepted:
        rejected = 1 - sum(accepted) / len(accepted)
        errors.print(f"updates rejected: {100 * rejected:.2f} % (private)")
