"""A user's own records: CSV, TSV, Parquet, JSON lines, NumPy files, image folders, saved data sets.

Example:
    >>> from reticent.data.own import from_columns
    >>> columns = {"age": [20, 60] * 20, "ill": ["no", "yes"] * 20}
    >>> splits = from_columns(columns, target="ill", classes="no,yes", bounds={"age": (0, 120)})
    >>> splits.info.n_train + splits.info.n_test
    40
"""

from reticent.data.own.contents import is_own
from reticent.data.own.options import Reading, class_list
from reticent.data.own.reading import from_columns, from_file
from reticent.data.own.splits import OwnSplits

__all__ = ["OwnSplits", "Reading", "class_list", "from_columns", "from_file", "is_own"]
