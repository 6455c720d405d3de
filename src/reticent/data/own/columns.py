"""What each column of a table is, and how it becomes numbers.

Kinds and bounds that are stated are public. A kind that is inferred comes from a look at the
records, which no ledger charges: it is noted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from reticent.data.own.options import listed
from reticent.data.own.tables import Table, cell_text
from reticent.encoders import ENVIRONMENT, about, where
from reticent.errors import DataError, OptionError, among, finite, meant

KINDS = ("numeric", "category", "text", "sentences", "ignore")
OF_TEXT = ("text", "sentences")
CATEGORY_BUCKETS = 64
TEXT_BUCKETS = 4096
MOST_BUCKETS = 1 << 20
LOG_REACH = 6
"""Without bounds, numbers count up to ±10^6: a public guess."""
COMMAS = (
    "it has a comma where a point is expected: write 3.14, not 3,14, and 1000, not 1,000 (in "
    'pandas: read_csv(FILE, sep=";", decimal=",").to_csv(NEW, index=False))'
)
_WITH_COMMA = re.compile(r"\s*[+-]?[\d.]*,\d[\d,.]*([eE][+-]?\d+)?\s*")
_MISSING = frozenset(("", "na", "n/a", "null", "none", "?"))
_MOST_CATEGORIES = 1000
_WORDS_OF_TEXT = 3.0  # more on average: text


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: as in the header.
        kind: one of `KINDS`.
        bounds: public bounds of numbers.
        values: the public list of categories.
        buckets: how many buckets categories or words are hashed into, where there is no list; of
            sentences, how many numbers the encoder makes of them.
        encoder: the fingerprint of that encoder's files.
        inferred: whether the kind was found by looking at the records.
    """

    name: str
    kind: str
    bounds: tuple[float, float] | None = None
    values: tuple[str, ...] = ()
    buckets: int = 0
    encoder: str = ""
    inferred: bool = False

    @property
    def width(self) -> int:
        """How many numbers it becomes; public."""
        if self.kind == "numeric":
            return 2
        if self.kind == "category":
            return (len(self.values) or self.buckets) + 1
        return self.buckets if self.kind in OF_TEXT else 0

    @property
    def private(self) -> bool:
        """Whether its numbers have no public scale."""
        return self.kind == "numeric" and self.bounds is None

    @property
    def how(self) -> str:
        """How it becomes numbers, in words."""
        if self.kind == "numeric" and self.bounds is not None:
            return f"{range_text(self.bounds)} to [-1, 1], 1 if missing"
        if self.kind == "numeric":
            return f"log scale, ±1e{LOG_REACH} to [-1, 1], then mean and variance; 1 if missing"
        if self.kind == "category" and self.values:
            return f"one of {len(self.values)} stated values, or another or none"
        if self.kind == "category":
            return f"hashed into {self.buckets} buckets, or missing"
        if self.kind == "text":
            return f"words and pairs of words, hashed into {self.buckets} signed counts, length 1"
        if self.kind == "sentences":
            return f"{self.buckets} numbers by the encoder of ${ENVIRONMENT}, length 1"
        return "left out"

    @property
    def cost(self) -> str:
        """What that costs, in words."""
        if self.kind == "sentences":
            return "free if no record taught the encoder"
        return "mean and variance are charged" if self.private else "free"


def range_text(bounds: tuple[float, float]) -> str:
    """Bounds as people write them.

    >>> range_text((0, 1e6))
    '0..1,000,000'
    """
    return "..".join(f"{end:,.10g}" for end in bounds)


def is_missing(cell: Any) -> bool:
    """Whether a cell of a numeric or category column holds nothing."""
    return cell is None or (isinstance(cell, str) and cell.strip().lower() in _MISSING)


def to_number(cell: Any) -> float | None:
    """The number in a cell, or None where there is none."""
    if isinstance(cell, (int, float)):
        try:
            return float(cell)
        except OverflowError:
            return math.inf
    if not isinstance(cell, str) or "_" in cell:
        return None
    try:
        return float(cell)
    except ValueError:
        return None


