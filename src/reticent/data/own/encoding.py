"""From the cells of a table to numbers, by maps that look at one record and public numbers alone.

Numbers with public bounds [a, b] become 2(x - a)/(b - a) - 1, cut to [-1, 1]. Without bounds they
are put on a signed logarithmic scale, sign(x)·log10(1 + |x|)/6 cut to [-1, 1], whose mean and
variance can then be released privately. Categories and words are hashed (Weinberger et al. 2009,
"Feature Hashing for Large Scale Multitask Learning", eq. 2) by MurmurHash3 with seed 0, so that no
list of values is taken from the records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.data.own.columns import (
    COMMAS,
    LOG_REACH,
    Column,
    has_comma,
    is_missing,
    to_number,
)
from reticent.data.own.tables import Table, cell_text
from reticent.encoders import ENVIRONMENT, TextEncoder, encoder_digest, where
from reticent.errors import DataError

Floats = NDArray[np.float32]
_PIECE = 4096  # texts at a time
MOST_DEVIATIONS = 3.0
"""Standardised numbers are cut to this, so that no outlier is longer than all else."""


def encode(table: Table, columns: Sequence[Column]) -> Tensor:
    """The records as [records, numbers], the columns side by side."""
    found = torch.zeros(len(table), sum(column.width for column in columns))
    start = 0
    for column in columns:
        if column.kind == "ignore":
            continue
        cells = table.column("columns", column.name)
        part = found[:, start : start + column.width].numpy()
        if column.kind == "numeric":
            _numeric(table, column, cells, part)
        elif column.kind == "category":
            _category(column, cells, part)
        elif column.kind == "text":
            _text(column, cells, part)
        else:
            _sentences(column, cells, part)
        start += column.width
    return found


def scaled(values: NDArray[np.float64], bounds: tuple[float, float] | None) -> NDArray[np.float64]:
    """Numbers on their public scale, in [-1, 1].

    >>> scaled(np.array([0.0, 30.0, 200.0]), (0, 120)).tolist()
    [-1.0, -0.5, 1.0]
    >>> scaled(np.array([0.0, 999.0, -1e9]), None).tolist()
    [0.0, 0.5, -1.0]
    """
    if bounds is None:
        result = np.sign(values) * np.log10(1 + np.abs(values)) / LOG_REACH
    else:
        low, high = bounds
        result = 2 * (values / 2 - low / 2) / (high / 2 - low / 2) - 1  # halves: no overflow
    return np.clip(result, -1, 1)


def standardised_columns(
    inputs: Tensor, applied: Tensor, private: Sequence[int], missing: Sequence[int]
) -> Tensor:
    """Records whose columns without a public scale are replaced by standardised ones.

    Args:
        inputs: [records, numbers].
        applied: the columns, by a private mean and variance. Missing values become 0, the mean.
        private: which of the numbers they are.
        missing: for each of these, the number that is 1 where it is missing; -1: none is.
    """
    result = inputs.clone()
    result[:, list(private)] = applied.clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)
    for column, place in zip(private, missing, strict=True):
        if place >= 0:
            result[inputs[:, place] == 1, column] = 0
    return result


def _numeric(table: Table, column: Column, cells: list[Any], part: Floats) -> None:
    values = np.zeros(len(cells))
    for row, cell in enumerate(cells):
        if is_missing(cell):
            part[row, 1] = 1
            continue
        number = to_number(cell)
        if number is None:
            hint = (
                COMMAS if has_comma(cell) else f"mend it, or say --columns {column.name}:category"
            )
            raise DataError(f"{table.where(row, column.name)}: is not a number; {hint}")
        if not np.isfinite(number):
            raise DataError(
                f"{table.where(row, column.name)}: is not finite; leave the cell empty where "
                "nothing is known"
            )
        values[row] = number
    part[:, 0] = scaled(values, column.bounds)
    part[part[:, 1] == 1, 0] = 0


def _category(column: Column, cells: list[Any], part: Floats) -> None:
    from sklearn.utils import murmurhash3_32  # here: it takes a second to import

    last = column.width - 1
    places: dict[str, int] = {value: place for place, value in enumerate(column.values)}
    for row, cell in enumerate(cells):
        if is_missing(cell) and cell_text(cell) not in places:
            part[row, last] = 1
            continue
        value = cell_text(cell)
        if value not in places:
            hashed = not column.values
            places[value] = (
                murmurhash3_32(value, seed=0, positive=True) % column.buckets if hashed else last
            )
        part[row, places[value]] = 1


def _text(column: Column, cells: list[Any], part: Floats) -> None:
    from sklearn.feature_extraction.text import HashingVectorizer

    hashing = HashingVectorizer(
        n_features=column.buckets,
        ngram_range=(1, 2),
        token_pattern=r"(?u)\b\w+\b",
        norm="l2",
        alternate_sign=True,
        dtype=np.float32,
    )
    for start, texts in _in_pieces(cells):
        part[start : start + len(texts)] = hashing.transform(texts).toarray()


def _sentences(column: Column, cells: list[Any], part: Floats) -> None:
    """By the frozen encoder that the column was planned with; nothing for an empty cell."""
    found = encoder_digest()
    if found != column.encoder:
        holds = "another" if found else "none"
        named = "names none" if where() is None else f"= {where()}, which holds {holds}"
        raise DataError(
            f"column {column.name!r}: the model was trained with a sentence encoder (fingerprint "
            f"{column.encoder}); ${ENVIRONMENT} {named}"
        )
    encoder = TextEncoder()
    for start, texts in _in_pieces(cells):
        rows = encoder(texts).numpy()
        rows[[not text.strip() for text in texts]] = 0
        part[start : start + len(texts)] = rows


def _in_pieces(cells: list[Any]) -> Iterator[tuple[int, list[str]]]:
    for start in range(0, len(cells), _PIECE):
        some = cells[start : start + _PIECE]
        yield start, ["" if _is_nothing(cell) else cell_text(cell) for cell in some]


def _is_nothing(cell: Any) -> bool:
    """Whether a text is missing; a word such as `none` is one."""
    return cell is None or (isinstance(cell, float) and cell != cell)
