"""Where data lives on this machine, and the compact prepared form it is kept in.

One folder holds everything: the `root` argument, else $RETICENT_DATA, else the user's cache. The
prepared form is a compressed .npz of plain byte arrays; it is read against the exact layout that
the catalog expects, so a damaged or foreign file is refused before it is used.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.data.catalog import Entry
from reticent.errors import DataError, OptionError
from reticent.files import replacing

ENVIRONMENT = "RETICENT_DATA"
Arrays = dict[str, NDArray[np.generic]]
Layout = dict[str, tuple[tuple[int, ...], str]]


def data_home(root: str | Path | None = None) -> Path:
    """The folder data is looked for in; it need not exist yet."""
    if root is not None:
        chosen = Path(root).expanduser()
    elif os.environ.get(ENVIRONMENT):
        chosen = Path(os.environ[ENVIRONMENT]).expanduser()
    else:
        cache = os.environ.get("XDG_CACHE_HOME")
        chosen = (Path(cache) if cache else Path.home() / ".cache") / "reticent"
    if chosen.exists() and not chosen.is_dir():
        raise OptionError("root", str(chosen), "is a file; expected a folder for data sets")
    return chosen


def layout(entry: Entry) -> Layout:
    """The arrays of the prepared form: their shapes and types."""
    shapes: Layout = {}
    for split, count in (("train", entry.n_train), ("test", entry.n_test)):
        if entry.vocabulary is not None:
            shapes[f"{split}_tokens"] = ((count, *entry.shape), "uint16")
            shapes[f"{split}_ids"] = ((count,), "uint16")
            shapes[f"{split}_ratings"] = ((count,), "uint8")
        elif len(entry.shape) == 1:
            shapes[f"{split}_inputs"] = ((count, *entry.shape), "uint8")
        else:
            channels, height, width = entry.shape
            colour = (channels,) if channels > 1 else ()
            shapes[f"{split}_images"] = ((count, height, width, *colour), "uint8")
        shapes[f"{split}_labels"] = ((count,), "uint8")
    return shapes


def vectors_layout(entry: Entry) -> Layout:
    """The arrays of the word vectors that go with a text data set."""
    words = (entry.vocabulary or 0) + 3
    return {"vectors": ((words, 100), "float16"), "present": ((words,), "bool")}


def prepared_path(entry: Entry, home: Path) -> Path:
    """Where the prepared form is written."""
    return home / f"{entry.stem}.npz"


def vectors_path(entry: Entry, home: Path) -> Path:
    """Where the prepared word vectors are written."""
    return home / f"{entry.stem}_glove100.npz"


def vocabulary_path(entry: Entry, home: Path) -> Path:
    """Where the words behind the tokens are written."""
    return home / f"{entry.stem}_vocab.txt"


def prepared_files(entry: Entry, home: Path) -> list[Path]:
    """The files of a complete prepared form, or nothing."""
    for name in dict.fromkeys((entry.stem, entry.name)):
        for folder in (home, home / entry.name):
            path = folder / f"{name}.npz"
            if path.is_file():
                return [path]
    if entry.name == "cifar10":
        for folder in (home, home / entry.name):
            paths = [folder / f"cifar10_train_{k}.npz" for k in range(5)]
            paths.append(folder / "cifar10_test.npz")
            if all(path.is_file() for path in paths):
                return paths
    return []


def read_prepared(entry: Entry, paths: list[Path]) -> Arrays:
    """The arrays of a prepared form."""
    if len(paths) == 1:
        return read_npz(paths[0], layout(entry))
    *_, height, width = entry.shape
    parts: list[Arrays] = []
    for path, count in zip(paths, [entry.n_train // 5] * 5 + [entry.n_test], strict=True):
        shape = (count, height, width, entry.shape[0])
        parts.append(read_npz(path, {"images": (shape, "uint8"), "labels": ((count,), "uint8")}))
    return {
        "train_images": np.concatenate([part["images"] for part in parts[:5]]),
        "train_labels": np.concatenate([part["labels"] for part in parts[:5]]),
        "test_images": parts[5]["images"],
        "test_labels": parts[5]["labels"],
    }


def read_npz(path: Path, expected: Layout) -> Arrays:
    """Read arrays that must have exactly these shapes and types; pickles are never read."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = set(archive.namelist())
            missing = [name for name in expected if f"{name}.npy" not in held]
            if missing:
                raise DataError(
                    f"{path}: expected arrays {', '.join(expected)}; missing {', '.join(missing)}"
                )
            return {
                name: _read_array(path, archive, name, shape, dtype)
                for name, (shape, dtype) in expected.items()
            }
    except DataError:
        raise
    except (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile) as error:
        raise DataError(f"{path}: expected a complete .npz file, found {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # exotic or encrypted zip members
        raise DataError(f"{path}: expected a plain .npz file, found {error}") from error


def _read_array(
    path: Path, archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: str
) -> NDArray[np.generic]:
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            found, fortran, kind = np.lib.format.read_array_header_1_0(file)
        else:
            found, fortran, kind = np.lib.format.read_array_header_2_0(file)
        if found != shape or kind != np.dtype(dtype) or (fortran and len(shape) > 1):
            raise DataError(
                f"{path}: expected {name} to be {dtype} of shape {shape} in C order, "
                f"found {kind} of shape {found}{' in Fortran order' if fortran else ''}"
            )
        size = int(np.prod(shape)) * kind.itemsize
        # one byte more than needed: reaching the end makes zipfile compare its checksum
        data = file.read(size + 1)
    if len(data) != size:
        raise DataError(f"{path}: expected {size} bytes in {name}, found {len(data)}")
    return np.frombuffer(data, kind).reshape(shape)


def write_npz(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write all or nothing."""
    with replacing(path) as file:
        np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]


def write_bytes(path: Path, data: bytes) -> None:
    """Write all or nothing."""
    with replacing(path) as file:
        file.write(data)
