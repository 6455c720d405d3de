"""NumPy files, Parquet, and folders that Hugging Face's save_to_disk leaves."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pytest
import torch

from reticent.data.own import from_file
from reticent.data.own.arrays import new_inputs
from reticent.errors import DataError, OptionError

CHANCE = np.random.RandomState(0)
ROWS = CHANCE.rand(40, 3) * 4 - 2
LABELS = np.arange(40) % 2
BITS = {"classes": "0,1"}


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_rows_with_bounds(tmp_path):
    splits = from_file(
        saved(tmp_path / "a.npz", inputs=ROWS, labels=LABELS), **BITS, bounds="-2..2"
    )
    both = torch.cat([splits.train[0], splits.test[0]])
    assert sorted(both[:, 0].tolist()) == pytest.approx(sorted((ROWS[:, 0] / 2).tolist()), abs=1e-6)
    assert splits.private_columns == ()
    assert splits.blocks == 3


def test_rows_without_bounds_are_to_be_standardised(tmp_path):
    splits = from_file(saved(tmp_path / "a.npz", x=ROWS, y=LABELS), **BITS)
    assert splits.private_columns == (0, 1, 2)
    assert splits.missing_columns == (-1, -1, -1)
    assert "charged" in splits.describe()


def test_bits_and_bytes_have_public_bounds(tmp_path):
    splits = from_file(saved(tmp_path / "a.npz", x=ROWS > 0, y=LABELS), **BITS)
    assert set(splits.train[0].unique().tolist()) == {-1.0, 1.0}
    assert splits.private_columns == ()


def test_parts_and_two_files(tmp_path):
    parts = saved(
        tmp_path / "a.npz", x_train=ROWS, y_train=LABELS, x_test=ROWS[:4], y_test=LABELS[:4]
    )
    assert from_file(parts, **BITS).info.n_test == 4
    np.save(tmp_path / "x.npy", ROWS)
    np.save(tmp_path / "labels.npy", LABELS.astype(str))
    splits = from_file(tmp_path / "x.npy", target="labels.npy", **BITS)
    assert splits.info.n_train + splits.info.n_test == 40


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((40, 6, 6), (1, 6, 6)), ((40, 6, 5, 3), (3, 6, 5)), ((40, 3, 6, 5), (3, 6, 5))],
)
def test_images_in_arrays(tmp_path, shape, expected):
    pixels = CHANCE.randint(0, 256, shape).astype(np.uint8)
    splits = from_file(saved(tmp_path / "a.npz", images=pixels, labels=LABELS), **BITS)
    assert splits.form == "images"
    assert splits.info.shape == expected
    assert float(splits.train[0].max()) <= 1


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"inputs": ROWS}, "holds inputs"),
        ({"inputs": ROWS, "labels": LABELS[:5]}, "one label for each input"),
        ({"inputs": ROWS * [[1, np.nan, 1]], "labels": LABELS}, "record 1, column 1 is NaN"),
        ({"inputs": ROWS.astype(str), "labels": LABELS}, "expected numbers"),
        ({"images": CHANCE.rand(40, 4, 4) * 9, "labels": LABELS}, "state their range"),
        ({"images": CHANCE.rand(40, 2, 4, 4), "labels": LABELS}, "one or three channels"),
        ({"inputs": ROWS, "labels": LABELS + 5}, "record 1: the label is not one of"),
    ],
)
def test_arrays_that_cannot_be_used(tmp_path, arrays, message):
    with pytest.raises((DataError, OptionError)) as caught:
        from_file(saved(tmp_path / "a.npz", **arrays), **BITS)
    assert message in str(caught.value)


def test_no_records_and_no_file_are_said_as_such(tmp_path):
    empty = saved(tmp_path / "empty.npz", inputs=ROWS[:0], labels=LABELS[:0])
    for read in (from_file, new_inputs):
        with pytest.raises(DataError, match=r"empty\.npz: holds no records$"):
            read(empty)
    np.save(tmp_path / "x.npy", ROWS)
    with pytest.raises(DataError, match=r"nolabels\.npy: there is no such file$"):
        from_file(tmp_path / "x.npy", target="nolabels.npy")


def test_pickles_and_other_files_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", inputs=ROWS, labels=np.array([{}] * 40, dtype=object))
    (tmp_path / "b.npz").write_bytes(b"PK nonsense")
    (tmp_path / "c.parquet").write_bytes(b"PAR1 nonsense")
    for name in ("a.npz", "b.npz"):
        with pytest.raises(DataError, match="expected a NumPy file without pickles"):
            from_file(tmp_path / name)
    pytest.importorskip("pyarrow")
    with pytest.raises(DataError, match="is no Parquet file"):
        from_file(tmp_path / "c.parquet", target="y")


def columns(count=40):
    return {
        "age": [None if k % 7 == 0 else float(k) for k in range(count)],
        "city": [("Rome", "Oslo")[k % 2] for k in range(count)],
        "ill": [k % 2 for k in range(count)],
    }


def test_a_parquet_file(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.table(columns()), tmp_path / "people.parquet")
    splits = from_file(
        tmp_path / "people.parquet", target="ill", **BITS, columns=["city:category:Oslo,Rome"]
    )
    both = torch.cat([splits.train[0], splits.test[0]])
    assert both.shape == (40, 2 + 3)
    assert int(both[:, 1].sum()) == 6  # the missing ages
    assert [line.kind for line in splits.lines] == ["numeric", "category"]  # by the schema
    table = arrow.table({"x": [[1]] * 20, "y": ["a", "b"] * 10})
    parquet.write_table(table, tmp_path / "nested.parquet")
    with pytest.raises(DataError, match="column 'x' holds list"):
        from_file(tmp_path / "nested.parquet", target="y")
    parquet.write_table(arrow.table({**columns(), "ill": [float("nan")] * 40}), tmp_path / "n.pq")
    with pytest.raises(DataError, match="record 1, column 'ill': the label is missing"):
        from_file(tmp_path / "n.pq", target="ill")


def save_to_disk(folder, table, features):
    """The files of `datasets.Dataset.save_to_disk`, as far as they are read."""
    import pyarrow.ipc as ipc

    folder.mkdir(parents=True)
    with (
        (folder / "data-00000-of-00001.arrow").open("wb") as file,
        ipc.new_stream(file, table.schema) as stream,
    ):
        stream.write_table(table)
    state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}], "_indices_files": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


NAMES = {"ill": {"names": ["well", "ill"], "_type": "ClassLabel"}}


@pytest.mark.filterwarnings("ignore:most test records are")  # they are the first training records
@pytest.mark.filterwarnings("error")
def test_a_saved_data_set_states_its_classes(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    save_to_disk(tmp_path / "set" / "train", arrow.table(columns()), NAMES)
    save_to_disk(tmp_path / "set" / "test", arrow.table(columns(6)), NAMES)
    (tmp_path / "set" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    splits = from_file(tmp_path / "set")
    assert splits.info.classes == ("well", "ill")
    assert (splits.info.n_train, splits.info.n_test) == (40, 6)
    assert splits.test[1].tolist() == [0, 1, 0, 1, 0, 1]


def test_saved_images(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    image = pytest.importorskip("PIL.Image")
    blobs = []
    for number in range(20):
        held = io.BytesIO()
        image.new("RGB", (9, 9), (255 * (number % 2),) * 3).save(held, "png")
        blobs.append({"bytes": held.getvalue(), "path": None})
    table = arrow.table({"image": blobs, "ill": [number % 2 for number in range(20)]})
    save_to_disk(tmp_path / "set", table, NAMES)
    splits = from_file(tmp_path / "set", side=8)
    assert splits.form == "images"
    for inputs, labels in (splits.train, splits.test):
        assert torch.equal(inputs.mean((1, 2, 3)), labels.float())


def test_a_saved_data_set_that_is_not_whole(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    save_to_disk(tmp_path / "set", arrow.table(columns()), NAMES)
    file = tmp_path / "set" / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(DataError, match=r"arrow: cannot be read"):
        from_file(tmp_path / "set")
    (tmp_path / "set" / "dataset_info.json").unlink()
    with pytest.raises(DataError, match="is no whole saved data set"):
        from_file(tmp_path / "set")


def test_the_extra_is_named_where_pyarrow_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"needs pyarrow.*pip install 'reticent\[files\]'"):
        from_file(tmp_path / "a.parquet", target="y")
