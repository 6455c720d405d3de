"""Small neighbouring data sets for audits that compare the two."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map

from reticent.data.records import as_records
from reticent.errors import DataError

SCALE = 100.0  # of an input that shall have a long gradient


def neighbours(data: Any, most: int, record: Any = None) -> tuple[Any, Any, int]:
    """(D, D with one more record at the end, number of records of D), in double precision."""
    held = as_records(data, "cpu")
    n = min(held.n, most)
    inputs, targets = held.fetch(torch.arange(n))
    if record is None:
        record = outlier(inputs, targets)
    else:
        record = tree_map(lambda value: torch.as_tensor(value)[None], record)
    if not isinstance(record, tuple) or len(record) != 2:
        raise DataError("record: must be a pair (input, target)")
    without = tree_map(_double, (inputs, targets))
    try:
        with_it = tree_map(
            lambda all_, one: torch.cat([all_, one.to(all_.dtype)]),
            without,
            tree_map(_double, record),
        )
    except (ValueError, RuntimeError) as error:
        raise DataError(f"record: does not fit the others: {error}") from None
    return without, with_it, n


def outlier(inputs: Any, targets: Any) -> tuple[Any, Any]:
    """The first record with its numbers a hundred times as large and another label."""

    def first(column: torch.Tensor) -> torch.Tensor:
        one = column[:1]
        return one * SCALE if one.is_floating_point() else one

    def label(column: torch.Tensor) -> torch.Tensor:
        if column.is_floating_point():
            return -column[:1]
        others = column[column != column[:1]]
        return others[:1] if column.dim() == 1 and len(others) else column[:1]

    return tree_map(first, inputs), tree_map(label, targets)


def _double(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value
