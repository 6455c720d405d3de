"""Folders of images."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from reticent.data.own import from_file
from reticent.errors import DataError, OptionError

image = pytest.importorskip("PIL.Image")
CLASSES = {"classes": "across,down"}


def test_a_folder_for_each_class(pictures):
    splits = from_file(pictures(), **CLASSES)
    assert splits.form == "images"
    assert splits.info.shape == (3, 32, 32)
    assert splits.info.n_train + splits.info.n_test == 60
    assert float(splits.train[0].min()) >= 0
    assert float(splits.train[0].max()) <= 1


def test_folders_for_training_and_test(pictures):
    splits = from_file(pictures("train", "test", count=6), **CLASSES, side=8, grey=True)
    assert splits.train[0].shape == (12, 1, 8, 8)
    assert splits.test[0].shape == (12, 1, 8, 8)
    assert splits.train[1].tolist() == [0] * 6 + [1] * 6
    with pytest.raises(OptionError, match="has test records of its own"):
        from_file(pictures("train", "test", count=6), **CLASSES, test=str(pictures()))


def test_classes_of_folders_are_learned_from_them(pictures):
    with pytest.warns(UserWarning, match="learned from the records"):
        assert from_file(pictures(count=8)).info.classes == ("across", "down")
    with pytest.raises(DataError, match=r"across.*the label is not one of"):
        from_file(pictures(count=8), classes="up,down")


def test_pixels_and_channels_are_where_they_were(tmp_path):
    for label, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        (tmp_path / label).mkdir()
        for number in range(10):
            picture = image.new("RGB", (8, 8), (0, 0, 0))
            picture.putpixel((5, 2), colour)  # column 5 of row 2
            picture.save(tmp_path / label / f"{number}.png")
    splits = from_file(tmp_path, classes="red,blue", side=8)
    expected = torch.zeros(2, 3, 8, 8)
    expected[0, 0, 2, 5] = expected[1, 2, 2, 5] = 1
    for inputs, labels in (splits.train, splits.test):
        assert torch.equal(inputs, expected[labels])


@pytest.mark.parametrize("suffix", ["jpg", "webp", "png"])
def test_other_formats(pictures, suffix):
    splits = from_file(pictures(count=6, suffix=suffix), **CLASSES)
    assert splits.info.n_train + splits.info.n_test == 12


def test_sizes_that_differ_need_a_side(pictures):
    root = pictures(count=6)
    image.new("RGB", (40, 20)).save(root / "down" / "z.png")
    with pytest.raises(DataError, match=r"z\.png is 40x20, .* 12x10: .* --side 32"):
        from_file(root, **CLASSES)
    assert from_file(root, **CLASSES, side=16).info.shape == (3, 16, 16)


def test_what_is_no_image_is_named(pictures):
    root = pictures(count=6)
    (root / "down" / "x.png").write_bytes(b"not an image")
    with pytest.raises(DataError, match=r"x\.png: is no image that can be read"):
        from_file(root, **CLASSES)
    whole = (root / "down" / "1.png").read_bytes()
    (root / "down" / "x.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"x\.png: is no image that can be read"):
        from_file(root, **CLASSES)
    image.fromarray(np.full((10, 12), 40_000, np.uint16)).save(root / "down" / "x.png")
    with pytest.raises(DataError, match=r"x\.png: has more than 8 bits"):
        from_file(root, **CLASSES)


def test_empty_folders_and_options_without_a_meaning(tmp_path, pictures):
    (tmp_path / "empty" / "a").mkdir(parents=True)
    with pytest.raises(DataError, match="empty: no images there"):
        from_file(tmp_path / "empty")
    for option in ({"target": "x"}, {"columns": ["a:text"]}, {"bounds": ["0..1"]}):
        with pytest.raises(OptionError, match="means nothing for an image folder"):
            from_file(pictures(count=6), **CLASSES, **option)


def test_other_files_are_passed_over(pictures):
    root = pictures(count=6)
    (root / "down" / "notes.txt").write_text("x")
    (root / "down" / ".hidden.png").write_text("x")
    (root / ".git").mkdir()
    splits = from_file(root, **CLASSES)
    assert splits.info.n_train + splits.info.n_test == 12


def test_the_extra_is_named_where_pillow_is_missing(pictures, monkeypatch):
    root = pictures(count=6)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(DataError, match=r"needs Pillow.*pip install 'reticent\[files\]'"):
        from_file(root, **CLASSES)
