"""Files that cannot be used: one line that names the place, exit code 2, and nothing is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from reticent.cli import main

ROWS = [f"{k},{'yes' if k % 2 else 'no'}" for k in range(40)]
Make = Callable[[Path], Path]


def holding(name: str, content: str | bytes) -> Make:
    def make(here: Path) -> Path:
        (here / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return here / name

    return make


def table(*last: str, head: str = "a,y", name: str = "x.csv") -> Make:
    return holding(name, "\n".join([head, *ROWS, *last]) + "\n")


def lines(*last: str) -> Make:
    records = [json.dumps({"a": k, "y": "yes" if k % 2 else "no"}) for k in range(40)]
    return holding("x.jsonl", "\n".join([*records, *last]) + "\n")


def images(
    *, damage: Callable[[Path], object] | None = None, classes: str = "ab", count: int = 6
) -> Make:
    def make(here: Path) -> Path:
        image = pytest.importorskip("PIL.Image")
        pixels = np.random.RandomState(0).randint(0, 256, (count, 32, 32, 3)).astype(np.uint8)
        for label in classes:
            (here / "x" / label).mkdir(parents=True)
            for number, one in enumerate(pixels):
                image.fromarray(one).save(here / "x" / label / f"{number}.png")
        if damage is not None:
            damage(here / "x" / classes[-1] / "3.png")
        return here / "x"

    return make


def folder(*names: str) -> Make:
    def make(here: Path) -> Path:
        for name in names:
            (here / "x" / name).parent.mkdir(parents=True, exist_ok=True)
            (here / "x" / name).write_text("text")
        (here / "x").mkdir(exist_ok=True)
        return here / "x"

    return make


def with_test(here: Path) -> Path:
    table("1,maybe", name="test.csv")(here)
    return table()(here)


TARGET = ("--target", "y")
BAD: dict[str, tuple[Make, tuple[str, ...], tuple[str, ...]]] = {
    "a record has a field more": (table("1,no,3"), TARGET, ("x.csv: line 42 has 3 fields",)),
    "a record has a field less": (table("1"), TARGET, ("x.csv: line 42 has 1 fields",)),
    "a quote is left open": (
        holding("x.csv", 'a,y\n1,no\n"2,yes\n' + "\n".join(ROWS)),
        TARGET,
        ("x.csv: what begins in line 3 is not CSV",),
    ),
    "two columns have one name": (
        holding("x.csv", "a,a,y\n" + "1,2,no\n3,4,yes\n" * 20),
        TARGET,
        ("x.csv: two columns are called 'a'",),
    ),
    "the target is no column": (table(), ("--target", "z"), ("'z'", "x.csv: a, y")),
    "no target is given": (table(), (), ("target", "must be a column of", "x.csv: a, y")),
    "one class": (
        holding("x.csv", "a,y\n" + "1,no\n" * 40),
        TARGET,
        ("x.csv: all records have the same label",),
    ),
    "not a number": (table("nan,no"), TARGET, ("x.csv: line 42, column 'a': is not finite",)),
    "infinite": (table("-inf,no"), TARGET, ("x.csv: line 42, column 'a': is not finite",)),
    "a label is missing": (
        table("1,"),
        TARGET,
        ("x.csv: line 42, column 'y': the label is missi",),
    ),
    "a label is NaN": (
        table("1,NaN"),
        TARGET,
        ("x.csv: line 42, column 'y': the label is not a number",),
    ),
    "a label is not listed": (
        table("1,maybe"),
        (*TARGET, "--classes", "no,yes"),
        ("x.csv: line 42, column 'y': the label is not one of the classes: no, yes",),
    ),
    "a label of the test file is not listed": (
        with_test,
        (*TARGET, "--classes", "no,yes", "--test", "test.csv"),
        ("test.csv: line 42, column 'y': the label is not one of",),
    ),
    "text in a column of numbers": (
        table("old,no"),
        (*TARGET, "--bounds", "a=0..50"),
        ("x.csv: line 42, column 'a': is not a number",),
    ),
    "decimal commas between semicolons": (
        holding(
            "x.csv", "a;y\n" + "".join(f"{k},75;{'yes' if k % 2 else 'no'}\n" for k in range(40))
        ),
        TARGET,
        ("x.csv: line 2, column 'a': looks like a number, but", "write 3.14", 'decimal=","'),
    ),
    "decimal commas in quotes": (
        holding("x.csv", "a,y\n" + '"1,5",no\n"2,5",yes\n' * 20),
        TARGET,
        ("x.csv: line 2, column 'a': looks like a number, but", "write 3.14"),
    ),
    "decimal commas between commas": (
        holding("x.csv", "a,y\n" + "1,5,no\n" * 20),
        TARGET,
        ("x.csv: line 2 has 3 fields, the header has 2, separated by commas", "write 3.14"),
    ),
    "one decimal comma where bounds are stated": (
        table('"3,5",no'),
        (*TARGET, "--bounds", "a=0..50"),
        ("x.csv: line 42, column 'a': is not a number; it has a comma", "write 3.14"),
    ),
    "a truth value that is not listed": (
        lines('{"a": 1, "y": true}'),
        (*TARGET, "--classes", "no,yes"),
        ("x.jsonl: line 41, column 'y': the label is not one of the classes: no, yes",),
    ),
    "many columns": (
        holding("x.csv", ",".join(f"c{k}" for k in range(900)) + ",y\n" + "1," * 900 + "no\n"),
        ("--target", "z"),
        ("c0, c1, c2, c3, c4, c5, c6, c7 and 893 more",),
    ),
    "three records": (
        holding("x.csv", "a,y\n1,no\n2,yes\n3,no\n"),
        TARGET,
        ("x.csv: holds 3 record(s)",),
    ),
    "empty": (holding("x.csv", ""), TARGET, ("x.csv: is empty",)),
    "a header alone": (holding("x.csv", "a,y\n"), TARGET, ("x.csv: holds no records",)),
    "no lines": (holding("x.jsonl", ""), TARGET, ("x.jsonl: holds no records",)),
    "Latin-1": (
        holding("x.csv", "a,y\n1,no\ncafé,yes\n".encode("latin1")),
        TARGET,
        ("x.csv: line 3 is not UTF-8", "iconv -f latin1"),
    ),
    "UTF-16": (
        holding("x.csv", "a,y\n1,no\n".encode("utf-16")),
        TARGET,
        ("x.csv: line 1 is not UTF-8", "iconv -f utf-16"),
    ),
    "a broken line": (lines('{"a": 1, "y":'), TARGET, ("x.jsonl: line 41 is not a JSON object",)),
    "a line that is a list": (lines("[1]"), TARGET, ("x.jsonl: line 41 is not a JSON object",)),
    "NaN in a line": (
        lines('{"a": NaN, "y": "no"}'),
        TARGET,
        ("x.jsonl: line 41, column 'a': is not finite",),
    ),
    "a field more": (lines('{"b": 1}'), TARGET, ("x.jsonl: line 41 has a field 'b'",)),
    "not Parquet": (
        holding("x.parquet", "a,y\n1,no\n"),
        TARGET,
        ("x.parquet: is no Parquet file",),
    ),
    "not NumPy": (holding("x.npz", b"PK\x03\x04"), TARGET, ("x.npz: expected a NumPy file",)),
    "a folder without images": (folder("a/notes.txt"), (), ("x: no images there",)),
    "an empty folder": (folder(), (), ("x: no images there",)),
    "one class of images": (
        images(classes="a", count=12),
        (),
        ("x: all records have the same label",),
    ),
    "a truncated image": (
        images(damage=lambda path: path.write_bytes(path.read_bytes()[:1000])),
        (),
        ("x/b/3.png: is no image that can be read",),
    ),
    "text for an image": (
        images(damage=lambda path: path.write_text("text")),
        (),
        ("x/b/3.png: is no image that can be read",),
    ),
    "a folder that is not listed": (
        images(),
        ("--classes", "a,c"),
        ("x/b/0.png: the label is not one of the classes: a, c",),
    ),
    "no file": (lambda here: here / "x.csv", TARGET, ("x.csv: there is no such file",)),
    "a format that is not read": (holding("x.xls", "a"), TARGET, ("x.xls", ".csv, .tsv, .jsonl")),
}


SECRET = "Zoe Quill"
SHOWN: dict[str, tuple[Make, tuple[str, ...]]] = {
    "not a number": (table(f"{SECRET},no"), (*TARGET, "--bounds", "a=0..50")),
    "not a class": (table(f"1,{SECRET}"), (*TARGET, "--classes", "no,yes")),
    "one class": (holding("x.csv", "a,y\n" + f"1,{SECRET}\n" * 40), TARGET),
    "too many fields": (table(f"1,no,{SECRET}"), TARGET),
    "an open quote": (table(f'"{SECRET},no'), TARGET),
    "too many values": (
        holding("x.csv", "a,y\n" + "".join(f"{SECRET} {k},{k % 2}\n" for k in range(99))),
        TARGET,
    ),
    "too many classes": (
        holding("x.csv", "a,y\n" + "".join(f"1,{SECRET} {k}\n" for k in range(99))),
        TARGET,
    ),
    "text for a line": (lines(f'"{SECRET}"'), TARGET),
    "a broken line": (lines(f'{{"a": "{SECRET}", "y"'), TARGET),
    "a list in a field": (lines(f'{{"a": ["{SECRET}"], "y": "no"}}'), TARGET),
    "a number in quotes": (
        lines(f'{{"a": "{SECRET}", "y": "no"}}'),
        (*TARGET, "--bounds", "a=0..9"),
    ),
}


@pytest.mark.parametrize("what", SHOWN)
def test_no_message_shows_what_a_cell_holds(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make, words = SHOWN[what]
    monkeypatch.chdir(tmp_path)
    told = ["reticent", "train", "--data", str(make(tmp_path)), *words, "--out", "out"]
    monkeypatch.setattr(sys, "argv", told)
    with pytest.raises(SystemExit) as caught:
        main()
    shown = capsys.readouterr()
    assert caught.value.code == 2
    assert shown.err.startswith("error: ")
    assert not any(word in shown.err + shown.out for word in SECRET.split())


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_named_and_nothing_is_left(
    what: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    make, words, expected = BAD[what]
    if what == "not Parquet":
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "home"))
    data = make(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    told = ["reticent", "train", "--data", str(data), *words, "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", told)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert shown.out == ""
    for text in expected:
        assert text in shown.err
    assert sorted(tmp_path.rglob("*")) == before
