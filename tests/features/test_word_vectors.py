"""Pooled word vectors against a loop over words, and through the files of features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reticent import data, features
from reticent.errors import DataError, OptionError
from reticent.features import word_vectors

WORDS, WIDTH, LENGTH = 30, 5, 7


@pytest.fixture
def vectors() -> torch.Tensor:
    return torch.randn(WORDS, WIDTH)  # row 0 is not zero: padding must not count all the same


@pytest.fixture
def tokens() -> torch.Tensor:
    drawn = torch.randint(1, WORDS, (40, LENGTH))
    for row, padding in enumerate(torch.randint(0, LENGTH + 1, (40,)).tolist()):
        drawn[row, :padding] = 0
    drawn[0], drawn[1, :] = 0, 3
    drawn[2, 3] = 0  # padding inside a text
    return drawn


@pytest.fixture
def splits(vectors: torch.Tensor, tokens: torch.Tensor) -> data.Splits:
    labels = torch.arange(40) % 2
    return data.Splits(
        (tokens[:30], labels[:30]),
        (tokens[30:], labels[30:]),
        data.lookup("imdb"),
        {"vectors": vectors},
    )


def pooled(table: list[list[float]], text: list[int], pooling: str) -> list[float]:
    words = [table[token] for token in text if token != 0]
    mean = [sum(w[k] for w in words) / len(words) if words else 0.0 for k in range(WIDTH)]
    largest = [max(w[k] for w in words) if words else 0.0 for k in range(WIDTH)]
    return {"mean": mean, "max": largest, "both": mean + largest}[pooling]


@pytest.mark.parametrize("pooling", ["mean", "max", "both"])
@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
def test_a_loop_over_words_gives_the_same(
    vectors: torch.Tensor, tokens: torch.Tensor, pooling: str, kind: torch.dtype
) -> None:
    made = features.WordVectors(vectors, pooling=pooling)(tokens.to(kind))
    table = vectors.double().tolist()
    expected = torch.tensor([pooled(table, text, pooling) for text in tokens.tolist()])
    assert made.dtype == torch.float32
    torch.testing.assert_close(made, expected.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "max", "both"])
def test_a_text_is_mapped_on_its_own(
    vectors: torch.Tensor,
    tokens: torch.Tensor,
    pooling: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transform = features.WordVectors(vectors, pooling=pooling)
    whole = transform(tokens)
    assert torch.equal(torch.cat([transform(text[None]) for text in tokens]), whole)
    monkeypatch.setitem(word_vectors._WORKING_SET, "cpu", 1)  # one text at a time
    assert torch.equal(transform(tokens), whole)
    assert transform(tokens[:0]).shape == (0, transform.width)


def test_the_table_is_a_copy_and_not_trained(vectors: torch.Tensor, tokens: torch.Tensor) -> None:
    transform = features.WordVectors(vectors)
    before = transform(tokens)
    vectors.zero_()
    assert torch.equal(transform(tokens), before)
    assert not list(transform.parameters())


@pytest.mark.parametrize("token", [-1, WORDS, 999])
def test_a_token_without_a_row_is_named(vectors: torch.Tensor, token: int) -> None:
    with pytest.raises(DataError, match=f"token {token} has no word vector: .* rows 0 to 29"):
        features.WordVectors(vectors)(torch.tensor([[0, 1], [token, 2]]))


def test_what_is_no_text_or_no_table_is_refused(vectors: torch.Tensor) -> None:
    transform = features.WordVectors(vectors)
    with pytest.raises(DataError, match="float32: they must be whole numbers"):
        transform(torch.zeros(3, 4))
    with pytest.raises(DataError, match=r"shape \(3, 4, 5\)"):
        transform(torch.zeros(3, 4, 5, dtype=torch.long))
    with pytest.raises(DataError, match=r"shape \(3, 0\)"):
        transform(torch.zeros(3, 0, dtype=torch.long))
    with pytest.raises(OptionError, match="pooling = 'sum': must be one of mean, max, both"):
        features.WordVectors(vectors, pooling="sum")
    for wrong in (vectors[0], vectors[:0], vectors.clone().fill_(torch.nan)):
        with pytest.raises(OptionError, match=r"vectors = .*one row for each token"):
            features.WordVectors(wrong)


def test_features_are_kept_and_follow_the_table(splits: data.Splits, home: Path) -> None:
    made = features.apply(splits, "word-vectors")
    transform = features.WordVectors(splits.extras["vectors"])
    for split in ("train", "test"):
        assert torch.equal(getattr(made, split)[0], transform(getattr(splits, split)[0]))
    assert "word-vectors features (pooling both)" in made.notes[-1]
    paths = features.locate(splits, "word-vectors")
    assert {path.parent for path in paths.values()} == {home / "features"}
    stamps = [path.stat().st_mtime_ns for path in paths.values()]
    again = features.apply(splits, "word-vectors")
    assert torch.equal(again.train[0], made.train[0])
    assert [path.stat().st_mtime_ns for path in paths.values()] == stamps
    other = replace(splits, extras={"vectors": 2 * splits.extras["vectors"]})
    torch.testing.assert_close(
        features.apply(other, "word-vectors").train[0], 2 * made.train[0], rtol=1e-6, atol=1e-6
    )
    narrow = features.apply(splits, "word-vectors", {"pooling": "max"}, keep=False)
    assert torch.equal(narrow.test[0], made.test[0][:, WIDTH:])


def test_data_without_texts_or_vectors_are_refused(splits: data.Splits) -> None:
    with pytest.raises(OptionError, match=r"needs the data's vectors.* `reticent data get`"):
        features.apply(replace(splits, extras={}), "word-vectors")
    images = replace(data.load("digits"), extras=splits.extras)
    with pytest.raises(OptionError, match=r"takes texts .*; these inputs have shape \(1, 8, 8\)"):
        features.apply(images, "word-vectors")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_gives_the_same(vectors: torch.Tensor, tokens: torch.Tensor) -> None:
    transform = features.WordVectors(vectors)
    expected = transform(tokens)
    torch.testing.assert_close(transform.cuda()(tokens.cuda()).cpu(), expected)
