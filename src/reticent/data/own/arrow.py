"""Parquet files, and folders that Hugging Face's `save_to_disk` leaves, as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reticent.data.own.options import missing_extra
from reticent.data.own.tables import Table
from reticent.errors import DataError
from reticent.files import read_json

DICT, STATE, INFO = "dataset_dict.json", "state.json", "dataset_info.json"


def is_saved_dataset(path: Path) -> bool:
    """Whether a folder was left by `save_to_disk`."""
    return (path / DICT).is_file() or (path / STATE).is_file()


def read_parquet(path: Path) -> Table:
    """Read a Parquet file."""
    arrow = _pyarrow(path)
    import pyarrow.parquet as parquet

    try:
        return _table(path, parquet.read_table(path), {})
    except (arrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: is no Parquet file that can be read ({_line(error)})") from None


def read_saved_dataset(path: Path) -> tuple[Table, Table | None]:
    """The records of a saved data set, and its test split if it has one."""
    if not (path / DICT).is_file():
        return read_split(path), None
    names = [child.name for child in sorted(path.iterdir()) if (child / STATE).is_file()]
    if "train" not in names:
        raise DataError(
            f"{path}: expected a split called train, found {', '.join(names) or 'none'}"
        )
    return read_split(path / "train"), read_split(path / "test") if "test" in names else None


def read_split(path: Path) -> Table:
    """The records of one saved data set, or of one split of several."""
    arrow = _pyarrow(path)
    import pyarrow.ipc as ipc

    try:
        state = read_json(path / STATE)
        features = read_json(path / INFO).get("features") or {}
        files = [path / str(entry["filename"]) for entry in state["_data_files"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: is no whole saved data set ({_line(error)})") from None
    if state.get("_indices_files") or any(file.parent != path for file in files):
        raise DataError(f"{path}: was saved with a selection of rows; flatten_indices() it first")
    parts = []
    for file in files:
        try:
            with arrow.memory_map(str(file)) as source:
                parts.append(ipc.open_stream(source).read_all())
        except (arrow.ArrowException, OSError) as error:
            raise DataError(f"{file}: cannot be read ({_line(error)})") from None
    if not parts:
        raise DataError(f"{path}: holds no records")
    labels = {
        name: tuple(map(str, feature["names"]))
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
    }
    return _table(path, arrow.concat_tables(parts), labels)


def _table(path: Path, found: Any, labels: dict[str, tuple[str, ...]]) -> Table:
    from pyarrow import types

    names = found.column_names
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise DataError(f"{path}: two columns are called {twice[0]!r}; rename one")
    columns, typed = {}, set()
    for name in names:
        column = found.column(name)
        kind = column.type
        if types.is_dictionary(kind):
            kind = kind.value_type
        if types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            typed.add(name)
        try:
            cells = column.to_pylist()
        except (ValueError, OverflowError) as error:  # whose message may show the value
            raise DataError(
                f"{path}: column {name!r} holds {kind} values that cannot be read "
                f"({type(error).__name__})"
            ) from None
        if types.is_decimal(kind):
            cells = [None if cell is None else float(cell) for cell in cells]
        elif types.is_temporal(kind):
            cells = [None if cell is None else str(cell) for cell in cells]
        elif (types.is_nested(kind) or types.is_binary(kind)) and not is_image_column(cells):
            raise DataError(
                f"{path}: column {name!r} holds {kind}; expected numbers, text or images"
            )
        columns[name] = cells
    return Table(
        str(path), columns, range(1, found.num_rows + 1), "record", labels, frozenset(typed)
    )


def is_image_column(cells: list[Any]) -> bool:
    """Whether cells are encoded images, as Hugging Face keeps them."""
    return bool(cells) and all(
        isinstance(cell, dict) and isinstance(cell.get("bytes"), bytes) for cell in cells
    )


def _pyarrow(path: Path) -> Any:
    try:
        import pyarrow
    except ImportError:
        raise missing_extra("reading Parquet and Arrow files", "pyarrow", path) from None
    return pyarrow


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:120]
