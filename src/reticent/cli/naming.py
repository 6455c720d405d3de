"""Errors in the words of the command line: what the library calls `test_share` is `--test-share`.

The library names its own options; which flag sets one depends on the command. Every command is
told here to say its errors with its own flags: of several for one option that which was typed, and
what a configuration file says by the key that stands there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from reticent import features, methods, models
from reticent.cli.output import said
from reticent.cli.settings import TABLES, read_config
from reticent.errors import AccountingError, BudgetError, OptionError, ReticentError

# Names that are no flag anywhere, or not of every command: the flags that set what they mean.
MEANT_BY: dict[str, tuple[str, ...]] = {
    "buckets": ("columns",),
    "budget": ("epsilon",),
    "feature_options": ("feature",),
    "folder": ("out", "resume"),
    "high": ("clip",),
    "initial": ("clip",),
    "low": ("clip",),
    "method_options": ("set",),
    "model_options": ("model_option",),
    "multiplier": ("sigma", "noise"),
    "rate": ("batch",),
    "scheduler": ("schedule",),
    "valid_rate": ("valid_batch",),
}


_TYPED = "reticent.typed"


class Said(str):
    """A message that names flags already."""


@dataclass(frozen=True)
class Given:
    """What the user gave a command, in the user's words.

    Attributes:
        typed: the flags, and the names in NAME=VALUE after them.
        keys: of a configuration file, as they are written there, by the library's names; none that
            a flag goes over.
        file: what the file is called in messages.
    """

    typed: frozenset[str] = frozenset()
    keys: Mapping[str, str] = field(default_factory=dict)
    file: str = ""


def flags_of(context: Any) -> dict[str, str]:
    """The flags of a command and of those it belongs to, by the names the library has for them."""
    found: dict[str, str] = {}
    typed = _typed(context)
    while context is not None:
        for option in context.command.params:
            words = [word for word in getattr(option, "opts", ()) if word.startswith("--")]
            chosen = [word for word in words if word in typed]
            for word in words:
                found.setdefault(word[2:].replace("-", "_"), (chosen or [word])[0])
            if words and option.name is not None:
                found.setdefault(option.name.rstrip("_"), (chosen or words)[0])
        context = context.parent
    return found


def given_to(context: Any) -> Given:
    """What was typed, and what stands in the command's configuration file."""
    path, typed = context.params.get("config"), _typed(context)
    if path is None:
        return Given(typed)
    values: dict[str, Any] = {}
    with suppress(ReticentError):  # what is wrong with the file is said by another error
        values = read_config(path)
    flags = flags_of(context)
    keys = {name: name for name in values if flags.get(name) not in typed}
    for table in TABLES:
        keys |= {name: f"{table}.{name}" for name in values.get(table, {}) if name not in typed}
    return Given(typed, keys, f"config {str(path)!r}")


def _typed(context: Any) -> frozenset[str]:
    return frozenset(context.meta.get(_TYPED, ()))


def flag_for(
    name: str,
    flags: Mapping[str, str],
    of: str | None = None,
    typed: frozenset[str] = frozenset(),
) -> str | None:
    """What the user writes to set an option; None if this command has nothing for it.

    `of` is the flag that is meant, where several could be; what was typed after it may be no option
    at all.

    Example:
        >>> flag_for("test_share", {"test_share": "--test-share"})
        '--test-share'
        >>> flag_for("folder", {"out": "--out"})
        '--out'
        >>> flag_for("attack_lr", {"set": "--set"})
        '--set attack_lr'
    """
    if of is not None and of in flags and name in typed | _assigned()[of]:
        return f"{flags[of]} {name}"
    if name in flags:
        return flags[name]
    for word in MEANT_BY.get(name, ()):
        if word in flags:
            return flags[word]
    for word, names in _assigned().items():
        if word in flags and name in names:
            return f"{flags[word]} {name}"
    return None


@lru_cache(maxsize=1)
def _assigned() -> dict[str, frozenset[str]]:
    """What `--set`, `--feature` and `--model-option` can name, as NAME=VALUE."""
    cards: dict[str, list[Any]] = {
        "set": [methods.describe(name) for name in methods.names()],
        "feature": [features.describe(name) for name in features.names()],
        "model_option": [models.describe(name) for name in models.names()],
    }
    return {
        word: frozenset(option.name for card in some for option in card.options)
        for word, some in cards.items()
    }


def in_flags(error: ReticentError, flags: Mapping[str, str], given: Given | None = None) -> str:
    """The message of an error with flags for names; of what a file says, with its keys.

    Example:
        >>> in_flags(OptionError("test_share", 2, "is too large"), {"test_share": "--test-share"})
        '--test-share = 2: is too large'
    """
    text, given = str(error), given or Given()
    if error.args and isinstance(error.args[0], Said):
        return text
    if isinstance(error, OptionError):
        value = "" if error.value is None else f" = {error.value!r}"
        if error.hint.startswith("in "):  # a file, which has keys and no flags
            return f"{error.option}{value}: {error.hint}"
        hint = _hint(error.hint, flags)
        if error.option in given.keys:
            return f"{given.keys[error.option]}{value}: in {given.file}: {hint}"
        named = flag_for(error.option, flags, error.of, given.typed)
        return f"{named or error.option}{value}: {hint}"
    return _hint(text, flags) if isinstance(error, (BudgetError, AccountingError)) else text


def _hint(text: str, flags: Mapping[str, str]) -> str:
    """Flags where a hint has `name = value`, or a name that can be nothing but an option's."""

    def said(found: re.Match[str]) -> str:
        name, equals = found.group(1), found.group(2) or ""
        plain = "_" not in name and not equals
        return found.group() if plain or name not in flags else f"{flags[name]}{equals}"

    return re.sub(r"(?<![\w./'\"-])([a-z][a-z_]*)(?:( = )|(?![\w.(]))", said, text)


@contextmanager
def _speaking(context: Any) -> Iterator[None]:
    try:
        yield
    except ReticentError as error:
        error.args = (Said(in_flags(error, flags_of(context), given_to(context))),)
        raise


def _hear(command: Any, context: Any, args: list[str]) -> None:
    """Note what is typed, and refuse what is there but empty, as an unset shell variable leaves it.

    A path that is empty would mean the folder of the command.
    """
    typed = context.meta.setdefault(_TYPED, set())
    for word in args:
        name = word.partition("=")[0]
        typed |= {name, name.rpartition(".")[2]}
    given, _, order = command.make_parser(context).parse_args(args=list(args))
    for parameter in order:
        value = given.get(parameter.name)
        if "" in (value if isinstance(value, (list, tuple)) else (value,)):
            flag = next((word for word in parameter.opts if word in typed), parameter.opts[0])
            raise OptionError(
                flag, "", "is empty; give a value (is a shell variable not set?), or leave it out"
            )


class Command(TyperCommand):
    """A command whose errors name its flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base class, with an ear for what is typed."""
        _hear(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As the base class, with errors in the command's own words."""
        with _speaking(ctx):
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as error:
                said(error, f"stopped: {ctx.command_path} has not ended")
                raise


class Group(TyperGroup):
    """The same for commands that have others below them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As the base class, with an ear for what is typed."""
        _hear(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As the base class, with errors in the command's own words."""
        with _speaking(ctx):
            return super().invoke(ctx)


def name_flags(app: typer.Typer) -> None:
    """Make all commands of an app, and of those below it, say errors with their flags."""
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            name_flags(group.typer_instance)
