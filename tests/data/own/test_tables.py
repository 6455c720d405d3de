"""Text files as tables, and every way in which one can be wrong."""

from __future__ import annotations

import csv
import io
import random

import pytest

from reticent.data.own.tables import read_delimited, read_jsonl, table_of
from reticent.errors import DataError


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_quoted_fields_and_any_separator(csv_file, delimiter):
    chance = random.Random(3)
    alphabet = 'ab ",;\t|\n'
    rows = [["".join(chance.choices(alphabet, k=5)) for _ in range(3)] for _ in range(50)]
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter).writerows([["x", "y", "z"], *rows])
    table = read_delimited(csv_file(text.getvalue()))
    assert list(table.columns) == ["x", "y", "z"]
    found = list(zip(*table.columns.values(), strict=True))
    assert found == [tuple(cell.strip() for cell in row) for row in rows]


def test_what_is_quoted_in_the_header_separates_nothing(csv_file):
    table = read_delimited(csv_file('a;"b, in m, or so"\n1;2\n'))
    assert table.columns == {"a": ["1"], "b, in m, or so": ["2"]}


def test_lines_are_counted_as_an_editor_counts_them(csv_file):
    table = read_delimited(csv_file('a,b\n1,"two\nlines"\n\n3,4\n'))
    assert list(table.places) == [3, 5]
    assert table.where(1, "b").endswith("table.csv: line 5, column 'b'")


def test_line_ends_and_byte_order_marks_of_other_systems(csv_file):
    table = read_delimited(csv_file(b"\xef\xbb\xbfa,b\r\n1,2\r\n"))
    assert table.columns == {"a": ["1"], "b": ["2"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n1,2,3\n", "line 3 has 3 fields, the header has 2"),
        ("a,b\n1,2\n1\n", "line 3 has 1 fields"),
        ("a,b,a\n1,2,3\n", "two columns are called 'a'"),
        ("a,,c\n1,2,3\n", "column 2 of the header has no name"),
        ("1,2\n3,4\n", "the first line holds numbers, not names"),
        ("54,1.71,f,yes\n31,1.8,m,no\n", "most of the first line are numbers, as in a record"),
        ("", "is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "expected a CSV file, found a binary file"),
        ("a,b\n1,caf\u00e9\n".encode("latin1"), "line 2 is not UTF-8 (byte 0xe9)"),
        ('a,b\n1,"2"x\n', "line 2 is not CSV"),
        ('a,b\n1,"2\n', "is not CSV"),
    ],
)
def test_what_is_wrong_with_a_csv_file_is_named(csv_file, content, message):
    with pytest.raises(DataError, match=r"table\.csv") as caught:
        read_delimited(csv_file(content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"a": 1}\n{"a": 1, "b": 2}\n', "line 2 has a field 'b'"),
        ('{"a": [1]}\n', "line 1, field 'a': expected text or a number, found a list"),
        ('{"a": 1}\nnope\n', "line 2 is not a JSON object"),
        ("[1]\n", "line 1 is not a JSON object"),
        ('{"a": 1, "a": 2}\n', "a field is there twice"),
        (b'{"a": "\xe9"}\n', "line 1 is not UTF-8"),
    ],
)
def test_what_is_wrong_with_json_lines_is_named(csv_file, content, message):
    with pytest.raises(DataError) as caught:
        read_jsonl(csv_file(content, "lines.jsonl"))
    assert message in str(caught.value)


def test_a_field_that_is_left_out_is_missing(csv_file):
    table = read_jsonl(csv_file('{"a": 1, "b": "x"}\n\n{"a": null}\n', "lines.jsonl"))
    assert table.columns == {"a": [1, None], "b": ["x", None]}
    assert list(table.places) == [1, 3]


def test_columns_in_memory_must_fit():
    with pytest.raises(DataError, match="different lengths"):
        table_of({"a": [1, 2], "b": [1]})
    with pytest.raises(DataError, match="one value a record"):
        table_of({"a": [[1, 2]]})


def test_columns_may_be_called_by_numbers(csv_file):
    assert list(read_delimited(csv_file("0,1,2,ill\n5,6,7,no\n")).columns) == ["0", "1", "2", "ill"]
    assert "2019" in read_delimited(csv_file("2019,2020,ill\n5,6,no\n")).columns
