"""What a file or folder holds, whatever its format: a table or inputs, and labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from reticent.data.catalog import CATALOG
from reticent.data.own.arrays import Arrays, array_inputs, public_bounds, read_arrays
from reticent.data.own.arrow import (
    is_image_column,
    is_saved_dataset,
    read_parquet,
    read_saved_dataset,
)
from reticent.data.own.columns import parse_range
from reticent.data.own.images import Images, decode_images, image_folders, read_images
from reticent.data.own.labels import label_texts
from reticent.data.own.options import Reading
from reticent.data.own.tables import Table, read_delimited, read_jsonl
from reticent.errors import DataError, OptionError

TABLES: dict[str, Callable[[Path], Table]] = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".parquet": read_parquet,
    ".pq": read_parquet,
}
WITH_IMAGES = (".parquet", ".pq")  # tables that can hold them
ARRAYS = (".npz", ".npy")


@dataclass(frozen=True)
class Content:
    """Records before they are split.

    Attributes:
        origin: the file, for messages.
        labels: the label of each record, as text.
        where: what a record is called in messages.
        table: its other columns, to be turned into numbers; or else
        inputs: what is numbers already, on a public scale.
        scale: the public bounds of inputs that were arrays; None: there are none.
        classes: the labels that the file's own schema states.
        source: `table`, `array` or `images`: what new records must come as.
    """

    origin: str
    labels: list[str]
    where: Callable[[int], str]
    table: Table | None = None
    inputs: Tensor | None = None
    scale: tuple[float, float] | None = None
    classes: tuple[str, ...] | None = None
    source: str = "table"


def is_own(data: str) -> bool:
    """Whether this names a file or folder, not a data set of the catalog.

    >>> is_own("digits"), is_own("people.csv"), is_own("./digits")
    (False, True, True)
    """
    if data in CATALOG:
        return False
    path = Path(data).expanduser()
    known = path.suffix.lower() in (*TABLES, *ARRAYS)
    return known or "/" in data or "\\" in data or path.exists()


def read_contents(path: Path, reading: Reading) -> tuple[Content, Content | None]:
    """The records of a file, and the test records that it keeps apart."""
    suffix = path.suffix.lower()
    try:
        found = path.exists()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    if not found:
        raise DataError(f"{path}: there is no such file or folder")
    if path.is_dir() and is_saved_dataset(path):
        train, test = read_saved_dataset(path)
        held = None if test is None else table_content(test, reading)
        return table_content(train, reading), held
    if path.is_dir():
        _refuse(reading, "an image folder", ("target", "columns", "bounds"))
        some, more = image_folders(path)
        return _folder(path, some, reading), None if more is None else _folder(path, more, reading)
    if suffix in TABLES:
        return table_content(TABLES[suffix](path), reading), None
    if suffix in ARRAYS:
        _refuse(reading, "arrays", ("columns", "side", "grey"))
        arrays, others = read_arrays(path, reading.target)
        return _array(arrays, reading), None if others is None else _array(others, reading)
    raise OptionError(
        "data", str(path), f"must be a folder or end in one of {', '.join((*TABLES, *ARRAYS))}"
    )


def table_content(table: Table, reading: Reading) -> Content:
    """The records of a table; of one with images, these alone."""
    if not len(table):
        raise DataError(f"{table.origin}: holds no records")
    target = reading.target
    if target is None and len(table.labels) == 1:
        target = next(iter(table.labels))  # the schema says which column is a class
    table.column("target", target)
    assert target is not None
    content = Content(
        table.origin,
        label_texts(table, target),
        lambda row: table.where(row, target),
        classes=table.labels.get(target),
    )
    rest = {name: cells for name, cells in table.columns.items() if name != target}
    pictures = [name for name, cells in rest.items() if is_image_column(cells)]
    if pictures:
        _refuse(reading, "images", ("columns", "bounds"))
        blobs = [cell["bytes"] for cell in rest[pictures[0]]]
        inputs = decode_images(blobs, Path(table.origin), reading.side, grey=reading.grey)
        return replace(content, inputs=inputs, source="images")
    _refuse(reading, "tables", ("side", "grey"))
    return replace(content, table=replace(table, columns=rest))


def _folder(path: Path, images: Images, reading: Reading) -> Content:
    files = [file for _, file in images]
    inputs = read_images(files, reading.side, grey=reading.grey)
    return Content(
        str(path),
        [label for label, _ in images],
        lambda row: str(files[row]),
        inputs=inputs,
        source="images",
    )


def _array(arrays: Arrays, reading: Reading) -> Content:
    bounds = None
    for word in reading.bounds:
        bounds = parse_range("bounds", word, word)
    bounds = public_bounds(arrays.inputs, bounds)
    return Content(
        arrays.origin,
        arrays.labels,
        lambda row: f"{arrays.origin}: record {row + 1}",
        inputs=array_inputs(arrays.origin, arrays.inputs, bounds),
        scale=bounds,
        source="array",
    )


def _refuse(reading: Reading, what: str, options: tuple[str, ...]) -> None:
    for option in options:
        value = getattr(reading, option)
        if value not in (None, (), False):
            raise OptionError(option, value, f"means nothing for {what}; leave it out")
