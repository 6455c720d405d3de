"""What a table needs, and whether it is here."""

from __future__ import annotations

from typing import Any

from reticent import data as datasets
from reticent.reproduction.checking import absent_features
from reticent.reproduction.tables import Table


def describe(table: Table, root: str | None = None) -> dict[str, Any]:
    """A table for a list: its size, and of each data set whether it is here.

    >>> from reticent.reproduction.tables import load
    >>> describe(load("dpsur/table2"))["entries"]
    157
    """
    entries = table.entries()
    return {
        "table": table.id,
        "paper": table.paper,
        "name": table.name,
        "title": table.title,
        "kind": table.kind,
        "entries": len(entries),
        "rows": [row.name for row in table.rows],
        "columns": list(table.columns),
        "axis": table.axis,
        "measures": list(table.measures),
        "variants": list(table.variants),
        "data": {name: _here(table, name, root) for name in table.data},
        "notes": list(table.notes),
    }


def _here(table: Table, name: str, root: str | None) -> str:
    data = table.data[name]
    if data.missing is not None:
        return "cannot be run"
    found = datasets.locate(str(data.settings["data"]), root=root)
    if found.form == "absent":
        return "absent"
    needs = (absent_features(entry.settings) for entry in table.entries(data=[name]))
    return "needs a file of yours" if any(needs) else "here"