def has_comma(cell: Any) -> bool:
    """Whether a cell is a number but for its commas; which they are, nobody can tell for certain.

    >>> has_comma("3,14"), has_comma("1,234.5"), has_comma("3.14"), has_comma("a, b")
    (True, True, False, False)
    """
    return isinstance(cell, str) and _WITH_COMMA.fullmatch(cell) is not None


def plan_columns(table: Table, stated: Sequence[str], bounds: Sequence[str]) -> tuple[Column, ...]:
    """What every column is: as stated, or else as it looks."""
    names = list(table.columns)
    if not names:
        raise DataError(f"{table.origin}: there is no column besides the target")
    wanted = _parse_columns(stated, names)
    limits, everywhere = _parse_bounds(bounds, names)
    planned = []
    for name in names:
        column = wanted.get(name) or wanted.get("*")
        if column is not None:
            column = replace(column, name=name)
        elif name in limits:
            column = Column(name, "numeric")  # bounds say as much
        else:
            column = _inferred(table, name)
        given = limits.get(name, everywhere if column.bounds is None else None)
        if name in limits and (column.kind != "numeric" or column.bounds is not None):
            raise OptionError(
                "bounds", f"{name}=...", f"column {name!r} is {column.kind} with its own options"
            )
        if given is not None and column.kind == "numeric":
            column = replace(column, bounds=given)
        planned.append(column)
    if all(column.kind == "ignore" for column in planned):
        raise DataError(f"{table.origin}: no column is left to learn from; all are ignored")
    return tuple(planned)


def by_star(table: Table, stated: Sequence[str], bounds: Sequence[str]) -> list[str]:
    """The columns that only `*` speaks of."""
    names = list(table.columns)
    wanted, (limits, _) = _parse_columns(stated, names), _parse_bounds(bounds, names)
    return [name for name in names if "*" in wanted and name not in wanted and name not in limits]


def private_places(columns: Iterable[Column]) -> tuple[int, ...]:
    """Where in a record the numbers are that have no public scale."""
    found, start = [], 0
    for column in columns:
        if column.private:
            found.append(start)
        start += column.width
    return tuple(found)


def _parse_columns(words: Iterable[str], names: list[str]) -> dict[str, Column]:
    found: dict[str, Column] = {}
    for word in words:
        # a name may hold colons itself: the longest that fits
        fits = [name for name in (*names, "*") if word.startswith(f"{name}:")]
        if not fits:
            raise OptionError(
                "columns",
                word,
                "must be NAME:KIND or NAME:KIND:OPTIONS with a column of "
                f"{listed(names)}, or * for all others{meant(word.partition(':')[0], names)}",
            )
        name = max(fits, key=len)
        if name in found:
            raise OptionError("columns", word, f"{name!r} is there twice")
        kind, _, options = word[len(name) + 1 :].partition(":")
        found[name] = _stated(word, name, kind, options)
    return found


def _stated(word: str, name: str, kind: str, options: str) -> Column:
    if kind not in KINDS:
        raise OptionError(
            "columns", word, f"the kind of {name!r} must be one of {among(kind, KINDS)}"
        )
    if kind == "numeric":
        return Column(name, kind, bounds=parse_range("columns", word, options) if options else None)
    if kind == "category":
        if not options or options.isdecimal():
            return Column(name, kind, buckets=_buckets(word, options, CATEGORY_BUCKETS))
        values = tuple(value.strip() for value in options.split(","))
        if len(set(values)) != len(values) or "" in values:
            raise OptionError("columns", word, "the list of values has one twice, or an empty one")
        return Column(name, kind, values=values)
    if kind == "text" and (not options or options.isdecimal()):
        return Column(name, kind, buckets=_buckets(word, options, TEXT_BUCKETS))
    if options:
        raise OptionError("columns", word, f"{kind} takes no option {options!r}")
    if kind == "sentences":
        if where() is None:
            hint = f"name a sentence encoder's folder in ${ENVIRONMENT}"
            raise OptionError("columns", word, hint)
        try:
            width, encoder = about()
        except OptionError as error:
            told = f"${ENVIRONMENT} = {error.value}: {error.hint}"
            raise OptionError("columns", word, told) from None
        return Column(name, kind, buckets=width, encoder=encoder)
    return Column(name, kind)


