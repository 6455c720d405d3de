"""Tables as they stand in files: named columns of cells, each record with its place.

CSV and JSON lines are read with the standard library alone. What is wrong is named by its line and
column; messages end up in logs, so they never show what a cell holds.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from reticent.data.own.options import listed
from reticent.errors import DataError, OptionError, meant

DELIMITERS = ",;\t|"
_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_LONGEST_FIELD = 1 << 24


@dataclass(frozen=True)
class Table:
    """Columns of cells: text, numbers, or None where there is nothing.

    Attributes:
        origin: the file, for messages.
        columns: the cells by column; all of one length.
        places: what each record is called: the number of its line, or its own.
        unit: `line` or `record`.
        labels: class names that the file's own schema states, by column.
        typed: columns that the file's own schema says are numbers.
        named: whether the names of the columns belong to the file; else the first record has them.
    """

    origin: str
    columns: dict[str, list[Any]]
    places: Sequence[int]
    unit: str = "record"
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    typed: frozenset[str] = frozenset()
    named: bool = True

    def __len__(self) -> int:
        return len(self.places)

    def where(self, row: int, column: str | None = None) -> str:
        """The place of a record, as messages name it."""
        place = f"{self.origin}: {self.unit} {self.places[row]}"
        return place if column is None else f"{place}, column {column!r}"

    def column(self, option: str, name: str | None) -> list[Any]:
        """The cells of a column, or an error that says which columns there are."""
        if name is None or name not in self.columns:
            works = shown_names(self.columns, name)
            raise OptionError(option, name, f"must be a column of {self.origin}: {works}")
        return self.columns[name]


def shown_names(columns: Iterable[str], asked: str | None = None) -> str:
    """Names of columns for a message, unless they may be the cells of a record: no header.

    Where another was asked for, with the one that was meant.

    >>> shown_names(["age", "ill"])
    'age, ill'
    >>> shown_names(["66", "m", "slept well", "no"])
    'it has 4; is the first line a record? Put a header with the names of the columns above it'
    """
    names = list(columns)
    numbers = sum(map(_is_number, names))
    if not numbers or (numbers > 1 and _counted(names)):
        return listed(names) + ("" if asked is None else meant(asked, names))
    return (
        f"it has {len(names)}; is the first line a record? Put a header with the names of the "
        "columns above it"
    )


def cell_text(cell: Any) -> str:
    """A cell as text; truth as JSON and Parquet files write it.

    >>> cell_text(True), cell_text(3)
    ('true', '3')
    """
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


def read_delimited(path: Path) -> Table:
    """Read a CSV or TSV file with a header; the header's separators are those of the file."""
    text = read_text(path, "a CSV file")
    header = re.sub('"[^"]*"', "", text.split("\n", 1)[0])  # what is quoted separates nothing
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=header.count)
    before = csv.field_size_limit(_LONGEST_FIELD)
    rows: list[list[str]] = []
    places: list[int] = []
    begun = 1
    try:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
        names = [name.strip() for name in next(reader, [])]
        _check_names(path, names)
        begun = reader.line_num + 1
        for row in reader:
            begun = reader.line_num + 1  # of the next record, which may have several lines
            if not row:  # a blank line
                continue
            if len(row) != len(names):
                raise DataError(
                    f"{path}: line {reader.line_num} has {len(row)} fields, the header has "
                    f"{len(names)}, separated by {_SEPARATORS[delimiter]}; quote fields that hold "
                    f"one{', and write 3.14, not 3,14' if delimiter == ',' else ''}"
                )
            rows.append(row)
            places.append(reader.line_num)
    except csv.Error as error:
        shown = f"line {begun}" if reader.line_num <= begun else f"what begins in line {begun}"
        raise DataError(f"{path}: {shown} is not CSV: {error}") from None
    finally:
        csv.field_size_limit(before)
    columns = {name: [row[position].strip() for row in rows] for position, name in enumerate(names)}
    return Table(str(path), columns, places, "line")


def read_jsonl(path: Path) -> Table:
    """Read one JSON object a line, all with the fields of the first; a field may be left out."""
    columns: dict[str, list[Any]] = {}
    places: list[int] = []
    for number, line in enumerate(read_text(path, "JSON lines").split("\n"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{path}: line {number} is not a JSON object: {error}") from None
        if not isinstance(record, dict):
            raise DataError(
                f'{path}: line {number} is not a JSON object; write {{"NAME": VALUE, ...}}'
            )
        if not columns:
            columns = {name: [] for name in record}
        for name, value in record.items():
            if name not in columns:
                raise DataError(
                    f"{path}: line {number} has a field {name!r}, the first has only "
                    f"{listed(list(columns))}"
                )
            if isinstance(value, (dict, list)):
                raise DataError(
                    f"{path}: line {number}, field {name!r}: expected text or a number, found "
                    f"{'a list' if isinstance(value, list) else 'an object'}"
                )
        for name, cells in columns.items():
            cells.append(record.get(name))
        places.append(number)
    return Table(str(path), columns, places, "line", named=False)


def table_of(columns: Mapping[str, Any], origin: str = "columns") -> Table:
    """A table of arrays, lists or tensors by name, one entry a record."""
    cells: dict[str, list[Any]] = {}
    for name, values in columns.items():
        array = np.asarray(values)
        if array.ndim != 1:
            raise DataError(
                f"{origin}: column {name!r} has shape {array.shape}: one value a record is meant"
            )
        cells[str(name)] = values if isinstance(values, list) else array.tolist()
    lengths = {name: len(values) for name, values in cells.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(
            f"{origin}: columns have different lengths, from {min(lengths.values()):,} to "
            f"{max(lengths.values()):,} records"
        )
    return Table(origin, cells, range(1, next(iter(lengths.values())) + 1))


def read_text(path: Path, what: str) -> str:
    """A UTF-8 file as text with plain line ends, or what is wrong with it."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if b"\0" in data[: 1 << 16] and not wide:
        raise DataError(f"{path}: expected {what}, found a binary file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(
            f"{path}: line {line} is not UTF-8 (byte 0x{data[error.start]:02x}); convert it, for "
            f"instance with iconv -f {'utf-16' if wide else 'latin1'} -t utf-8"
        ) from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _check_names(path: Path, names: list[str]) -> None:
    if not names:
        raise DataError(f"{path}: is empty; expected a header with the names of the columns")
    if all(_is_number(name) for name in names):
        raise DataError(
            f"{path}: the first line holds numbers, not names of columns; put a header above it"
        )
    if _looks_like_a_record(names):
        raise DataError(
            f"{path}: most of the first line are numbers, as in a record; put a header with the "
            "names of the columns above it"
        )
    if "" in names:
        raise DataError(f"{path}: column {names.index('') + 1} of the header has no name")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        called = "alike" if any(map(_is_number, names)) else repr(twice[0])
        raise DataError(
            f"{path}: two columns are called {called}; rename one, or put a header above the "
            "records if there is none"
        )


def _looks_like_a_record(names: list[str]) -> bool:
    """Whether most names are numbers, and not those that one counts columns or years by.

    >>> _looks_like_a_record(["54", "1.7", "f", "yes"]), _looks_like_a_record(["2019", "2020", "y"])
    (True, False)
    """
    return 2 * sum(map(_is_number, names)) >= len(names) and not _counted(names)


def _counted(names: list[str]) -> bool:
    """Whether the numbers among the names go up by one."""
    numbers = [float(name) for name in names if _is_number(name)]
    return bool(numbers) and numbers == [numbers[0] + place for place in range(len(numbers))]


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise ValueError("a field is there twice")
    return record
