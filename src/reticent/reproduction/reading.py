"""Reading a table's TOML: nothing unknown is passed over, and errors name the file and the key."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from reticent import methods
from reticent.cli.settings import Settings, checked
from reticent.errors import OptionError, among

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
_WORDS: dict[type, str] = {
    str: "text",
    int: "a whole number",
    bool: "true or false",
    dict: "a table",
    list: "a list",
}
# settings that a method without an ε may have no use for
_PRIVATE = ("epsilon", "delta")
_CLIPPED = ("batch", "clip", "clipping", "noise")
# who runs a table decides these, not the table
_NOT_IN_TABLES = ("seed", "device", "root")


def read_toml(text: str, source: str) -> dict[str, Any]:
    """The content of a TOML file."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError("table", source, f"is not TOML: {error}") from None


class Reader:
    """A TOML table that is read key by key; keys nobody asked for are refused by `done`."""

    def __init__(self, values: Mapping[str, Any], source: str, at: str = "") -> None:
        self._left = dict(values)
        self._asked: list[str] = []
        self.source = source
        self.at = at

    def name(self, key: str) -> str:
        """The key with the path that leads to it."""
        return f"{self.at}.{key}" if self.at else key

    def refuse(self, key: str, value: Any, hint: str) -> OptionError:
        """An error that names file, key and value."""
        return OptionError(self.name(key), value, f"in {self.source}: {hint}")

    def has(self, key: str) -> bool:
        """Whether the key is still to be read."""
        return key in self._left

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        """A value of this type; one that is not there and has no default is refused."""
        self._asked.append(key)
        if key not in self._left:
            if default is None:
                raise OptionError(self.name(key), None, f"in {self.source}: must be given")
            return default
        value = self._left.pop(key)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.refuse(key, value, f"must be {_WORDS[kind]}")
        return value

    def anything(self, key: str) -> Any:
        """A value of any type, None where there is none."""
        self._asked.append(key)
        return self._left.pop(key, None)

    def optional(self, key: str, kind: type[T]) -> T | None:
        """The same, or None."""
        if key in self._left:
            return self.take(key, kind)
        self._asked.append(key)
        return None

    def texts(self, key: str, known: Callable[[str], object] | None = None) -> tuple[str, ...]:
        """A list of texts, each of which `known` may refuse."""
        values = self.take(key, list, [])
        for value in values:
            if not isinstance(value, str):
                raise self.refuse(key, value, "must be a list of texts")
            if known is not None:
                try:
                    known(value)
                except OptionError as error:
                    raise self.refuse(key, value, error.hint) from None
        return tuple(values)

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        """One of these texts."""
        value = self.take(key, str, default)
        if value not in choices:
            raise self.refuse(key, value, f"must be one of {among(value, choices)}")
        return value

    def inner(self, key: str) -> Reader:
        """A table within this one; an empty one where there is none."""
        return Reader(self.take(key, dict, {}), self.source, self.name(key))

    def settings(self, key: str) -> dict[str, Any]:
        """A table whose keys are settings of a training."""
        return self.checked(self.take(key, dict, {}), self.name(key))

    def rest(self) -> dict[str, Any]:
        """All that is left, as settings of a training."""
        left, self._left = self._left, {}
        return self.checked(left, self.at)

    def checked(self, values: dict[str, Any], at: str) -> dict[str, Any]:
        """Refuse what is no setting, or not for a table to say."""
        for name in _NOT_IN_TABLES:
            if name in values:
                raise OptionError(
                    f"{at}.{name}", values[name], f"in {self.source}: is not for a table to say"
                )
        return checked(values, f"{self.source}, [{at}]")

    def done(self) -> None:
        """Refuse what nobody asked for."""
        for key, value in self._left.items():
            known = among(key, self._asked)
            raise self.refuse(key, value, f"no such key here; known: {known}")


def numbers(reader: Reader, key: str, value: Any, count: int | None) -> tuple[float | None, ...]:
    """`count` numbers, or one for None; `nan` is a number that the paper does not have."""
    values = [value] if count is None else value
    if not isinstance(values, list):
        raise reader.refuse(key, value, f"must be a list of {count} numbers, one for each column")
    if count is not None and len(values) != count:
        raise reader.refuse(key, value, f"has {len(values)} numbers for {count} columns")
    for one in values:
        if isinstance(one, bool) or not isinstance(one, (int, float)) or math.isinf(one):
            raise reader.refuse(key, one, "must be a number" if count is None else "is no number")
    return tuple(without_nan(values))


def without_nan(values: Sequence[Any]) -> list[Any]:
    """`nan`, with which a list leaves a place empty, as None."""
    return [None if isinstance(one, float) and math.isnan(one) else one for one in values]


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Layers on top of each other; tables within them are merged too.

    >>> merged({"batch": 1, "method_options": {"k": 2}}, {"method_options": {"least": 0.1}})
    {'batch': 1, 'method_options': {'k': 2, 'least': 0.1}}
    """
    found: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            if isinstance(value, dict):
                value = merged(found.get(key) or {}, value)
            found[key] = value
    return found


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as tables within tables.

    >>> nested({"method_options.k": 5, "lr": 1})
    {'method_options': {'k': 5}, 'lr': 1}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        for part in reversed(key.split(".")[1:]):
            value = {part: value}
        found = merged(found, {key.split(".")[0]: value})
    return found


def flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Tables within tables as dotted keys.

    >>> flat({"method_options": {"k": [1, 2]}, "lr": [1, 2]})
    {'method_options.k': [1, 2], 'lr': [1, 2]}
    """
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{before}{key}"
        found |= flat(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return found


def with_floats(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that are numbers with a point written as such: 1 and 1.0 are the same table."""
    kinds = {field.name: str(field.type) for field in fields(Settings)}
    return {
        name: float(value) if kinds[name].startswith("float") and isinstance(value, int) else value
        for name, value in values.items()
    }


def without_unused(values: dict[str, Any], own: dict[str, Any], where: str) -> dict[str, Any]:
    """Settings without those that the table gives to all rows and this method has no use for.

    What a row itself says must mean something.
    """
    try:
        card = methods.describe(values.get("method", Settings.method))
    except OptionError as error:
        raise OptionError("method", error.value, f"in {where}: {error.hint}") from None
    takes = {option.name for option in card.options}
    private = card.guarantee == "differential-privacy"
    if private and not values.get("non_private"):
        return values
    unused = {*_PRIVATE, "noise"} if private else {*_PRIVATE, *_CLIPPED} - takes
    for name in sorted(unused & set(own)):
        raise OptionError(
            name,
            own[name],
            f"in {where}: means nothing for {card.name} without an ε; a row that has the same "
            "value in every column says single = true",
        )
    return {name: value for name, value in values.items() if name not in unused}
