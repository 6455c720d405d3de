from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest

from reticent.data import lookup
from reticent.data.store import data_home, layout, read_npz, write_bytes, write_npz
from reticent.errors import DataError, OptionError

LAYOUT = {"a": ((2, 3), "uint8"), "b": ((4,), "float16")}
ARRAYS = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": np.arange(4, dtype=np.float16)}


def test_where_data_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_home() == tmp_path / ".cache" / "reticent"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_home() == tmp_path / "cache" / "reticent"
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "env"))
    assert data_home() == tmp_path / "env"
    assert data_home("~/mine") == tmp_path / "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match="is a file; expected a folder"):
        data_home(tmp_path / "file")


def test_layouts_are_the_published_ones() -> None:
    assert layout(lookup("mnist")) == {
        "train_images": ((60_000, 28, 28), "uint8"),
        "train_labels": ((60_000,), "uint8"),
        "test_images": ((10_000, 28, 28), "uint8"),
        "test_labels": ((10_000,), "uint8"),
    }
    assert layout(lookup("cifar10"))["train_images"] == ((50_000, 32, 32, 3), "uint8")
    assert layout(lookup("imdb"))["test_tokens"] == ((25_000, 80), "uint16")
    assert layout(lookup("purchase100"))["train_inputs"] == ((157_860, 600), "uint8")


@pytest.mark.parametrize("writer", [write_npz, lambda p, a: np.savez(p, **a)])
def test_round_trip(tmp_path: Path, writer: object) -> None:
    path = tmp_path / "new" / "x.npz"
    path.parent.mkdir()
    writer(path, ARRAYS)  # type: ignore[operator]
    found = read_npz(path, LAYOUT)
    assert all(np.array_equal(found[key], ARRAYS[key]) for key in LAYOUT)
    assert [p.name for p in path.parent.iterdir()] == ["x.npz"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": np.zeros((3, 2), np.uint8)}, r"expected a to be uint8 of shape \(2, 3\).*\(3, 2\)"),
        ({"a": np.zeros((2, 3), np.int64)}, "found int64"),
        ({"a": np.asfortranarray(ARRAYS["a"])}, "Fortran order"),
        ({"b": np.array([None] * 4)}, "found object"),
    ],
)
def test_other_arrays_are_refused(
    tmp_path: Path, change: dict[str, np.ndarray], message: str
) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, **{**ARRAYS, **change})
    with pytest.raises(DataError, match=message):
        read_npz(path, LAYOUT)


def test_missing_arrays_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=ARRAYS["a"])
    with pytest.raises(DataError, match=r"x.npz: expected arrays a, b; missing b"):
        read_npz(tmp_path / "x.npz", LAYOUT)


@pytest.mark.parametrize(("tail", "found"), [(b"x", 7), (None, 5)])
def test_too_many_or_too_few_bytes_behind_the_header(
    tmp_path: Path, tail: bytes | None, found: int
) -> None:
    file = io.BytesIO()
    np.save(file, ARRAYS["a"])
    data = file.getvalue()
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", data[:-1] if tail is None else data + tail)
    with pytest.raises(DataError, match=f"expected 6 bytes in a, found {found}"):
        read_npz(tmp_path / "x.npz", {"a": LAYOUT["a"]})


def test_damage_anywhere_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    arrays = {"a": np.random.default_rng(0).integers(0, 256, (50, 60)).astype(np.uint8)}
    write_npz(path, arrays)
    good = path.read_bytes()
    expected = {"a": ((50, 60), "uint8")}
    for keep in (0, 10, len(good) // 2, len(good) - 5):
        path.write_bytes(good[:keep])
        with pytest.raises(DataError, match=r"x.npz: expected a complete .npz"):
            read_npz(path, expected)
    for at in range(200, len(good) - 200, 97):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        with pytest.raises(DataError, match=r"x.npz: expected"):
            read_npz(path, expected)


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    write_bytes(path, b"old")

    def full(_: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
