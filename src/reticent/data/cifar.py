"""CIFAR-10 and CIFAR-100 in their published forms: pickles, binary records, PNG sprites.

All three give the same arrays: images [n, 32, 32, 3] (height, width, RGB) and labels, in the
original order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from reticent.data.archives import Blob
from reticent.data.catalog import Entry
from reticent.data.pickles import byte_array, label_list, read_pickle
from reticent.data.png import decode_png
from reticent.errors import DataError

Arrays = dict[str, NDArray[np.generic]]
Bytes = NDArray[np.uint8]

_BATCHES = tuple(f"data_batch_{k}" for k in range(1, 6))
PICKLES_10 = (*_BATCHES, "test_batch")
BINARY_10 = tuple(f"{name}.bin" for name in PICKLES_10)
# the labels' file names are misspelt in the package itself
SPRITES_10 = (
    *(f"{name}.png" for name in PICKLES_10),
    "train_lables.json",
    "test_lables.json",
)
PICKLES_100 = ("train", "test")
BINARY_100 = ("train.bin", "test.bin")


def read_pickles(entry: Entry, files: Mapping[str, Blob]) -> Arrays:
    """From the "python version": one pickled dictionary per batch."""
    key = "fine_labels" if entry.n_classes == 100 else "labels"

    def images_and_labels(blob: Blob, count: int) -> tuple[Bytes, Bytes]:
        found = read_pickle(blob)
        if "data" not in found or key not in found:
            raise DataError(f"{blob.name}: expected keys data and {key}, found {sorted(found)}")
        planes = byte_array(blob, found["data"], (count, 3072))
        return _from_planes(planes), label_list(blob, found[key], count)

    return _named(*_batches(entry, files, "", images_and_labels))


def read_binary(entry: Entry, files: Mapping[str, Blob]) -> Arrays:
    """From the "binary version": per image its label(s) and 3,072 bytes of colour planes."""
    labels = 2 if entry.n_classes == 100 else 1  # CIFAR-100: coarse label, then fine label
    record = labels + 3072

    def images_and_labels(blob: Blob, count: int) -> tuple[Bytes, Bytes]:
        if len(blob.data) != count * record:
            raise DataError(
                f"{blob.name}: expected {count} records of {record} bytes = {count * record}, "
                f"found {len(blob.data)}"
            )
        rows = np.frombuffer(blob.data, np.uint8).reshape(count, record)
        return _from_planes(rows[:, labels:]), rows[:, labels - 1]

    return _named(*_batches(entry, files, ".bin", images_and_labels))


def read_sprites(entry: Entry, files: Mapping[str, Blob]) -> Arrays:
    """From PNG sprites: each row of pixels is one image, row by row; the labels are JSON lists."""
    labels = iter(
        np.concatenate(
            [
                _json_labels(files["train_lables.json"], entry.n_train),
                _json_labels(files["test_lables.json"], entry.n_test),
            ]
        ).tolist()
    )

    def images_and_labels(blob: Blob, count: int) -> tuple[Bytes, Bytes]:
        pixels = decode_png(blob, count, 1024).reshape(count, 32, 32, 3)
        return pixels, np.array([next(labels) for _ in range(count)], np.uint8)

    return _named(*_batches(entry, files, ".png", images_and_labels))


def _json_labels(blob: Blob, count: int) -> Bytes:
    try:
        found = json.loads(blob.data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{blob.name}: expected a JSON list of labels, found {error}") from error
    return label_list(blob, found, count)


def _from_planes(planes: Bytes) -> Bytes:
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _batches(
    entry: Entry,
    files: Mapping[str, Blob],
    suffix: str,
    read: Callable[[Blob, int], tuple[Bytes, Bytes]],
) -> tuple[list[tuple[Bytes, Bytes]], tuple[Bytes, Bytes]]:
    """Read the training batches, equal parts of the training split, and then the test batch."""
    *train, test = PICKLES_100 if entry.n_classes == 100 else PICKLES_10
    each = entry.n_train // len(train)
    return [read(files[name + suffix], each) for name in train], read(
        files[test + suffix], entry.n_test
    )


def _named(train: list[tuple[Bytes, Bytes]], test: tuple[Bytes, Bytes]) -> Arrays:
    return {
        "train_images": np.concatenate([images for images, _ in train]),
        "train_labels": np.concatenate([labels for _, labels in train]),
        "test_images": test[0],
        "test_labels": test[1],
    }
