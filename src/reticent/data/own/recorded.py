"""How records became numbers, written down so that records that come later become the same.

A run keeps this in `run.json`. Nothing here needs the training records: bounds, lists and buckets
were stated, or the ledger notes that they were learned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from reticent.data.own.arrays import array_inputs, new_inputs
from reticent.data.own.arrow import is_image_column, is_saved_dataset, read_split
from reticent.data.own.columns import (
    KINDS,
    Column,
    is_missing,
    private_places,
    range_text,
    to_number,
)
from reticent.data.own.contents import ARRAYS, TABLES
from reticent.data.own.encoding import encode
from reticent.data.own.images import SUFFIXES, decode_images, new_images, read_images
from reticent.data.own.options import listed
from reticent.data.own.tables import Table, cell_text, shown_names
from reticent.errors import DataError, OptionError, one_of, whole

SOURCES = {
    "table": f"a file that ends in {', '.join(TABLES)}, or a saved data set",
    "array": f"a file that ends in {', '.join(ARRAYS)}",
    "images": f"a folder of images, a file that ends in {', '.join(SUFFIXES)}, or a saved data set",
}


@dataclass(frozen=True)
class NewRecords:
    """Records without labels, as numbers.

    Attributes:
        names: the number of each record, from 1, or its file.
        inputs: what they became.
        remarks: what their owner should know, such as values beyond the bounds; counts, no cells.
    """

    names: tuple[str, ...]
    inputs: Tensor
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recorded:
    """How one's own records became numbers.

    Attributes:
        source: `table`, `array` or `images`.
        classes: the labels, in the order of the model's outputs.
        shape: of one record.
        columns: of a table.
        bounds: the public bounds of arrays; None: there are none.
    """

    source: str
    classes: tuple[str, ...]
    shape: tuple[int, ...]
    columns: tuple[Column, ...] = ()
    bounds: tuple[float, float] | None = None

    @property
    def private_columns(self) -> tuple[int, ...]:
        """The numbers of a record that have no public scale."""
        if self.source == "array" and len(self.shape) == 1 and self.bounds is None:
            return tuple(range(self.shape[0]))
        return private_places(self.columns)

    @property
    def missing_columns(self) -> tuple[int, ...]:
        """For each of these, the number that is 1 where it is missing; -1: none is."""
        if self.source == "array":
            return (-1,) * len(self.private_columns)
        return tuple(place + 1 for place in self.private_columns)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "source": self.source,
            "classes": list(self.classes),
            "shape": list(self.shape),
            "encoding": [
                {
                    "name": column.name,
                    "kind": column.kind,
                    "bounds": None if column.bounds is None else list(column.bounds),
                    "values": list(column.values),
                    "buckets": column.buckets,
                    **({"encoder": column.encoder} if column.encoder else {}),
                }
                for column in self.columns
            ],
            "bounds": None if self.bounds is None else list(self.bounds),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recorded:
        """Read it back; KeyError, TypeError or ValueError where it is damaged.

        >>> columns = (Column("age", "numeric", bounds=(0.0, 120.0)),)
        >>> told = Recorded("table", ("no", "yes"), (2,), columns)
        >>> Recorded.from_json(told.to_json()) == told
        True
        """
        columns = tuple(
            Column(
                name=str(line["name"]),
                kind=one_of("kind", line["kind"], KINDS),
                bounds=_pair(line["bounds"]),
                values=tuple(str(value) for value in line["values"]),
                buckets=whole("buckets", line["buckets"], least=0),
                encoder=str(line.get("encoder", "")),
            )
            for line in data["encoding"]
        )
        found = cls(
            source=one_of("source", data["source"], SOURCES),
            classes=tuple(str(name) for name in data["classes"]),
            shape=tuple(whole("shape", length) for length in data["shape"]),
            columns=columns,
            bounds=_pair(data["bounds"]),
        )
        if found.source == "table" and sum(c.width for c in columns) != found.shape[0]:
            raise ValueError("the columns do not make up a record")
        return found

    def read(self, path: str | Path) -> NewRecords:
        """Turn new records into numbers as those of the training were; labels are not looked at.

        Raises:
            DataError: the file cannot be used, or lacks a column; the message names the place.
            OptionError: it is another kind of file than the model was trained on.
        """
        path = Path(path).expanduser()
        if not path.exists():
            raise DataError(f"{path}: there is no such file or folder")
        suffix = path.suffix.lower()
        table = None
        if path.is_dir() and is_saved_dataset(path):
            if not (path / "state.json").is_file():
                raise DataError(f"{path}: holds several splits; give the folder of one of them")
            table = read_split(path)
        elif path.is_file() and suffix in TABLES and self.source != "array":
            table = TABLES[suffix](path)
        if table is not None and not len(table):
            raise DataError(f"{path}: holds no records")
        if self.source == "table" and table is not None:
            try:
                return self._of_table(table)
            except DataError as error:  # what a column is was settled in training
                raise DataError(str(error).split(", or say --columns")[0]) from None
        if self.source == "images" and table is not None:
            return self._of_image_column(table)
        if self.source == "images" and (path.is_dir() or suffix in SUFFIXES):
            files = new_images(path)
            inputs = read_images(files, self.shape[-1], grey=self.shape[0] == 1)
            root = path if path.is_dir() else path.parent
            return NewRecords(tuple(str(file.relative_to(root)) for file in files), inputs)
        if self.source == "array" and suffix in ARRAYS and path.is_file():
            return self._of_array(path)
        raise OptionError(
            "data", str(path), f"must be {SOURCES[self.source]}, as this model was trained on"
        )

    def _of_table(self, table: Table) -> NewRecords:
        used = [column.name for column in self.columns if column.width]
        lacking = [name for name in used if name not in table.columns]
        if lacking:
            raise DataError(
                f"{table.origin}: has no column {listed(lacking)}, which the model was trained "
                f"with; its columns: {shown_names(table.columns)}. Where nothing is known, leave "
                "cells empty"
            )
        remarks = [text for column in self.columns for text in _remarks(table, column)]
        idle = [name for name in table.columns if name not in used]
        if idle:
            remarks.append(f"not used: {listed(idle)}")
        return NewRecords(_numbers(len(table)), encode(table, self.columns), tuple(remarks))

    def _of_image_column(self, table: Table) -> NewRecords:
        pictures = [name for name, cells in table.columns.items() if is_image_column(cells)]
        if not pictures:
            raise DataError(f"{table.origin}: has no column of images; the model takes images")
        blobs = [cell["bytes"] for cell in table.columns[pictures[0]]]
        grey = self.shape[0] == 1
        inputs = decode_images(blobs, Path(table.origin), self.shape[-1], grey=grey)
        return NewRecords(_numbers(len(table)), inputs)

    def _of_array(self, path: Path) -> NewRecords:
        inputs = array_inputs(str(path), new_inputs(path), self.bounds)
        if tuple(inputs.shape[1:]) != self.shape:
            raise DataError(
                f"{path}: records have shape {tuple(inputs.shape[1:])}, those that the model was "
                f"trained on {self.shape}"
            )
        return NewRecords(_numbers(len(inputs)), inputs)


def _pair(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    low, high = (float(end) for end in value)
    return low, high


def _numbers(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(1, count + 1))


def _remarks(table: Table, column: Column) -> list[str]:
    """How many cells of a column are none that the training could have meant."""
    if not column.width or not (column.bounds or column.values):
        return []
    present: Sequence[Any] = [c for c in table.columns[column.name] if not is_missing(c)]
    if column.bounds is not None:
        low, high = column.bounds
        beyond = sum(
            not low <= value <= high for c in present if (value := to_number(c)) is not None
        )
        told = f"beyond {range_text(column.bounds)} and counted as the nearer bound"
    else:
        beyond = sum(cell_text(cell) not in column.values for cell in present)
        told = "not on the list of the training and counted as another"
    if not beyond:
        return []
    are = "is" if beyond == 1 else "are"
    return [f"column {column.name!r}: {beyond:,} of {len(table):,} values {are} {told}"]
