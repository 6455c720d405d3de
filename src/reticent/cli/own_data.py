"""`reticent train --data FILE`: from flags to records of one's own, and what the user is shown."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from reticent.cli.output import errors, screen
from reticent.data.own import OwnSplits, class_list, from_file, is_own
from reticent.data.own.contents import ARRAYS, TABLES, WITH_IMAGES
from reticent.data.own.options import LARGEST
from reticent.data.own.starting import SAMPLING, noise_floor, start, usable
from reticent.data.records import fingerprint
from reticent.encoders import image_encoder_side
from reticent.errors import CheckpointError, OptionError
from reticent.files import read_json

FLAGS = (
    "target",
    "test",
    "test_share",
    "split_seed",
    "classes",
    "columns",
    "bounds",
    "side",
    "grey",
)

RECORDS_FILE = "records.json"
"""Where one's own records are, and a fingerprint of them, for they may change; private as they."""
_PATHS = {"data": "the records", "test": "the test records", "target": "the labels"}

# what `resolve` has read and `prepare` is about to ask for, so that files are read once
_waiting: dict[str, OwnSplits] = {}
# what was read while `reading_once` is open
_once: dict[str, OwnSplits] | None = None


def data_options(flags: dict[str, Any]) -> dict[str, Any] | None:
    """The flags about one's own data as one table; None where there are none."""
    given = {name: flags[name] for name in FLAGS if flags.get(name) is not None}
    return given or None


def own_settings(data: str, stated: dict[str, Any], recipe: dict[str, Any]) -> dict[str, Any]:
    """Where to start on this file, with what `recipe` says of the method.

    Reads the file: settings depend on how many records and columns there are, which is public.
    """
    options = completed(data, stated.get("data_options", {}))
    path = str(Path(data).expanduser().absolute())
    if stated.get("features") == "image-encoder" and "side" not in options and _may_hold(path):
        encoder = stated.get("feature_options", {}).get("encoder", "")
        options["side"] = min(image_encoder_side(encoder), LARGEST)
    splits = _read(path, options)
    count = stated.get("n") or len(splits.train[0])
    settings = start(splits, *usable(stated.get("epsilon"), stated.get("delta")), count)
    own_start = SAMPLING.get(stated.get("method", ""))
    settings = settings if own_start is None else own_start(settings, count)
    for name, table in (("model", "model_options"), ("features", "feature_options")):
        if stated.get(name, settings.get(name)) != settings.get(name):
            settings.pop(table, None)  # they belong to the recipe's
    if stated.get("standardise") is False:
        settings.pop("standardise_noise", None)
    if recipe.get("epochs") is not None:
        settings.pop("steps", None)  # the method's recipe has a length of its own
    told = _too_noisy(splits, {**settings, **stated}, count)
    _waiting.clear()
    _waiting[_key(path, options)] = replace(splits, warnings=(*splits.warnings, *told))
    return {**settings, **recipe, "data": path, "data_options": options}


def _may_hold(path: str) -> bool:
    """Whether there may be images in there, by its kind."""
    return Path(path).is_dir() or Path(path).suffix.lower() in WITH_IMAGES


def _too_noisy(splits: OwnSplits, settings: dict[str, Any], n: int) -> list[str]:
    """A warning where private statistics cannot tell what is in the columns, from public numbers.

    Values of one column are seldom spread over more than a decade.
    """
    noise = settings.get("standardise_noise")
    if not splits.private_columns or not settings.get("standardise") or not noise:
        return []
    floor = noise_floor(splits, noise, n)
    if floor < 0.6:
        return []
    return [
        f"with {n:,} records, the means and variances of {len(splits.private_columns)} column(s) "
        f"without bounds are mostly noise (below {floor:.1f} powers of ten): state their public "
        "bounds with --bounds"
    ]


