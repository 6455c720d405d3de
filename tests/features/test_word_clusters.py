"""Word clusters against a loop over words, and k-means against its own objective."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from reticent import data, features
from reticent.errors import DataError, OptionError
from reticent.features import word_clusters
from reticent.features.word_clusters import WordClusters

WORDS, WIDTH, LENGTH = 40, 5, 7


@pytest.fixture
def vectors() -> torch.Tensor:
    table = torch.randn(WORDS, WIDTH) @ torch.randn(WIDTH, WIDTH) + 1
    table[[3, 9]] = 0  # words without a vector
    # row 0 is not zero: padding must not count all the same
    return table


@pytest.fixture
def tokens() -> torch.Tensor:
    drawn = torch.randint(1, WORDS, (30, LENGTH))
    drawn[0] = 0
    drawn[1], drawn[2, :] = 3, 9
    drawn[3, 2] = 0
    drawn[4, :5] = 3
    return drawn


def naive(
    vectors: torch.Tensor, centres: torch.Tensor | None, sharpness: float, text: list[int]
) -> np.ndarray:
    """One text in NumPy, word by word."""
    table = vectors.double().numpy()
    known = [row for row in range(len(table)) if np.abs(table[row]).sum() > 0]
    values = table[known]
    root = np.linalg.inv(sqrtm(np.cov(values, rowvar=False, bias=True)))

    def unit(vector: np.ndarray) -> np.ndarray:
        length = math.sqrt(float(vector @ vector))
        return vector / length if length > 0 else vector

    def word(row: np.ndarray) -> np.ndarray:
        return unit(root @ (row - values.mean(0)))

    def memberships(row: np.ndarray) -> np.ndarray:
        powers = np.exp(sharpness * 10 * centres.double().numpy() @ word(row))
        return powers / powers.sum()

    counted = [token for token in text if token != 0 and token in known]
    directions, members = np.zeros(WIDTH), np.zeros(0 if centres is None else len(centres))
    mean = None if centres is None else np.mean([memberships(row) for row in values], 0)
    for token in counted:
        directions += word(table[token]) / len(counted)
        if centres is not None:
            members += (memberships(table[token]) - mean) / len(counted)
    if centres is None:
        return unit(directions)
    return np.concatenate((unit(directions), unit(members))) / math.sqrt(2)


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.uint8])
@pytest.mark.parametrize("clusters", [0, 1, 6])
def test_a_loop_over_words_gives_the_same(
    vectors: torch.Tensor, tokens: torch.Tensor, clusters: int, kind: torch.dtype
) -> None:
    made = WordClusters(vectors, clusters=clusters, sharpness=0.7)
    found = made(tokens.to(kind))
    assert found.shape == (30, WIDTH + clusters)
    assert made.width == WIDTH + clusters
    assert found.dtype == torch.float32
    known = vectors.abs().sum(1) > 0
    units = made.words()[known][:, :WIDTH]
    centres = word_clusters._cluster(units, clusters, 0) if clusters else None
    expected = np.stack([naive(vectors, centres, 0.7, text) for text in tokens.tolist()])
    if clusters == 1:  # a membership of 1 for every word: nothing above the mean
        expected[:, WIDTH:] = found[:, WIDTH:].numpy()
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5)


def test_words_without_vectors_and_empty_texts(vectors: torch.Tensor, tokens: torch.Tensor) -> None:
    transform = WordClusters(vectors, clusters=6)
    found = transform(tokens)
    assert not found[:3].any()  # padding alone, and words that do not count
    lengths = found[3:].norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(27))
    without = torch.tensor([[5, 6, 0, 0], [5, 6, 3, 9]])
    one, other = transform(without)
    torch.testing.assert_close(one, other)


def test_a_text_is_mapped_on_its_own(vectors: torch.Tensor, tokens: torch.Tensor) -> None:
    transform = WordClusters(vectors, clusters=6)
    whole = transform(tokens)
    alone = torch.cat([transform(text[None]) for text in tokens])
    torch.testing.assert_close(alone, whole, rtol=0, atol=1e-6)
    order = torch.randperm(len(tokens))
    torch.testing.assert_close(transform(tokens[order]), whole[order], rtol=0, atol=1e-6)
    assert transform(tokens[:0]).shape == (0, WIDTH + 6)


def test_clusters_are_made_once_and_only_when_needed(
    vectors: torch.Tensor, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    make = word_clusters._make

    def counting(table: torch.Tensor, clusters: int, sharpness: float, seed: int) -> torch.Tensor:
        made.append(clusters)
        return make(table, clusters, sharpness, seed)

    monkeypatch.setattr(word_clusters, "_make", counting)
    transform = WordClusters(vectors, clusters=6)
    transform(tokens[:0])
    assert made == []
    first = transform(tokens)
    assert torch.equal(transform(tokens), first)
    assert made == [6]
    assert not transform.state_dict()
    splits = data.Splits(
        (tokens[:20], torch.arange(20) % 2),
        (tokens[20:], torch.arange(10) % 2),
        data.lookup("imdb"),
        {"vectors": vectors},
    )
    for _ in range(2):
        kept = features.apply(splits, "word-clusters", {"clusters": 6})
    assert made == [6, 6]
    torch.testing.assert_close(kept.test[0], first[20:], rtol=0, atol=1e-6)
    assert "nothing is charged" in kept.notes[-1]
    with pytest.raises(OptionError, match="needs the data's vectors"):
        features.apply(replace(splits, extras={}), "word-clusters", {"clusters": 6})


def test_k_means_never_does_worse_from_round_to_round(monkeypatch: pytest.MonkeyPatch) -> None:
    units = torch.nn.functional.normalize(torch.randn(300, 8), dim=1)
    reached = []
    for rounds in range(12):
        monkeypatch.setattr(word_clusters, "_ROUNDS", rounds)
        centres = word_clusters._cluster(units, 20, 3)
        torch.testing.assert_close(centres.norm(dim=1), torch.ones(20))
        reached.append(float((units @ centres.T).amax(1).mean()))
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(reached))
    assert reached[-1] > reached[0] + 0.02
    monkeypatch.setattr(word_clusters, "_WORDS", 7)  # words at a time
    torch.testing.assert_close(word_clusters._cluster(units, 20, 3), centres)


def test_a_centre_without_words_stays() -> None:
    units = torch.eye(4)[[0, 0, 0, 1]]  # one of two equal centres gets all
    centres = word_clusters._cluster(units, 4, 0)
    torch.testing.assert_close(centres.norm(dim=1), torch.ones(4))


def test_seeds_and_degenerate_vocabularies(vectors: torch.Tensor, tokens: torch.Tensor) -> None:
    same, other = (WordClusters(vectors, clusters=6, seed=seed)(tokens) for seed in (0, 1))
    assert torch.equal(WordClusters(vectors, clusters=6)(tokens), same)
    assert not torch.allclose(same, other, atol=1e-3)
    single = torch.zeros(4, 3)
    single[2] = 1.0
    assert not WordClusters(single, clusters=1)(torch.tensor([[2, 2]])).any()  # no direction
    flat = vectors.clone()
    flat[:, 1] = 0  # a coordinate that says nothing
    assert WordClusters(flat, clusters=6)(tokens).isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 39}, "clusters = 39: must be at most the 38 words' number"),
        ({"clusters": -1}, "clusters = -1: must be at least 0"),
        ({"clusters": 2.5}, "clusters = 2.5: must be a whole number"),
        ({"sharpness": 0}, "sharpness = 0: must be greater than 0"),
        ({"seed": -1}, "seed = -1"),
    ],
)
def test_what_cannot_work_is_named(
    vectors: torch.Tensor, options: dict[str, float], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        WordClusters(vectors, **{"clusters": 5, **options})


def test_tables_and_tokens_that_cannot_work_are_named(vectors: torch.Tensor) -> None:
    with pytest.raises(OptionError, match=r"vectors = \(4, 3\): must not all be zeros"):
        WordClusters(torch.zeros(4, 3), clusters=0)
    with pytest.raises(OptionError, match="one row for each token"):
        WordClusters(torch.full((4, 3), torch.nan), clusters=0)
    with pytest.raises(DataError, match="token 40 has no word vector"):
        WordClusters(vectors, clusters=5)(torch.tensor([[1, 40]]))
    with pytest.raises(DataError, match="whole numbers"):
        WordClusters(vectors, clusters=5)(torch.zeros(2, 3))
