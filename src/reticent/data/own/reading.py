"""From a user's file or folder to splits that can be trained on.

Every map of a record looks at that record and at public numbers alone; where that is not so, such
as a list of classes learned from the records, the notes say it and with them the ledger.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reticent.data.catalog import Entry
from reticent.data.own.columns import (
    LOG_REACH,
    OF_TEXT,
    Column,
    by_star,
    plan_columns,
    range_text,
)
from reticent.data.own.contents import Content, read_contents, table_content
from reticent.data.own.encoding import encode
from reticent.data.own.labels import LEARNED, check_two, class_numbers, learned_classes
from reticent.data.own.options import TEST_SHARE, Reading, listed
from reticent.data.own.recorded import Recorded
from reticent.data.own.splits import Line, OwnSplits
from reticent.data.own.splitting import held_out
from reticent.data.own.tables import shown_names, table_of
from reticent.errors import DataError, OptionError

LEAST_RECORDS = 10
INFERRED = (
    "what the columns {names} hold was inferred from the records, and no ledger here charges for "
    "that; state it with --columns"
)
FIELDS = (
    "that there are the columns {names} was taken from the first record, and no ledger here "
    "charges for that; name them with --columns"
)
ENCODED = (
    "the columns {names} are read by a sentence encoder that was trained elsewhere: that none of "
    "the records taught it is for whoever chose it to know"
)
IN_TRAINING = (
    "most test records are, number for number, training records too: if they are the same people, "
    "nothing here is held out, and what is measured on them is not covered by ε"
)
BY_NUMBER = (
    "which records are held out follows from their numbers in the file and a public seed: ε is for "
    "a record added or removed while the others keep their numbers"
)


@dataclass(frozen=True)
class _Plan:
    """What becomes of the inputs; found once, for training and test records alike."""

    form: str
    lines: tuple[Line, ...]
    columns: tuple[Column, ...] = ()
    blocks: int = 1

    def inputs(self, content: Content) -> Tensor:
        """The records as numbers."""
        if content.table is not None:
            return encode(content.table, self.columns)
        assert content.inputs is not None
        return content.inputs


def from_file(path: str | Path, **options: Any) -> OwnSplits:
    """Read a CSV, TSV, Parquet, JSON lines, NPZ or NPY file, an image folder or a saved data set.

    Args:
        path: the file or folder.
        **options: those of `Reading`: target, test, test_share, split_seed, classes, columns,
            bounds, side and grey.

    Raises:
        DataError: the file cannot be used as it is; the message names the place.
        OptionError: an option does not fit the file.
    """
    reading, path = Reading.of(options), Path(path).expanduser()
    main, test = read_contents(path, reading)
    if reading.test is not None:
        if test is not None:
            raise OptionError("test", reading.test, f"{path} has test records of its own")
        other_path = Path(reading.test).expanduser()
        if other_path.exists() and path.exists() and other_path.samefile(path):
            raise OptionError(
                "test",
                reading.test,
                "is the training file itself: what is said of held-out records is not private",
            )
        try:
            other, its_test = read_contents(other_path, reading)
        except OptionError as error:
            raise OptionError(
                "test", reading.test, f"cannot be read as the training records are: {error}"
            ) from None
        test = its_test or other
    splits = _assembled(path.stem or "data", main, test, reading)
    for text in splits.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    return splits


def _mostly_in(some: tuple[Tensor, Tensor], others: tuple[Tensor, Tensor]) -> bool:
    """Whether more than half of the records, labels included, are among the others.

    Where the others repeat themselves, that says nothing: few values make many twins.
    """

    def spelled(records: tuple[Tensor, Tensor]) -> list[bytes]:
        return [
            one.numpy().tobytes() + label.numpy().tobytes()
            for one, label in zip(*records, strict=True)
        ]

    known = set(spelled(others))
    if 2 * len(known) <= len(others[1]):
        return False
    return 2 * sum(one in known for one in spelled(some)) > len(some[1])


def from_columns(values: Mapping[str, Any], /, *, target: str, **options: Any) -> OwnSplits:
    """The same from arrays or lists in memory, by column.

    >>> splits = from_columns(
    ...     {"age": [20, 40, 60, 80] * 10, "ill": ["no", "no", "yes", "yes"] * 10},
    ...     target="ill", classes="no,yes", columns="age:numeric:0..120",
    ... )
    >>> splits.train[0].shape[1], splits.info.classes, splits.warnings
    (2, ('no', 'yes'), ())
    """
    reading = Reading.of({**options, "target": target})
    if reading.test is not None:
        raise OptionError("test", reading.test, "means nothing for columns in memory")
    splits = _assembled("columns", table_content(table_of(values), reading), None, reading)
    for text in splits.warnings:
        warnings.warn(text, UserWarning, stacklevel=2)
    return splits


def _assembled(name: str, main: Content, test: Content | None, reading: Reading) -> OwnSplits:
    count = len(main.labels)
    if count < LEAST_RECORDS:
        raise DataError(
            f"{main.origin}: holds {count} record(s); nothing can be learned privately from fewer "
            f"than {LEAST_RECORDS}"
        )
    check_two(main.origin, main.labels)
    classes = reading.classes or main.classes
    if classes is None:
        classes = learned_classes(main.origin, main.labels, main.where)
    plan = _planned(main, reading)
    labels = class_numbers(main.labels, classes, main.where)  # first: texts may take minutes
    inputs = plan.inputs(main)
    # what follows from the records' values is for whoever holds them, and in no report
    notes, told, private = [], [], []
    if reading.classes is None and main.classes is None:
        told.append(LEARNED)
    guessed = [column.name for column in plan.columns if column.inferred]
    if guessed:
        notes.append(INFERRED.format(names=listed(guessed)))
    encoded = [column.name for column in plan.columns if column.encoder]
    if encoded:
        notes.append(ENCODED.format(names=listed(encoded)))
    if main.table is not None and not main.table.named:
        fields = by_star(main.table, reading.columns, reading.bounds)
        if fields:
            notes.append(FIELDS.format(names=listed(fields)))
    if test is None:
        share = TEST_SHARE if reading.test_share is None else reading.test_share
        apart = torch.from_numpy(held_out(count, share, reading.split_seed))
        held = inputs[apart], labels[apart]
        inputs, labels = inputs[~apart], labels[~apart]
        notes.append(BY_NUMBER)
    else:
        if reading.test_share is not None:
            raise OptionError(
                "test_share", reading.test_share, f"{test.origin} has test records; leave it out"
            )
        _check_columns(test, plan.columns, reading)
        held = plan.inputs(test), class_numbers(test.labels, classes, test.where)
        _check_alike(test, held[0], inputs)
        if _mostly_in(held, (inputs, labels)):
            private.append(IN_TRAINING)
    recorded = Recorded(
        main.source, tuple(classes), tuple(inputs.shape[1:]), plan.columns, main.scale
    )
    return OwnSplits(
        train=(inputs, labels),
        test=held,
        info=Entry(
            name=name,
            description=f"{plan.form} of {count:,} records",
            task="classification",
            classes=tuple(classes),
            n_train=len(inputs),
            n_test=len(held[0]),
            shape=tuple(inputs.shape[1:]),
            licence="yours",
            citation="yours",
        ),
        notes=(*told, *notes),
        form=plan.form,
        lines=plan.lines,
        private_columns=recorded.private_columns,
        missing_columns=recorded.missing_columns,
        blocks=plan.blocks,
        warnings=(*told, *private),
        recorded=recorded,
    )


def _planned(content: Content, reading: Reading) -> _Plan:
    if content.table is not None:
        return _planned_table(plan_columns(content.table, reading.columns, reading.bounds))
    assert content.inputs is not None
    shape = tuple(content.inputs.shape[1:])
    size = "x".join(map(str, shape))
    if len(shape) == 3:
        how = f"{size} pixels in [0, 1], each image on its own"
        return _Plan("images", (Line("image", "image", how, "free"),))
    bounds = content.scale
    if bounds is not None:
        line = Line(f"{size} numbers", "numeric", f"{range_text(bounds)} to [-1, 1]", "free")
        return _Plan("array", (line,), blocks=shape[0])
    how = f"log scale, ±1e{LOG_REACH} to [-1, 1], then mean and variance"
    line = Line(f"{size} numbers", "numeric", how, "mean and variance are charged")
    return _Plan("array", (line,), blocks=shape[0])


def _planned_table(columns: tuple[Column, ...]) -> _Plan:
    lines = tuple(
        Line(c.name, f"{c.kind} (inferred)" if c.inferred else c.kind, c.how, c.cost)
        for c in columns
    )
    used = [column for column in columns if column.width]
    return _Plan(
        form="text" if all(column.kind in OF_TEXT for column in used) else "table",
        lines=lines,
        columns=columns,
        blocks=len(used),
    )


def _check_columns(test: Content, columns: tuple[Column, ...], reading: Reading) -> None:
    """Refuse test records that lack what the training records were read by."""
    there = () if test.table is None else tuple(test.table.columns)
    lacking = [column.name for column in columns if column.width and column.name not in there]
    if not lacking:
        return
    told = (
        f"has no column {listed(lacking)}, which the training records have; its columns: "
        f"{shown_names(there) or 'none'}. Where nothing is known, leave cells empty"
    )
    if reading.test is None:
        raise DataError(f"{test.origin}: {told}")
    raise OptionError("test", reading.test, told)


def _check_alike(test: Content, held: Tensor, inputs: Tensor) -> None:
    if held.shape[1:] != inputs.shape[1:]:
        raise DataError(
            f"{test.origin}: test records have shape {tuple(held.shape[1:])}, training records "
            f"{tuple(inputs.shape[1:])}"
        )