def _buckets(word: str, options: str, default: int) -> int:
    count = int(options or default)
    if not 2 <= count <= MOST_BUCKETS:
        raise OptionError(
            "columns", word, f"its number of buckets must lie in [2, {MOST_BUCKETS:,}]"
        )
    return count


def _parse_bounds(
    words: Iterable[str], names: list[str]
) -> tuple[dict[str, tuple[float, float]], tuple[float, float] | None]:
    found: dict[str, tuple[float, float]] = {}
    everywhere = None
    for word in (piece for several in words for piece in _pieces(several, names)):
        name, equals, limits = word.rpartition("=")
        if not equals:
            everywhere = parse_range("bounds", word, limits)
        elif name not in names:
            works = f"{listed(names)}{meant(name, names)}"
            raise OptionError("bounds", word, f"must name a column of {works}")
        else:
            found[name] = parse_range("bounds", word, limits)
    return found, everywhere


def _pieces(word: str, names: list[str]) -> list[str]:
    """`a=0..1,b=0..2` as two; a comma or an equals sign may belong to a column's name."""
    if word.count("=") < 2 or word.rpartition("=")[0] in names:
        return [word]
    return re.split(",(?=[^,]*=)", word)


def parse_range(option: str, word: str, limits: str) -> tuple[float, float]:
    """`LOW..HIGH` as two numbers; `word` is what the message shows."""
    low, dots, high = limits.partition("..")
    try:
        ends = finite(option, float(low)), finite(option, float(high))
    except ValueError:
        dots = ""
        ends = (0.0, 0.0)
    if not dots or ends[0] >= ends[1] or not math.isfinite(ends[1] - ends[0]):
        raise OptionError(option, word, "bounds are LOW..HIGH, finite, LOW below HIGH: 0..120")
    return ends


def _inferred(table: Table, name: str) -> Column:
    """What a column looks like; this looks at the records."""
    cells = table.columns[name]
    if name in table.typed:
        return Column(name, "numeric")  # the file's schema says so, not its records
    present = [cell for cell in cells if not is_missing(cell)]
    if not present:
        return Column(name, "ignore", inferred=True)
    if all(isinstance(cell, bool) for cell in present):
        return Column(name, "numeric", bounds=(0.0, 1.0), inferred=True)  # true is 1
    if all(to_number(cell) is not None and not isinstance(cell, bool) for cell in present):
        return Column(name, "numeric", inferred=True)
    row = next((row for row, cell in enumerate(cells) if has_comma(cell)), None)
    if row is not None and all(to_number(c) is not None or has_comma(c) for c in present):
        raise DataError(
            f"{table.where(row, name)}: looks like a number, but {COMMAS}; if it is a category, "
            f"say --columns {name}:category"
        )
    words = sum(len(str(cell).split()) for cell in present) / len(present)
    if words > _WORDS_OF_TEXT:
        return Column(name, "text", buckets=TEXT_BUCKETS, inferred=True)
    different = len({cell_text(cell) for cell in present})
    if different > _MOST_CATEGORIES or different > max(20, len(present) / 2):
        raise DataError(
            f"{table.origin}: column {name!r} has {different:,} different values in "
            f"{len(present):,} records, more than a category has: say --columns {name}:ignore, "
            f"{name}:text, or {name}:category:BUCKETS to hash them"
        )
    return Column(name, "category", buckets=CATEGORY_BUCKETS, inferred=True)
