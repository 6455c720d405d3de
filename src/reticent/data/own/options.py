"""What can be said about a file of one's own; all of it public."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from reticent.errors import DataError, OptionError, among, between, truth, whole

TEST_SHARE = 0.2
LARGEST = 1024  # side of an image


@dataclass(frozen=True)
class Reading:
    """How a file or folder is to be read.

    Attributes:
        target: the column or array that holds the labels.
        test: a file or folder of held-out records; without it, a share of the records is held out.
        test_share: that share.
        split_seed: public seed of which records are held out.
        classes: the public list of labels; without it, the list is learned from the records.
        columns: `name:kind[:options]` for each column whose kind is stated and not inferred.
        bounds: `name=low..high` for public bounds of a numeric column, `low..high` for all.
        side: the public side that images are resized to.
        grey: images in grey, not in colour.
    """

    target: str | None = None
    test: str | None = None
    test_share: float | None = None
    split_seed: int = 0
    classes: tuple[str, ...] | None = None
    columns: tuple[str, ...] = ()
    bounds: tuple[str, ...] = ()
    side: int | None = None
    grey: bool = False

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Reading:
        """Options as they stand in a settings file, checked."""
        known = [field.name for field in fields(cls)]
        for name, value in options.items():
            if name not in known:
                raise OptionError(
                    name, value, f"is no option of one's own data; known: {among(name, known)}"
                )
        given = {name: value for name, value in options.items() if value is not None}
        for name in ("target", "test"):
            if name in given:
                given[name] = _text(name, given[name])
        if "classes" in given:
            given["classes"] = class_list(given["classes"])
        for name in ("columns", "bounds"):
            given[name] = _words(name, given.get(name, ()))
        if "test_share" in given:
            between("test_share", given["test_share"], 0.01, 0.9)
            if "test" in given:
                raise OptionError(
                    "test_share", given["test_share"], "means nothing with test; leave one out"
                )
        whole("split_seed", given.get("split_seed", 0), least=0)
        if "side" in given:
            between("side", whole("side", given["side"], least=8), 8, LARGEST)
        truth("grey", given.get("grey", False))
        return cls(**given)


def class_list(given: str | Sequence[str]) -> tuple[str, ...]:
    """The public labels: a list, `a,b,c`, or `@FILE` with one in each line.

    >>> class_list("yes, no")
    ('yes', 'no')
    """
    if isinstance(given, str) and given.startswith("@"):
        try:
            lines = Path(given[1:]).expanduser().read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError("classes", given, f"cannot be read: {error}") from None
        names = [line.strip() for line in lines if line.strip()]
    elif isinstance(given, str):
        names = [name.strip() for name in given.split(",")]
    else:
        if not isinstance(given, Sequence) or any(isinstance(x, (dict, list)) for x in given):
            raise OptionError("classes", given, "must be a list of labels")
        names = [str(name) for name in given]
    if "" in names or len(set(names)) != len(names) or len(names) < 2:
        raise OptionError(
            "classes", given, "must be two different labels or more, such as yes,no; none empty"
        )
    return tuple(names)


def _text(option: str, value: Any) -> str:
    if isinstance(value, Path):
        value = str(value)
    if not isinstance(value, str) or not value:
        raise OptionError(option, value, "must be text")
    return value


def _words(option: str, given: Any) -> tuple[str, ...]:
    """A list of words, or in Python a table: {"age": "numeric:0..120"}, {"age": (0, 120)}."""
    if isinstance(given, Mapping):
        between_them = ":" if option == "columns" else "="
        words = []
        for name, value in given.items():
            if option == "bounds" and isinstance(value, Sequence) and not isinstance(value, str):
                value = "..".join(str(end) for end in value)
            words.append(f"{name}{between_them}{value}")
        return tuple(words)
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, Sequence) or not all(isinstance(word, str) for word in given):
        example = "age:numeric:0..120" if option == "columns" else "age=0..120"
        raise OptionError(option, given, f"must be a list of words such as {example}")
    return tuple(given)


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names for a message, the first few of many: a table may have thousands of columns.

    >>> listed(["age", "city"]), listed(["a", "b", "c"], most=2)
    ('age, city', 'a, b and 1 more')
    """
    shown = [name if len(name) <= 40 else f"{name[:37]}..." for name in names[:most]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def missing_extra(what: str, package: str, path: Path) -> DataError:
    """The error where an optional package is not there."""
    return DataError(
        f"{path}: {what} needs {package}, which is not installed: pip install 'reticent[files]'"
    )
