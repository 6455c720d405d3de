"""Numbers from cells, against formulas and a MurmurHash3 written here."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reticent.data.own.columns import Column
from reticent.data.own.encoding import encode, scaled
from reticent.data.own.tables import table_of
from reticent.errors import DataError


def murmur3(data: bytes) -> int:
    """MurmurHash3_x86_32 with seed 0 (Appleby, public domain), as an unsigned number."""
    mask, h = 0xFFFFFFFF, 0

    def mixed(k: int) -> int:
        k = k * 0xCC9E2D51 & mask
        k = (k << 15 | k >> 17) & mask
        return k * 0x1B873593 & mask

    whole = len(data) // 4 * 4
    for start in range(0, whole, 4):
        h ^= mixed(int.from_bytes(data[start : start + 4], "little"))
        h = (h << 13 | h >> 19) & mask
        h = h * 5 + 0xE6546B64 & mask
    if len(data) > whole:
        h ^= mixed(int.from_bytes(data[whole:], "little"))
    h ^= len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & mask
    h = (h ^ h >> 13) * 0xC2B2AE35 & mask
    return h ^ h >> 16


def one(cells, column):
    return encode(table_of({column.name: cells}), [column])


@given(st.floats(-1e6, 1e6), st.floats(-1e3, 1e3), st.floats(0.1, 1e3))
def test_numbers_with_public_bounds_are_put_into_the_interval(value, low, width):
    found = scaled(np.array([value]), (low, low + width))[0]
    expected = 2 * (value - low) / width - 1
    assert found == pytest.approx(min(max(expected, -1), 1), abs=1e-6)


def test_numbers_without_bounds_are_on_a_log_scale():
    values = [0.0, 9.0, -99.0, 1e6 - 1, -1e12]
    found = one(values, Column("x", "numeric"))
    expected = [0, 1 / 6, -2 / 6, 1, -1]
    torch.testing.assert_close(found[:, 0], torch.tensor(expected, dtype=torch.float32))
    assert not found[:, 1].any()


@pytest.mark.parametrize("bounds", [None, (10.0, 20.0)])
def test_a_missing_number_is_zero_and_says_so(bounds):
    found = one(["12", "", "NA", None, "?"], Column("x", "numeric", bounds=bounds))
    assert found[1:].tolist() == [[0, 1]] * 4
    assert found[0, 1] == 0


@pytest.mark.parametrize("cell", ["nan", "inf", "-Infinity", "1e999", math.nan])
def test_nan_and_infinity_are_named_by_place(cell):
    with pytest.raises(DataError, match=r"record 2, column 'x': is not finite"):
        one([1.0, cell, 2.0], Column("x", "numeric"))


def test_what_is_no_number_is_named_by_place():
    with pytest.raises(
        DataError, match=r"record 3, column 'x': is not a number; mend it"
    ) as caught:
        one(["1", "2", "1_000"], Column("x", "numeric"))
    assert "1_000" not in str(caught.value)
    with pytest.raises(DataError, match=r"record 2, column 'x': .*write 3\.14, not 3,14"):
        one(["1", "2,5"], Column("x", "numeric"))


def test_truth_values_become_what_was_stated():
    cells = [True, False, None]
    assert one(cells, Column("x", "numeric", bounds=(0.0, 1.0))).tolist() == [
        [1, 0],
        [-1, 0],
        [0, 1],
    ]
    listed = one(cells, Column("x", "category", values=("false", "true")))
    assert listed.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 1]]
    hashed = Column("x", "category", buckets=8)
    assert one(cells, hashed).tolist() == one(["true", "false", ""], hashed).tolist()


def test_categories_are_hashed_by_a_public_function():
    cells = ["Rome", "Oslo", "Århus", "", "Rome", "a longer name"]
    found = one(cells, Column("x", "category", buckets=16))
    assert found.shape == (6, 17)
    assert (found.sum(1) == 1).all()
    expected = [16 if not cell else murmur3(cell.encode()) % 16 for cell in cells]
    # scikit-learn hashes the UTF-8 bytes; its number is taken as unsigned
    assert found.argmax(1).tolist() == expected


def test_categories_of_a_public_list():
    column = Column("x", "category", values=("b", "a", "NA"))
    found = one(["a", "b", "c", "", "NA"], column)
    assert found.argmax(1).tolist() == [1, 0, 3, 3, 2]
    assert found.shape == (5, 4)


def bag(text: str, buckets: int) -> np.ndarray:
    words = re.findall(r"\w+", text.lower())
    counts = np.zeros(buckets)
    for gram in [*words, *(" ".join(pair) for pair in itertools.pairwise(words))]:
        h = murmur3(gram.encode())
        signed = h - 2**32 if h >= 2**31 else h
        counts[abs(signed) % buckets] += 1 if signed >= 0 else -1
    length = np.linalg.norm(counts)
    return counts / length if length else counts


def test_texts_are_hashed_bags_of_words_and_pairs():
    texts = ["The film was GREAT, was great!", "", "a I 7 été", "x " * 50, None]
    found = one(texts, Column("x", "text", buckets=64))
    expected = np.stack([bag(text or "", 64) for text in texts])
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_columns_stand_side_by_side_and_ignored_ones_do_not():
    table = table_of({"a": ["1", "2"], "b": ["x", "y"], "c": ["u", "v"]})
    columns = [
        Column("a", "numeric", bounds=(0, 2)),
        Column("b", "ignore"),
        Column("c", "category", values=("u", "v")),
    ]
    assert encode(table, columns).tolist() == [[0, 0, 1, 0, 0], [1, 0, 0, 1, 0]]


def test_a_record_is_encoded_alone():
    cells = {"a": ["1", "5", "", "9"], "b": ["x", "y", "", "x"], "c": ["one two", "", "b", "c d"]}
    columns = [
        Column("a", "numeric"),
        Column("b", "category", buckets=8),
        Column("c", "text", buckets=32),
    ]
    whole = encode(table_of(cells), columns)
    for row in range(4):
        alone = table_of({name: [values[row]] for name, values in cells.items()})
        assert torch.equal(encode(alone, columns)[0], whole[row])
