"""Where records come from: data sets by name, a user's own, and which of them take part."""

from reticent.data.catalog import CATALOG, Entry, lookup, names
from reticent.data.datasets import Location, Splits, get, load, locate
from reticent.data.own import OwnSplits, from_columns, from_file
from reticent.data.records import DatasetRecords, HostRecords, Records, TensorRecords, as_records
from reticent.data.sampling import poisson_draw

__all__ = [
    "CATALOG",
    "DatasetRecords",
    "Entry",
    "HostRecords",
    "Location",
    "OwnSplits",
    "Records",
    "Splits",
    "TensorRecords",
    "as_records",
    "from_columns",
    "from_file",
    "get",
    "load",
    "locate",
    "lookup",
    "names",
    "poisson_draw",
]