def completed(data: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options with paths and lists that mean the same from anywhere."""
    given = dict(options)
    if not is_own(data):
        for name, value in given.items():
            raise OptionError(name, value, f"means nothing for the data set {data}; leave it out")
        return given
    if isinstance(given.get("test"), str):
        given["test"] = str(Path(given["test"]).expanduser().absolute())
    if given.get("classes") is not None:
        given["classes"] = list(class_list(given["classes"]))
    return given


def load_own(data: str, options: dict[str, Any], *, fresh: bool) -> OwnSplits:
    """The records that the settings name; those just read for them unless `fresh`."""
    held = _waiting.pop(_key(data, options), None)
    return _read(data, options) if held is None or fresh else held


def show(data: str, options: dict[str, Any]) -> None:
    """Say on the screen what becomes of each column, before anything is spent."""
    splits = _waiting.get(_key(data, options))
    if splits is None:
        return
    table = Table("column", "kind", "how it becomes numbers", "cost")
    for line in splits.lines:
        table.add_row(escape(line.column), line.kind, line.how, line.cost)
    screen.print(table)
    screen.print(
        f"{splits.info.n_train:,} training and {splits.info.n_test:,} test records, "
        f"{splits.info.n_classes} classes"
    )


def warn(data: str, options: dict[str, Any]) -> None:
    """Say what the user should know, beside the output."""
    splits = _waiting.get(_key(data, options))
    for text in () if splits is None else splits.warnings:
        errors.print(f"[bold yellow]warning:[/] {escape(text)}", soft_wrap=True)


def identity(splits: OwnSplits) -> str:
    """A hash of every value that was read; as private as the records."""
    tensors = (*splits.train, *splits.test)
    return f"{fingerprint(tensors)} {'|'.join(splits.info.classes)}"


def shown_name(data: str) -> str:
    """A short name, for folders and headings."""
    return (Path(data).stem or "data") if is_own(data) else data


def published(data: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Data and options as a run tells them: files by their last name, for folders say who ran it.

    >>> published("/home/ann/pictures", {"test": "/home/ann/more", "side": 32})
    ('./pictures', {'test': './more', 'side': 32})
    """
    if not is_own(data):
        return data, options
    shown = {
        name: _last_name(value) if name in _hidden(data, options) else value
        for name, value in options.items()
    }
    return _last_name(data), shown


def hidden_paths(data: str, options: dict[str, Any]) -> dict[str, str]:
    """Where the files are that `published` names; for whoever holds the records."""
    return _hidden(data, options) if is_own(data) else {}


def located(folder: Path, data: str, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Data and options of a run that was begun before, as files that are there now.

    A file that has moved is looked for in the folder of the command; `records.json` tells others of
    the same name from it.
    """
    if not is_own(data) or Path(data).is_absolute():
        return data, options
    kept = folder / RECORDS_FILE
    try:
        paths = read_json(kept)["paths"]
        found = {"data": data, **options} | {
            name: _still_there(folder, name, Path(paths[name])) for name in _PATHS if name in paths
        }
    except FileNotFoundError:
        raise CheckpointError(
            f"{str(kept)!r} is missing, which says where the records of this run are; put it back, "
            "or begin a new run"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{str(kept)!r} cannot be read") from None
    return found.pop("data"), found


def _still_there(folder: Path, name: str, path: Path) -> str:
    if path.exists():
        return str(path)
    here = Path(path.name).absolute()
    if not here.exists():
        raise CheckpointError(
            f"{str(folder)!r}: {_PATHS[name]} of this run were read from {str(path)!r}, which is "
            f"not there now; put it back, or give the command in the folder that holds {path.name}"
        )
    return str(here)


def _hidden(data: str, options: dict[str, Any]) -> dict[str, str]:
    given = {"data": data, **{name: options[name] for name in _PATHS if name in options}}
    return {
        name: value
        for name, value in given.items()
        # a target is a column, or a file beside the data, but for an absolute path
        if isinstance(value, str) and (name != "target" or Path(value).is_absolute())
    }


def _last_name(path: str) -> str:
    """The last name, such that `is_own` holds for it."""
    name = Path(path).name
    return name if Path(name).suffix.lower() in (*TABLES, *ARRAYS) else f"./{name}"


def described(splits: OwnSplits) -> dict[str, Any]:
    """What becomes of the columns, for people and for `predict`; no counts, which --n may hide."""
    told = {} if splits.recorded is None else splits.recorded.to_json()
    return {"form": splits.form, "columns": [list(astuple(line)) for line in splits.lines], **told}


@contextmanager
def reading_once() -> Iterator[None]:
    """While this is open, a file is read once for all settings that are made from it."""
    global _once
    _once = {}
    try:
        yield
    finally:
        _once = None


def _read(data: str, options: dict[str, Any]) -> OwnSplits:
    key = _key(data, options)
    if _once is not None and key in _once:
        return _once[key]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # `warn` says it
        found = from_file(data, **options)
    if _once is not None:
        _once[key] = found
    return found


def _key(data: str, options: dict[str, Any]) -> str:
    return repr((data, sorted(options.items())))
