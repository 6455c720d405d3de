"""Small neighbouring data sets for audits that compare the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from reticent.data.records import as_records
from reticent.errors import DataError

SCALES = (100.0, -100.0, 1.0)  # of an input that shall have a long gradient
MOST_LABELS = 12

Norms = Callable[[Any, Any], torch.Tensor]


def neighbours(
    data: Any,
    most: int,
    record: Any = None,
    norms: Norms | None = None,
    *,
    first: bool = False,
) -> tuple[Any, Any, int]:
    """(D, D with one more record, number of records of D), in double precision.

    Args:
        data: As for `reticent.run`.
        most: How many records at most.
        record: The one more, as (input, target) without a batch dimension; by default an outlier.
        norms: From a batch to its gradient norms: the outlier is the candidate with the largest.
        first: Whether it comes before the others, not after them.
    """
    held = as_records(data, "cpu")
    n = min(held.n, most)
    inputs, targets = tree_map(_double, held.fetch(torch.arange(n)))
    if record is None:
        record = outlier(inputs, targets, norms)
    else:
        record = tree_map(lambda value: _double(torch.as_tensor(value)[None]), record)
    if not isinstance(record, tuple) or len(record) != 2:
        raise DataError("record: must be a pair (input, target)")

    def joined(many: torch.Tensor, one: torch.Tensor) -> torch.Tensor:
        one = one.to(many.dtype)
        return torch.cat([one, many] if first else [many, one])

    try:
        with_it = tree_map(joined, (inputs, targets), record)
    except (ValueError, RuntimeError) as error:
        raise DataError(f"record: does not fit the others: {error}") from None
    return (inputs, targets), with_it, n


def outlier(inputs: Any, targets: Any, norms: Norms | None = None) -> tuple[Any, Any]:
    """The first record with its numbers far away and another label.

    Of several such, the one whose gradient is longest, if `norms` can tell: where a label is
    predicted already, or units are dead, there is nothing to be clipped.
    """
    columns = [leaf for leaf in tree_leaves(targets) if not leaf.is_floating_point()]
    labels = (
        columns[0].unique()[:MOST_LABELS] if len(columns) == 1 and columns[0].dim() == 1 else []
    )
    candidates = []
    for scale in SCALES:
        moved = tree_map(lambda c, by=scale: c[:1] * by if c.is_floating_point() else c[:1], inputs)
        candidates += [
            (moved, tree_map(lambda c, to=label: _other(c, to), targets)) for label in labels
        ]
        if not len(labels):
            candidates.append((moved, tree_map(lambda c: _other(c, None), targets)))
    if norms is None:
        return max(candidates, key=lambda one: _changed(one[1], targets))
    return max(candidates, key=lambda one: float(norms(*one)[0].nan_to_num(0.0)))


def _other(column: torch.Tensor, label: torch.Tensor | None) -> torch.Tensor:
    if column.is_floating_point():
        return -column[:1]
    return column[:1] if label is None else label.expand_as(column[:1])


def _changed(target: Any, targets: Any) -> bool:
    pairs = zip(tree_leaves(target), tree_leaves(targets), strict=True)
    return any(not torch.equal(one, many[:1]) for one, many in pairs)


def _double(value: torch.Tensor) -> torch.Tensor:
    return value.double() if value.is_floating_point() else value
