"""Published tables: what was trained, what was measured, and the numbers that were printed.

A table is one TOML file: `presets/PAPER/TABLE.toml`, or one of the user's own. Its format is in
docs/reproduce.md. Its entries are complete settings: no recipe fills them in.

>>> table = load("dpsur/table2")
>>> entry = table.entries(data=["mnist"], rows=["DPSUR"], columns=[1], variants=["sound"])[0]
>>> entry.settings.batch, entry.settings.noise, entry.published
(1024, 2.0, {'accuracy': 97.93})
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from reticent import features, methods, models
from reticent.cli.settings import Settings
from reticent.errors import OptionError, ReticentError, among, meant, positive, whole
from reticent.reproduction.reading import (
    Reader,
    merged,
    nested,
    read_toml,
    with_floats,
    without_unused,
)

TRAINING = "training"
KINDS = (TRAINING, "noise", "distance", "rejection", "updates", "time")
DESIGNS = ("split", "halves", "model")
PUBLISHED, REPAIRED, SOUND = "published", "repaired", "sound"
VARIANTS = {
    PUBLISHED: "as the public code runs: rejected gradients and old losses leak; no ε",
    REPAIRED: "the same number of updates without the leaks; costs more than claimed",
    SOUND: "as many updates without the leaks as the claimed ε affords",
}
_OPTIONS = "options."  # an axis, or a key of `each`, that is of the computation


@dataclass(frozen=True)
class Cell:
    """A row on one data set: what is special there, and what the paper printed.

    `sound`: there the paper's ε is a bound, whatever it is on other data sets.
    """

    settings: dict[str, Any]
    options: dict[str, Any]
    each: dict[str, tuple[Any, ...]]
    published: dict[str, tuple[float | None, ...]]
    spread: dict[str, tuple[float | None, ...]]
    sound: bool = False


@dataclass(frozen=True)
class Row:
    """A row of a table, on each of the data sets that it has.

    Attributes:
        name: As the paper calls it.
        cells: By the table's name of the data set.
        settings: On every data set.
        options: Of the computation, on every data set.
        sound: Whether the paper's ε is a true upper bound.
        why: Why not.
        variants: Which of `VARIANTS` are run.
        single: One value, not one per column.
    """

    name: str
    cells: dict[str, Cell]
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    sound: bool = True
    why: str | None = None
    variants: tuple[str, ...] = (SOUND,)
    single: bool = False


@dataclass(frozen=True)
class DataSet:
    """What all rows share on one data set.

    Attributes:
        name: As the table's keys have it.
        settings: For every row.
        title: As the paper calls it.
        missing: Why it cannot be run here, and what it would take.
        bring: How to make the file that its features need, where the user must bring one.
        records: How many training records an attacked model has; by default as many as there are.
        like: A data set whose settings it starts from, and whose rows it has, but for its own.
    """

    name: str
    settings: dict[str, Any]
    title: str
    missing: str | None = None
    records: int | None = None
    bring: str | None = None
    like: str | None = None


@dataclass(frozen=True)
class Entry:
    """One place in a table: complete settings, and what was published there, by measure.

    Attributes:
        table: Name of the table.
        row: Name of the row.
        data: The table's name of the data set.
        column: The column's value; None for a row or table with a single one.
        variant: One of `VARIANTS`.
        settings: What is trained.
        options: What is computed, for a table that is.
        published: Numbers of the paper; None where it has none.
        spread: Its standard deviations.
        sound: Whether the paper's ε is a true upper bound.
        why: Why not.
        missing: Why this cannot be run here.
        records: How many training records an attacked model has; by default as many as there are.
        bring: How to make the file that its features need.
    """

    table: str
    row: str
    data: str
    column: Any
    variant: str
    settings: Settings
    options: dict[str, Any]
    published: dict[str, float | None]
    spread: dict[str, float | None]
    sound: bool = True
    why: str | None = None
    missing: str | None = None
    records: int | None = None
    bring: str | None = None


@dataclass(frozen=True)
class Table:
    """A published table; see the module.

    Attributes:
        id: `PAPER/TABLE`, or the stem of a file of the user's own.
        source: Where it was read.
        paper: Who published it.
        name: As the paper calls it.
        title: What it shows.
        kind: One of `KINDS`.
        measures: What is measured, as in `measures`.
        percent: Measures between 0 and 1 that are stated in percent here.
        attacks: Over which `best.METRIC` is the largest.
        columns: Values of the axis; empty for a table of a single column.
        axis: The setting that columns vary; None where they only name what `each` varies.
        design: How members and non-members are chosen for attacks.
        shadows: How many shadow models attacks have.
        audited: How many members, and as many others, are attacked at most.
        runs: How many runs the paper averages.
        notes: What the paper leaves open and was chosen here.
    """

    id: str
    source: str
    paper: str
    name: str
    title: str
    kind: str
    measures: tuple[str, ...]
    percent: tuple[str, ...]
    attacks: tuple[str, ...]
    columns: tuple[Any, ...]
    axis: str | None
    design: str
    shadows: int
    audited: int
    runs: int | None
    notes: tuple[str, ...]
    settings: dict[str, Any]
    data: dict[str, DataSet]
    rows: tuple[Row, ...]

    @property
    def variants(self) -> tuple[str, ...]:
        """Those that some row has."""
        found = {variant for row in self.rows for variant in row.variants}
        return tuple(variant for variant in VARIANTS if variant in found)

    def entries(
        self,
        *,
        data: Iterable[str] | None = None,
        columns: Iterable[Any] | None = None,
        rows: Iterable[str] | None = None,
        variants: Iterable[str] | None = None,
    ) -> list[Entry]:
        """The entries in the paper's order, or those of them that are asked for.

        A row with a single value belongs to every column.

        Args:
            data: Names of data sets.
            columns: Values of columns.
            rows: Names of rows.
            variants: Of `VARIANTS`.
        """
        asked_data = _asked("data", data, tuple(self.data))
        asked_columns = _asked("columns", columns, self.columns)
        asked_rows = _asked("rows", rows, tuple(row.name for row in self.rows))
        asked_variants = _asked("variant", variants, self.variants)
        return [
            self._entry(row, name, place, variant)
            for name in self.data
            if name in asked_data
            for row in self.rows
            if row.name in asked_rows and name in row.cells
            for variant in row.variants
            if variant in asked_variants
            for place in self._places(row)
            if row.single or not self.columns or self.columns[place] in asked_columns
        ]

    def _places(self, row: Row) -> range:
        return range(1 if row.single else max(len(self.columns), 1))

    def _entry(self, row: Row, name: str, place: int, variant: str) -> Entry:
        cell, data = row.cells[name], self.data[name]
        column = None if row.single or not self.columns else self.columns[place]
        own = [row.settings, cell.settings]
        options = merged(row.options, cell.options)
        varied = {key: values[place] for key, values in cell.each.items()}
        if column is not None and self.axis is not None:
            varied[self.axis] = column
        for key, value in varied.items():
            if value is None:  # what earlier layers have stays
                continue
            if key.startswith(_OPTIONS):
                options = merged(options, nested({key.removeprefix(_OPTIONS): value}))
            else:
                own.append(nested({key: value}))
        shared = merged({"data": name}, self.settings, data.settings)
        where = f"{self.source}, row {row.name!r} on {name}"
        return Entry(
            table=self.id,
            row=row.name,
            data=name,
            column=column,
            variant=variant,
            settings=_settings(shared, merged(*own), where, self.kind == TRAINING),
            options=options,
            published={key: values[place] for key, values in cell.published.items()},
            spread={key: values[place] for key, values in cell.spread.items()},
            sound=row.sound or cell.sound,
            why=None if cell.sound else row.why,
            missing=data.missing,
            records=data.records,
            bring=data.bring,
        )


def names() -> tuple[str, ...]:
    """The tables that come with the library."""
    found = []
    for paper in _presets().iterdir():
        if paper.is_dir():
            files = (file.name for file in paper.iterdir() if file.name.endswith(".toml"))
            found += [f"{paper.name}/{file.removesuffix('.toml')}" for file in files]
    return tuple(sorted(found, key=_in_order))


def load(name: str | Path) -> Table:
    """A table by name, or from a file of one's own; every entry of it has been checked."""
    if isinstance(name, Path) or str(name).endswith(".toml"):
        path = Path(name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError("table", str(name), f"cannot be read: {error}") from None
        return parse(text, path.stem, str(path))
    return _shipped(str(name))


@cache
def _shipped(name: str) -> Table:
    known = names()
    if name not in known:
        raise OptionError(
            "table", name, f"must be a TOML file of your own or one of {among(name, known)}"
        )
    paper, _, table = name.partition("/")
    file = _presets() / paper / f"{table}.toml"
    return parse(file.read_text(encoding="utf-8"), name, f"presets/{name}.toml")


def parse(text: str, name: str, source: str) -> Table:
    """A table from TOML; `source` is what errors call it."""
    from reticent.reproduction.parsing import table_of

    table = table_of(Reader(read_toml(text, source), source), name, source)
    for entry in table.entries():
        if table.kind == TRAINING:
            _check(entry, source)
    return table


def _settings(shared: dict[str, Any], own: dict[str, Any], where: str, trains: bool) -> Settings:
    """Complete settings; what all rows share is left out where the method has no use for it."""
    values = merged(shared, own)
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if one in own and other not in own:
            values.pop(other, None)  # whoever sets one of these speaks for both
    if trains:
        values = without_unused(values, own, where)
    return Settings(**with_floats(values))


def _check(entry: Entry, source: str) -> None:
    """Build the method, and look up the rest: refused is what cannot work, before any training."""
    from reticent.cli.building import budget_of, build_method, run_options

    settings = entry.settings
    try:
        if settings.steps is not None and settings.epochs is not None:
            raise OptionError("steps", settings.steps, "means nothing beside epochs; give one")
        if entry.variant != SOUND and settings.method != methods.DPSUR.name:
            raise OptionError("variants", entry.variant, "is for the method dpsur only")
        models.describe(settings.model)
        budget_of(settings)
        if settings.steps is not None:
            whole("steps", settings.steps, least=0)
        if settings.epochs is not None:
            positive("epochs", settings.epochs)
        run_options(settings, settings.n or 1)
        if settings.features != "none":
            features.describe(settings.features).complete(settings.feature_options)
        build_method(settings)
    except (ReticentError, TypeError) as error:
        raise OptionError(
            "table", source, f"in row {entry.row!r} on {entry.data}, column {entry.column}: {error}"
        ) from error


def _asked(option: str, given: Iterable[Any] | None, known: tuple[Any, ...]) -> tuple[Any, ...]:
    if given is None:
        return known
    asked = tuple(given)
    for value in asked:
        if value not in known:
            shown = ", ".join(str(one) for one in known) or "none: it has a single one"
            shown += meant(value, known)
            raise OptionError(option, value, f"is not in this table, which has {shown}")
    return asked


def _in_order(name: str) -> tuple[str, bool, int, str]:
    """Figures after tables; table10 after table9; figure9b after figure9a."""
    paper, _, table = name.partition("/")
    digits = "".join(letter for letter in table if letter.isdigit())
    return paper, table.startswith("figure"), int(digits or 0), table


def _presets() -> Any:
    return resources.files("reticent.reproduction") / "presets"


__all__ = [
    "KINDS",
    "VARIANTS",
    "Cell",
    "DataSet",
    "Entry",
    "Row",
    "Table",
    "load",
    "names",
    "parse",
]
