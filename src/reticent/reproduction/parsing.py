"""From the TOML of a table to a `Table`, part by part; anything that cannot be meant is refused."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files
from typing import Any

from reticent import data as datasets
from reticent.cli.settings import Settings
from reticent.errors import ReticentError, among, meant
from reticent.reproduction import measures as known_measures
from reticent.reproduction.reading import Reader, flat, merged, numbers, without_nan
from reticent.reproduction.tables import (
    DESIGNS,
    KINDS,
    SOUND,
    TRAINING,
    VARIANTS,
    Cell,
    DataSet,
    Row,
    Table,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SHADOWS = 8
AUDITED, AUDITED_LOW = 5000, 20_000  # a rate of 0.0001 takes 10,000 non-members
_SCALARS = (str, int, float, bool)
_SETTINGS = tuple(field.name for field in fields(Settings))
_OPEN = ("method_options", "model_options", "feature_options")  # tables within the settings


def table_of(top: Reader, name: str, source: str) -> Table:
    """The table that this TOML describes."""
    kind = top.choice("kind", KINDS, TRAINING)
    columns = _columns(top)
    axis = top.optional("axis", str)
    if axis is not None:
        _check_key(top, "axis", axis, kind)
        if not columns:
            raise top.refuse("axis", axis, "means nothing without columns")
        for column in columns:
            _check_value(top, axis, column, "columns")
    trains = kind == TRAINING
    measures = top.texts("measures", known_measures.parse if trains else None)
    if not measures:
        raise top.refuse("measures", [], "name at least one")
    runs = _at_least(top, "runs", 0, 1) or None
    percent = top.texts("percent")
    for one in percent:
        if one not in measures or one in known_measures.IN_PERCENT:
            raise top.refuse("percent", one, "must be a measure of this table, between 0 and 1")
    attacks = _attacks(top, measures) if trains else ()
    shadows = _at_least(top, "shadows", SHADOWS, 2)
    if shadows % 2:
        raise top.refuse("shadows", shadows, "must be even: records are in half of them")
    low = any("@" in measure for measure in measures)
    head = {key: top.take(key, str) for key in ("paper", "name", "title")}
    table = Table(
        id=name,
        source=source,
        **head,
        kind=kind,
        measures=measures,
        percent=percent,
        attacks=attacks,
        columns=columns,
        axis=axis,
        design=top.choice("design", DESIGNS, DESIGNS[0]),
        shadows=shadows,
        audited=_at_least(top, "audited", AUDITED_LOW if low else AUDITED, 2),
        runs=runs,
        notes=top.texts("notes"),
        settings=top.settings("settings"),
        data=_data(top, bool(attacks)),
        rows=(),
    )
    rows = tuple(_row(reader, table) for reader in _readers(top))
    top.done()
    for data in table.data:
        if not any(data in row.cells for row in rows):
            raise top.refuse(f"data.{data}", None, "no row has an entry on this data set")
    if len({row.name for row in rows}) < len(rows):
        raise top.refuse("rows", [row.name for row in rows], "must have different names")
    return Table(**{**vars(table), "rows": rows})


def _at_least(top: Reader, key: str, default: int, least: int) -> int:
    value = top.optional(key, int)
    if value is not None and value < least:
        raise top.refuse(key, value, f"must be at least {least}")
    return default if value is None else value


def _columns(top: Reader) -> tuple[Any, ...]:
    columns = tuple(top.take("columns", list, []))
    for column in columns:
        if not isinstance(column, _SCALARS):
            raise top.refuse("columns", column, "must be a number or text")
    if len(set(columns)) < len(columns):
        raise top.refuse("columns", list(columns), "must be different")
    return columns


def _attacks(top: Reader, measures: tuple[str, ...]) -> tuple[str, ...]:
    """The attacks to try: those named, and those that measures name."""
    given = top.texts("attacks", lambda name: known_measures.parse(f"{name}.auc"))
    found = [known_measures.parse(measure).attack for measure in measures]
    named = [attack for attack in found if attack not in (None, known_measures.BEST)]
    together = tuple(dict.fromkeys([*given, *(attack for attack in named if attack)]))
    if known_measures.BEST in given:
        raise top.refuse("attacks", known_measures.BEST, "is not an attack")
    if known_measures.BEST in found and not together:
        raise top.refuse("attacks", [], "must name those of which the best is asked for")
    return together


def _check_key(reader: Reader, key: str, name: str, kind: str) -> None:
    """Refuse a dotted name that is neither a setting nor an option of a computation."""
    first, dot, _ = name.partition(".")
    if first == "options" and dot and kind != TRAINING:
        return
    if first not in _SETTINGS or bool(dot) != (first in _OPEN):
        works = f"{', '.join(_SETTINGS)}; an option of a method as method_options.NAME"
        works += meant(first, _SETTINGS)
        raise reader.refuse(key, name, f"must be a setting: {works}")


def _check_value(reader: Reader, name: str, value: Any, at: str) -> None:
    """Refuse a value that a setting of this dotted name cannot have."""
    first, _, rest = name.partition(".")
    if first != "options":
        reader.checked({first: {rest: value} if rest else value}, at)


def _data(top: Reader, attacked: bool) -> dict[str, DataSet]:
    outer = top.take("data", dict)
    found: dict[str, DataSet] = {}
    for name, values in outer.items():
        if not isinstance(values, dict):
            raise top.refuse(f"data.{name}", values, "must be a table")
        reader = Reader(values, top.source, f"data.{name}")
        like = reader.optional("like", str)
        if like is not None and like not in found:
            works = ", ".join(found) or "none yet"
            raise reader.refuse("like", like, f"must be a data set further up: {works}")
        base = DataSet(name, {}, name) if like is None else found[like]
        missing = reader.optional("missing", str) or base.missing
        title = reader.take("title", str, name)
        records = reader.optional("records", int)
        records = base.records if records is None else records
        if records is not None and (records < 1 or not attacked):
            raise reader.refuse(
                "records", records, "must be at least 1, and is for tables with attacks"
            )
        stated = reader.optional("bring", str) or base.bring
        settings = reader.rest()
        if name in datasets.names():
            settings.setdefault("data", name)
        settings = merged(base.settings, settings)
        bring = stated or _known_encoder(settings)
        try:
            datasets.lookup(str(settings.setdefault("data", name)))
        except ReticentError as error:
            raise top.refuse(f"data.{name}", settings["data"], str(error)) from None
        found[name] = DataSet(name, settings, title, missing, records, bring, like)
    return found


def _known_encoder(settings: Mapping[str, Any]) -> str | None:
    """How to make the file of an encoder that several tables need."""
    options = settings.get("feature_options")
    named = options.get("encoder") if isinstance(options, dict) else None
    return _encoders().get(str(named))


@cache
def _encoders() -> dict[str, str]:
    text = files("reticent.reproduction") / "encoders.toml"
    return tomllib.loads(text.read_text(encoding="utf-8"))


def _readers(top: Reader) -> list[Reader]:
    rows = top.take("rows", list)
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise top.refuse("rows", rows, "must be tables: [[rows]]")
    return [Reader(row, top.source, f"rows[{number}]") for number, row in enumerate(rows)]


def _row(reader: Reader, table: Table) -> Row:
    name = reader.take("name", str)
    reader.at = f"row {name!r}"
    sound = reader.take("sound", bool, True)
    why = reader.optional("why", str)
    if sound and why is not None:
        raise reader.refuse("why", why, "goes with sound = false")
    if not sound and why is None:
        raise reader.refuse("why", None, "must be given where sound = false")
    variants = reader.texts("variants") or (SOUND,)
    for variant in variants:
        if variant not in VARIANTS:
            raise reader.refuse("variants", variant, f"must be one of {among(variant, VARIANTS)}")
    single = reader.take("single", bool, False)
    on = reader.inner("on")
    cells: dict[str, Cell] = {}
    for data, of in table.data.items():
        if on.has(data):
            many = None if single or not table.columns else True
            cells[data] = _cell(on.inner(data), table, many)
        elif of.like in cells:
            cells[data] = cells[of.like]
    if sound and any(cell.sound for cell in cells.values()):
        raise reader.refuse("on.sound", True, "is for rows with sound = false")
    on.done()
    if not cells:
        raise reader.refuse("on", {}, "must have an entry on some data set")
    row = Row(
        name=name,
        cells=cells,
        settings=reader.settings("settings"),
        options=_options(reader, table),
        sound=sound,
        why=why,
        variants=variants,
        single=single,
    )
    reader.done()
    return row


def _options(reader: Reader, table: Table) -> dict[str, Any]:
    options = reader.take("options", dict, {})
    if options and table.kind == TRAINING:
        raise reader.refuse("options", options, "is for tables that are computed; use settings")
    return options


def _cell(reader: Reader, table: Table, many: bool | None) -> Cell:
    count = len(table.columns) if many else None
    each = {}
    for key, values in flat(reader.take("each", dict, {})).items():
        _check_key(reader, "each", key, table.kind)
        if count is None:
            raise reader.refuse("each", key, "means nothing for a single value; use settings")
        if not isinstance(values, list) or len(values) != count:
            raise reader.refuse(f"each.{key}", values, f"must be a list of {count}, one a column")
        each[key] = tuple(without_nan(values))
        for value in each[key]:
            if value is not None:
                _check_value(reader, key, value, f"{reader.at}.each")
    cell = Cell(
        settings=reader.settings("settings"),
        options=_options(reader, table),
        each=each,
        published=_numbers(reader, "published", table, count),
        spread=_numbers(reader, "spread", table, count),
        sound=reader.take("sound", bool, False),
    )
    reader.done()
    return cell


def _numbers(
    reader: Reader, key: str, table: Table, count: int | None
) -> dict[str, tuple[float | None, ...]]:
    """Numbers by measure; those of a table with a single measure need not name it."""
    given = reader.anything(key)
    if given is None:
        return {}
    if not isinstance(given, dict):
        if len(table.measures) > 1:
            works = ", ".join(f'"{measure}" = ...' for measure in table.measures)
            raise reader.refuse(key, given, f"must say of what: {{ {works} }}")
        given = {table.measures[0]: given}
    found = {}
    for measure, values in flat(given).items():
        if measure not in table.measures:
            works = ", ".join(table.measures)
            raise reader.refuse(key, measure, f"is not measured in this table: {works}")
        found[measure] = numbers(reader, key, values, count)
    return found
