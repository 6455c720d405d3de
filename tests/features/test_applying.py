"""Features of data sets, and the files they are kept in."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from reticent import data, features
from reticent.errors import OptionError
from reticent.features import applying, cache, catalog

OPTIONS = {"scales": 1, "angles": 4}


@pytest.fixture
def splits() -> data.Splits:
    whole = data.load("digits")
    return replace(
        whole,
        train=(whole.train[0][:50], whole.train[1][:50]),
        test=(whole.test[0][:20], whole.test[1][:20]),
    )


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many inputs each computation was for."""
    sizes: list[int] = []
    parts = applying._parts

    def counting(transform, inputs, device, progress):  # type: ignore[no-untyped-def]
        sizes.append(len(inputs))
        return parts(transform, inputs, device, progress)

    monkeypatch.setattr(applying, "_parts", counting)
    return sizes


def test_inputs_become_features_and_nothing_else_changes(splits: data.Splits) -> None:
    made = features.apply(splits, "scattering", OPTIONS)
    transform = features.Scattering((8, 8), scales=1, angles=4)
    for split in ("train", "test"):
        (inputs, labels), (values, kept) = getattr(splits, split), getattr(made, split)
        torch.testing.assert_close(values, transform(inputs), rtol=0, atol=1e-6)
        assert torch.equal(labels, kept)
    assert made.info is splits.info
    assert made.notes[:-1] == splits.notes
    assert "scattering features (scales 1, angles 4, order 2)" in made.notes[-1]
    assert "nothing is charged" in made.notes[-1]


def test_what_was_computed_is_found_again(
    splits: data.Splits, computed: list[int], home: Path
) -> None:
    first = features.apply(splits, "scattering", OPTIONS)
    assert computed == [50, 20]
    again = features.apply(splits, "scattering", OPTIONS)
    assert computed == [50, 20]
    assert torch.equal(first.train[0], again.train[0])
    paths = features.locate(splits, "scattering", OPTIONS)
    assert sorted(paths.values()) == sorted((home / "features").iterdir())
    assert paths["train"].name.startswith("digits_train_scattering_")
    # anyone can read the file, and no one changes it through the tensor
    assert np.array_equal(np.load(paths["train"]), first.train[0].numpy())
    again.train[0].zero_()
    assert torch.equal(features.apply(splits, "scattering", OPTIONS).train[0], first.train[0])
    assert computed == [50, 20]


def test_other_records_are_noticed_and_name_no_file(
    splits: data.Splits, computed: list[int]
) -> None:
    """A hash of private records must not stand in a name, which is printed."""
    features.apply(splits, "scattering", OPTIONS)
    changed = splits.train[0].clone()
    changed[7, 0, 3, 3] += 1
    other = replace(splits, train=(changed, splits.train[1]))
    same = features.locate(splits, "scattering", OPTIONS)
    assert features.locate(other, "scattering", OPTIONS) == same
    found = features.apply(other, "scattering", OPTIONS).train[0]
    assert computed == [50, 20, 50]
    assert torch.equal(found, features.apply(other, "scattering", OPTIONS, keep=False).train[0])


def test_other_options_or_versions_have_other_files(
    splits: data.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def path(**options: int) -> Path:
        return features.locate(splits, "scattering", options)["train"]

    assert path() == path(scales=2, order=2)
    paths = [path(), path(scales=1), path(angles=4), path(order=1)]
    card = catalog._CARDS["scattering"]
    monkeypatch.setitem(catalog._CARDS, "scattering", replace(card, version=2))
    paths.append(path())
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    paths.append(path())
    assert len(set(paths)) == len(paths)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def _grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _other(path: Path) -> None:
    np.save(path, np.zeros((50, 5, 4, 4), np.float32))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [_cut, _empty, _flip, _grow, _other])
def test_a_damaged_file_is_computed_anew(
    splits: data.Splits, computed: list[int], damage: Callable[[Path], None]
) -> None:
    good = features.apply(splits, "scattering", OPTIONS).train[0].clone()
    path = features.locate(splits, "scattering", OPTIONS)["train"]
    damage(path)
    assert torch.equal(features.apply(splits, "scattering", OPTIONS).train[0], good)
    assert computed == [50, 20, 50]
    assert torch.equal(features.apply(splits, "scattering", OPTIONS).train[0], good)
    assert computed == [50, 20, 50]


