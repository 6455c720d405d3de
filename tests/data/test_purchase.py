from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from reticent.data import load, purchase
from reticent.data.archives import Blob
from reticent.data.catalog import Entry
from reticent.errors import DataError

RNG = np.random.default_rng(3)
BITS = RNG.integers(0, 2, (30, 600))
CLASSES = RNG.integers(1, 101, 30)
LINES = [f"{c}," + ",".join(map(str, row)) for c, row in zip(CLASSES, BITS, strict=True)]
TABLE = ("\n".join(LINES) + "\n").encode()


@pytest.fixture
def small(shrink: Callable[..., Entry]) -> Entry:
    return shrink("purchase100", n_train=20, n_test=10)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("block", [7, 8192])
@pytest.mark.parametrize("name", ["dataset_purchase", "purchase100/a/dataset_purchase.csv", "tgz"])
def test_the_split_is_a_fixed_permutation(
    tmp_path: Path,
    make_tar: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    block: int,
) -> None:
    monkeypatch.setattr(purchase, "_BLOCK", block)
    if name == "tgz":
        make_tar(tmp_path / "dataset_purchase.tgz", {"dataset_purchase": TABLE})
    else:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(TABLE)
    order = np.random.RandomState(0).permutation(30)
    for _ in range(2):  # from the original, then from the prepared form
        splits = load("purchase100", root=tmp_path)
        inputs = torch.cat([splits.train[0], splits.test[0]])
        labels = torch.cat([splits.train[1], splits.test[1]])
        assert len(splits.train[0]) == 20
        assert inputs.dtype == torch.float32
        assert np.array_equal(inputs.numpy(), BITS[order])
        assert labels.tolist() == (CLASSES - 1)[order].tolist()
    assert (tmp_path / "purchase100.npz").stat().st_size < len(TABLE) / 3


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_ends_do_not_matter(end: bytes) -> None:
    blob = Blob("f", TABLE.replace(b"\n", end))
    bits, _ = purchase.parse_table(blob, 30, 600, 100)
    assert np.array_equal(bits, BITS)


def broken(row: int, line: str) -> bytes:
    return "\n".join([*LINES[:row], line, *LINES[row + 1 :]]).encode()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "expected 30 lines, found 0"),
        ("\n".join(LINES[:-1]).encode(), "expected 30 lines, found 29"),
        (TABLE[:-10], "line 30: expected 600 values.*found 1190 characters"),
        (broken(4, "0," + LINES[4].partition(",")[2]), "line 5: expected a class from 1 to 100"),
        (broken(4, "101," + LINES[4].partition(",")[2]), "line 5: expected a class from 1 to 100"),
        (broken(4, "-1," + LINES[4].partition(",")[2]), "line 5: expected a class from 1 to 100"),
        (broken(4, "nan," + LINES[4].partition(",")[2]), "line 5: expected a class"),
        (broken(7, LINES[7][:-1] + "2"), "line 8: expected 600 values 0 or 1"),
        (broken(7, LINES[7][:-2] + ";1"), "line 8: expected 600 values 0 or 1"),
        (broken(29, LINES[29] + ",1"), "line 30: .*found 1201 characters"),
    ],
)
def test_anything_else_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^f.*{message}"):
        purchase.parse_table(Blob("f", data), 30, 600, 100)
