"""What can go wrong, said so that the reader knows what to change.

Every message names the option and the value it had, and what would work. `ReticentError` is the
one type to catch; the command line prints it without a traceback.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any


class ReticentError(Exception):
    """Base of every error this library raises on purpose."""


class OptionError(ReticentError, ValueError):
    """An option has a value that cannot work.

    `of` is the flag by which a command sets it, where that is known: options of features, models
    and methods may have one name.
    """

    of: str | None = None

    def __init__(self, option: str, value: Any, hint: str) -> None:
        super().__init__(f"{option} = {value!r}: {hint}")
        self.option = option
        self.value = value
        self.hint = hint


class DataError(ReticentError, ValueError):
    """Records, labels or a data file cannot be used as they are."""


class ModelError(ReticentError, ValueError):
    """A model cannot be trained privately as it is; the message names the module and the fix."""


class BudgetError(ReticentError):
    """A release would cost more than the budget has left."""


class TrialsExhaustedError(ReticentError):
    """A method that tries until a candidate passes found none; nothing was released."""


class AccountingError(ReticentError, ValueError):
    """An accountant is asked for something it cannot prove."""


class CheckpointError(ReticentError):
    """A checkpoint or run folder cannot be read, or belongs to another run."""


class ProbeWarning(UserWarning):
    """Made-up records say that a budget would buy little or nothing."""


class DivergenceWarning(UserWarning):
    """A training ended with a model that is of no use; what it cost stands."""


def finite(option: str, value: float) -> float:
    """Return `value` as a float, or refuse it when it is NaN or infinite."""
    if isinstance(value, (str, bytes, bool)):
        raise OptionError(option, value, "must be a number")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise OptionError(option, value, "must be a number") from None
    except OverflowError:  # a whole number beyond all floating-point ones
        raise OptionError(option, "a huge number", "must be a finite number") from None
    if not math.isfinite(number):
        raise OptionError(option, value, "must be a finite number")
    return number


def positive(option: str, value: float) -> float:
    """Return `value` as a float > 0."""
    number = finite(option, value)
    if number <= 0:
        raise OptionError(option, value, "must be greater than 0")
    return number


def not_negative(option: str, value: float) -> float:
    """Return `value` as a float >= 0."""
    number = finite(option, value)
    if number < 0:
        raise OptionError(option, value, "must be 0 or greater")
    return number


# Parameters are single-precision numbers: beyond these a step size is infinite, or 0.
LEAST_SINGLE, MOST_SINGLE = 1e-37, 1e38


def single(option: str, value: float) -> float:
    """Return `value` as a float > 0 that is neither infinite nor 0 in single precision."""
    number = positive(option, value)
    if not LEAST_SINGLE <= number <= MOST_SINGLE:
        raise OptionError(
            option,
            value,
            f"must lie in [{LEAST_SINGLE:g}, {MOST_SINGLE:g}]: parameters have single precision",
        )
    return number


def between(option: str, value: float, low: float, high: float, *, open_low: bool = False) -> float:
    """Return `value` as a float in [low, high], or (low, high] with `open_low`."""
    number = finite(option, value)
    if number > high or number < low or (open_low and number == low):
        raise OptionError(
            option, value, f"must lie in {'(' if open_low else '['}{low:g}, {high:g}]"
        )
    return number


MOST_WHOLE = 2**64


def whole(option: str, value: int, *, least: int = 1) -> int:
    """Return `value` as an int >= `least`; 3.0 is taken, 3.5 and True are not."""
    exact = isinstance(value, int) and not isinstance(value, bool)
    if not exact and (isinstance(value, bool) or finite(option, value) != int(value)):
        raise OptionError(option, value, "must be a whole number")
    if value > MOST_WHOLE:
        raise OptionError(option, f"{finite(option, value):g}", "must be at most 2^64")
    if value < least:
        raise OptionError(option, value, f"must be at least {least}")
    return int(value)


def truth(option: str, value: bool) -> bool:
    """Return a value that is True or False, nothing that merely counts as one."""
    if not isinstance(value, bool):
        raise OptionError(option, value, "must be true or false")
    return value


def one_of(option: str, value: str, choices: Any) -> str:
    """Return `value` if it is among `choices`, else list them."""
    names = [str(choice) for choice in choices]
    if value not in names:
        raise OptionError(option, value, f"must be one of {among(value, names)}")
    return value


# As alike as a slip of the keys leaves a name; `depth` is not meant for `width`.
_ALIKE = 0.7


def meant(value: Any, choices: Iterable[Any]) -> str:
    """A question to end a message with, where one of the names is close; nothing elsewhere.

    >>> meant("epsilonn", ["epsilon", "delta"]), meant("magic", ["epsilon", "delta"])
    ('; did you mean epsilon?', '')
    """
    names = {str(choice).lower(): str(choice) for choice in choices}
    near = get_close_matches(str(value).lower(), names, n=1, cutoff=_ALIKE)
    return f"; did you mean {names[near[0]]}?" if near else ""


def among(value: Any, choices: Iterable[Any]) -> str:
    """All names that would work, and which of them was meant where that is plain.

    >>> among("sclaes", ["scales", "angles"])
    'scales, angles; did you mean scales?'
    """
    names = [str(choice) for choice in choices]
    return ", ".join(names) + meant(value, names)
