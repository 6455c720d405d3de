"""From labels as they are written to class numbers, by a list that should be public."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from reticent.data.own.options import listed
from reticent.data.own.tables import Table, cell_text
from reticent.errors import DataError

LEARNED = (
    "the list of classes was learned from the records: a class that only one record has would "
    "reveal it, and no ledger here charges for that; state the list with --classes"
)
_MOST_CLASSES = 1000


def label_texts(table: Table, target: str) -> list[str]:
    """The labels of a table as text; a missing one is an error."""
    names = table.labels.get(target)
    texts = []
    for row, cell in enumerate(table.column("target", target)):
        # "none" and "NA" may well be classes
        if cell is None or cell != cell or not str(cell).strip():
            raise DataError(f"{table.where(row, target)}: the label is missing; leave the row out")
        if names is not None:
            if not isinstance(cell, int) or not 0 <= cell < len(names):
                raise DataError(
                    f"{table.where(row, target)}: the label is none of the {len(names)} classes "
                    "that the file's schema lists; leave the row out"
                )
            cell = names[cell]
        texts.append(label_text(cell))
    return texts


def label_text(value: Any) -> str:
    """A label as it is listed: whole numbers without a decimal point, truth as JSON writes it.

    >>> label_text(3.0), label_text("yes"), label_text(True)
    ('3', 'yes', 'true')
    """
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return cell_text(value)


def learned_classes(
    origin: str, labels: Sequence[str], where: Callable[[int], str]
) -> tuple[str, ...]:
    """The labels that occur, numbers in their order, all else in the alphabet's."""
    found = set(labels)
    for text in found:
        if text.lower() == "nan":  # what other programs write where there is none
            raise DataError(
                f"{where(labels.index(text))}: the label is not a number (NaN); leave the row out, "
                "or list it in --classes if it is one"
            )
    if len(found) > _MOST_CLASSES or len(found) > max(20, len(labels) / 2):
        raise DataError(
            f"{origin}: the target has {len(found):,} different values in {len(labels):,} records; "
            "only classes can be learned, not numbers"
        )
    whole = all(text.lstrip("-").isdecimal() for text in found)
    return tuple(sorted(found, key=int) if whole else sorted(found))


def check_two(origin: str, labels: Sequence[str]) -> None:
    """Refuse records of one class."""
    if len(set(labels)) < 2:
        raise DataError(
            f"{origin}: all records have the same label; there is nothing to tell apart"
        )


def class_numbers(
    labels: Sequence[str], classes: Sequence[str], where: Callable[[int], str]
) -> Tensor:
    """Each label's place in the list."""
    places = {name: place for place, name in enumerate(classes)}
    for name in ("True", "False"):  # as Python writes what JSON calls true and false
        if name in places:
            places.setdefault(name.lower(), places[name])
    for row, label in enumerate(labels):
        if label not in places:
            raise DataError(
                f"{where(row)}: the label is not one of the classes: {listed(classes, 20)}; list "
                "it in --classes, as it is written, or leave the row out"
            )
    return torch.tensor([places[label] for label in labels], dtype=torch.int64)
