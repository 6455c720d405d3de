"""Purchase-100 as published: one shopper per line, a class from 1 to 100 and then 600 bits."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from reticent.data.archives import Blob
from reticent.data.catalog import Entry
from reticent.errors import DataError

MEMBER = "dataset_purchase"
_SPLIT_SEED = 0
_BLOCK = 8192  # lines at a time: few enough to stay small, many enough to be quick


def read(entry: Entry, files: Mapping[str, Blob]) -> dict[str, NDArray[np.generic]]:
    """Split the table by a fixed public permutation of its rows."""
    rows = entry.n_train + entry.n_test
    inputs, labels = parse_table(files[MEMBER], rows, entry.shape[0], entry.n_classes)
    # the legacy generator on purpose: NumPy promises that its stream never changes
    order = np.random.RandomState(_SPLIT_SEED).permutation(rows)
    train, test = order[: entry.n_train], order[entry.n_train :]
    return {
        "train_inputs": inputs[train],
        "train_labels": labels[train],
        "test_inputs": inputs[test],
        "test_labels": labels[test],
    }


def parse_table(
    blob: Blob, rows: int, columns: int, classes: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The bits and the classes, counted from 0. No checksum is published, so every byte is read."""
    lines = blob.data.splitlines()
    if len(lines) != rows:
        raise DataError(f"{blob.name}: expected {rows} lines, found {len(lines)}")
    inputs = np.empty((rows, columns), np.uint8)
    labels = np.empty(rows, np.uint8)
    width = 2 * columns - 1  # "0,1,...,0"
    for start in range(0, rows, _BLOCK):
        block = lines[start : start + _BLOCK]
        for row, line in enumerate(block, start):
            label, _, bits = line.partition(b",")
            if not label.isdigit() or len(label) > 3 or not 1 <= int(label) <= classes:
                raise DataError(
                    f"{blob.name}, line {row + 1}: expected a class from 1 to {classes}, "
                    f"found {label[:20]!r}"
                )
            if len(bits) != width:
                raise DataError(
                    f"{blob.name}, line {row + 1}: expected {columns} values 0 or 1 between "
                    f"commas ({width} characters), found {len(bits)} characters"
                )
            labels[row] = int(label) - 1
        table = np.frombuffer(b"".join(line.partition(b",")[2] for line in block), np.uint8)
        table = table.reshape(len(block), width)
        bits_ok = (table[:, ::2] | 1) == ord("1")  # "0" is 0x30, "1" is 0x31
        bad = ~(bits_ok.all(axis=1) & (table[:, 1::2] == ord(",")).all(axis=1))
        if bad.any():
            row = start + int(np.flatnonzero(bad)[0])
            raise DataError(
                f"{blob.name}, line {row + 1}: expected {columns} values 0 or 1 between commas, "
                f"found {lines[row][:40]!r}..."
            )
        inputs[start : start + len(block)] = table[:, ::2] & 1
    return inputs, labels