def test_what_cannot_be_kept_is_computed_all_the_same(
    splits: data.Splits, home: Path, tmp_path: Path
) -> None:
    good = features.apply(splits, "scattering", OPTIONS)
    _folder(features.locate(splits, "scattering", OPTIONS)["train"])
    made = features.apply(splits, "scattering", OPTIONS)
    assert torch.equal(made.train[0], good.train[0])
    assert "the train features could not be kept" in made.notes[-1]
    assert [path.name for path in (home / "features").iterdir() if path.name[0] == "."] == []
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "features").write_text("in the way")
    made = features.apply(splits, "scattering", OPTIONS, root=tmp_path / "other")
    assert torch.equal(made.test[0], good.test[0])
    assert "could not be kept" in made.notes[-1]


def test_without_keeping_no_file_is_made(splits: data.Splits, home: Path) -> None:
    seen: list[tuple[int, int]] = []
    made = features.apply(
        splits, "scattering", keep=False, progress=lambda done, of: seen.append((done, of))
    )
    assert made.train[0].shape == (50, 81, 2, 2)
    assert seen == [(50, 50), (20, 20)]
    assert not home.exists()


def test_pieces_make_no_difference(splits: data.Splits, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = features.apply(splits, "scattering", keep=False)
    monkeypatch.setattr(applying, "_PIECE", 7)
    pieces = features.apply(splits, "scattering")
    torch.testing.assert_close(pieces.train[0], whole.train[0], rtol=0, atol=1e-6)


def test_names_and_options_that_cannot_work(splits: data.Splits) -> None:
    with pytest.raises(OptionError, match="features = 'magic': must be one of scattering"):
        features.apply(splits, "magic")
    with pytest.raises(OptionError, match="depth = 3: scattering has no such option; it takes: sc"):
        features.apply(splits, "scattering", {"depth": 3})
    with pytest.raises(OptionError, match="at most 3 work"):
        features.apply(splits, "scattering", {"scales": 4})
    tables = replace(splits, train=(torch.zeros(3, 600), torch.zeros(3).long()))
    with pytest.raises(OptionError, match=r"takes images .*; these inputs have shape \(600,\)"):
        features.apply(tables, "scattering")


def test_a_kind_of_features_may_need_extras(
    splits: data.Splits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sums(shape: tuple[int, ...], *, vectors: torch.Tensor) -> nn.Module:
        flat = nn.Linear(64, 2, bias=False)
        flat.weight = nn.Parameter(vectors, requires_grad=False)
        return nn.Sequential(nn.Flatten(), flat)

    card = replace(
        features.describe("scattering"), name="sums", build=sums, options=(), extras=("vectors",)
    )
    monkeypatch.setitem(catalog._CARDS, "sums", card)
    assert features.names()[-1] == "sums"
    with pytest.raises(OptionError, match="features = 'sums': needs the data's vectors"):
        features.apply(splits, "sums")
    one, other = (replace(splits, extras={"vectors": torch.full((2, 64), v)}) for v in (1.0, 2.0))
    made = features.apply(one, "sums").train[0]
    torch.testing.assert_close(made[:, 0], splits.train[0].sum((1, 2, 3)))
    torch.testing.assert_close(features.apply(other, "sums").train[0], 2 * made)


def test_a_file_is_read_through_once_and_again_after_a_change(tmp_path, monkeypatch):
    path, shape = tmp_path / "x.npy", (4, 3)
    values = np.arange(12, dtype=np.float32).reshape(shape)
    cache.write(path, shape, [values], "records")
    read: list[int] = []
    digest = cache._digest

    def counted(made_of):
        read.append(1)
        return digest(made_of)

    monkeypatch.setattr(cache, "_digest", counted)
    for _ in range(3):
        assert cache.read(path, shape, "records").tolist() == values.tolist()
    assert len(read) == 1
    assert cache.read(path, shape, "other records") is None
    with path.open("r+b") as file:  # one number, where the file stands
        file.seek(-20, io.SEEK_END)
        file.write(b"\x01")
    assert cache.read(path, shape, "records") is None
    cache.write(path, shape, [values], "records")
    assert cache.read(path, shape, "records") is not None
