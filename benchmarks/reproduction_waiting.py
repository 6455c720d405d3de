"""How long the entries of a table that were not run would take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reproduction_records import place
from reticent.reproduction.tables import Entry, Table

Record = Mapping[str, Any]
TIMES = "pdsgd/table6"  # milliseconds of a step, from which hours are estimated


def waiting_hours(table: Table, recorded: Mapping[str, Record]) -> tuple[float, int, str]:
    """What entries that were not run would take at measured speeds: hours, how many, and where.

    Only those whose model and method were timed with the same batches.
    """
    times = recorded.get(TIMES)
    if times is None or table.id == TIMES:
        return 0.0, 0, ""
    run = {place(line) for line in recorded.get(table.id, {"entries": ()})["entries"]}
    # an attack trains shadow models beside its target
    models = 1 + table.shadows * attacked(table)
    hours, count = 0.0, 0
    for entry in table.entries():
        speed = _milliseconds(times, entry)
        if entry.missing is not None or speed is None or place(vars(entry)) in run:
            continue
        settings, n = entry.settings, entry.records or 0
        steps = settings.steps or round((settings.epochs or 0) * n / (settings.batch or 1))
        hours += models * steps * speed / 3.6e6
        count += 1
    machines = {made.get("accelerator") or made["processor"] for made in times["machines"]}
    return hours, count, " and ".join(sorted(machines))


def attacked(table: Table) -> bool:
    return any("." in measure for measure in table.measures)


def _milliseconds(times: Record, entry: Entry) -> float | None:
    """Of one step of an entry's model by its method, if that was measured."""
    own = entry.settings
    for line in times["entries"]:
        timed = {**times["settings"], **line["settings"]}
        deniable = own.method == "pd-sgd"  # it has batches instead of a batch
        same = all(timed[name] == getattr(own, name) for name in ("model", "method"))
        cut = [one["method_options"].get("batches") for one in (timed, own.to_json())]
        if same and (cut[0] == cut[1] if deniable else timed["batch"] == own.batch):
            return float(line["measures"]["milliseconds"]["mean"])
    return None
