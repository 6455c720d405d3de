"""The entries of a table on the data sets that its paper has."""

from __future__ import annotations

from reticent.reproduction.tables import Entry, Table


def printed_entries(table: Table) -> list[Entry]:
    """Without those on a data set that is like another: what they print is the other's."""
    return [entry for entry in table.entries() if table.data[entry.data].like is None]
