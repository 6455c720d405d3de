"""Records of published tables: what was run of a table, with every seed, as JSON.

A record has the entries that were run and the settings they were run with, so that what it holds is
known again, also on another machine, as long as the table still asks for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reticent.cli.settings import Settings
from reticent.features import FINGERPRINT
from reticent.reproduction.jobs import Job, Outcome, job_of
from reticent.reproduction.measures import IN_PERCENT
from reticent.reproduction.reports import report
from reticent.reproduction.tables import Entry, Table

WHAT = "reproduce"
_OF_A_RUN = ("claimed_epsilon", "sound_epsilon", "steps", "seconds", "notes")
_HEAD = (
    *("table", "paper", "name", "title", "kind", "measures", "percent", "axis", "columns"),
    *("data", "runs", "changes", "notes"),
)
_KEPT = (
    *("row", "data", "column", "variant", "paper_is_sound", "why", "measures"),
    *("claimed_epsilon", "sound_epsilon", "failed", "claim", "options"),
)


def settings_of(entry: Entry, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an entry as a record has them; where it runs and its seed left out."""
    found = replace(entry.settings, **changes).to_json()
    for name in ("seed", "device", "root"):
        del found[name]
    return json.loads(json.dumps(found))


def same_settings(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether settings are equal; what one does not have yet is at its default."""
    default = Settings().to_json()
    return all(
        one.get(name, default.get(name)) == other.get(name, default.get(name))
        for name in {*one, *other}
    )


def compact(
    table: Table,
    outcomes: Mapping[str, Outcome],
    seeds: Iterable[int],
    changes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is known of a table, as a record: the entries that were run, with every seed."""
    changed = dict(changes or {})
    # what is not on this machine is no result, and says where it was looked for
    known = {key: one for key, one in outcomes.items() if one.state != "missing"}
    found = report(table, table.entries(), known, seeds=sorted(seeds), changes=changed)
    machines: list[dict[str, Any]] = []
    entries = []
    for asked, line in zip(table.entries(), found["entries"], strict=True):
        if not line["seeds"] and not line["failed"]:
            continue
        runs = []
        for seed in line["seeds"]:
            outcome = known[job_of(table, asked, seed, **changed).key]
            if outcome.made not in machines:
                machines.append(outcome.made)
            own = {name: getattr(outcome, name) for name in _OF_A_RUN}
            runs.append({"seed": seed, **own, "machine": machines.index(outcome.made)})
        kept = {name: line[name] for name in _KEPT}
        entries.append({**kept, "settings": settings_of(asked, changed), "runs": runs})
    shared = _shared([entry["settings"] for entry in entries])
    for entry in entries:
        entry["settings"] = {k: v for k, v in entry["settings"].items() if k not in shared}
    head = {name: found[name] for name in _HEAD}
    return {"what": WHAT, **head, "machines": machines, "settings": shared, "entries": entries}


def _shared(settings: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all entries have, which a record says once."""
    first = settings[0] if settings else {}
    return {
        name: value
        for name, value in first.items()
        if all(name in one and one[name] == value for one in settings)
    }


def recovered(
    record: Mapping[str, Any], table: Table, changes: Mapping[str, Any]
) -> Iterator[tuple[Job, Outcome]]:
    """The runs in a record of this table, failed ones too, that are still what it asks for."""
    for line, entry in matched(record, table, changes):
        if entry is None:
            continue
        for run in line["runs"]:
            job = job_of(table, entry, run["seed"], **changes)
            others = [note for note in run["notes"] if FINGERPRINT in note]
            if job.brought() and others and not set(others) & set(job.brought_notes()):
                continue  # made with another file than is here
            yield job, _outcome(record, line, run, job.key)
        for seed, error in line["failed"].items():
            job = job_of(table, entry, int(seed), **changes)
            yield job, Outcome(job.key, "failed", error=error)


def matched(
    record: Mapping[str, Any], table: Table, changes: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], Entry | None]]:
    """The lines of a record of this table; None beside one that is not what it asks for now."""
    if record.get("what") != WHAT or record["table"] != table.id:
        return
    entries = {place(vars(entry)): entry for entry in table.entries()}
    for line in record["entries"]:
        entry = entries.get(place(line))
        if entry is not None:
            then = {**record["settings"], **line["settings"]}
            now = settings_of(entry, changes), json.loads(json.dumps(entry.options))
            same = same_settings(then, now[0]) and line["options"] == now[1]
            entry = entry if same and set(line["measures"]) == set(table.measures) else None
        yield line, entry


def place(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Where in a table an entry is."""
    return tuple(entry[name] for name in ("row", "data", "column", "variant"))


def _outcome(
    record: Mapping[str, Any], line: Mapping[str, Any], run: Mapping[str, Any], key: str
) -> Outcome:
    """One run of a record, in the units of outcomes: a share where the table has percent."""
    seed = str(run["seed"])
    values: dict[str, Any] = {}
    intervals: dict[str, tuple[float, float]] = {}
    for name, numbers in line["measures"].items():
        unit = 100.0 if name in record["percent"] and name not in IN_PERCENT else 1.0
        value = numbers["seeds"][seed]
        values[name] = value / unit if isinstance(value, (int, float)) else value
        if seed in numbers["intervals"]:
            low, high = numbers["intervals"][seed]
            intervals[name] = low / unit, high / unit
    return Outcome(
        key,
        values=values,
        intervals=intervals,
        claim=line["claim"],
        made=record["machines"][run["machine"]],
        **{name: run[name] for name in _OF_A_RUN if name != "notes"},
        notes=tuple(run["notes"]),
    )


def file_name(table: Table, changes: Mapping[str, Any]) -> str:
    """Of a table's record."""
    changed = "".join(f"-{name}{value:g}" for name, value in changes.items())
    return f"{WHAT}-{table.id.replace('/', '-')}{changed}.json"
