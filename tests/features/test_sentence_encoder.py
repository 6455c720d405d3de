"""Sentence encoders against PyTorch's own transformer layers, over tokens of a vocabulary."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reticent import data, features
from reticent.cli.auditing import AuditedRun
from reticent.cli.settings import Settings
from reticent.encoders import encoder_digest
from reticent.encoders.pieces import WordPieces
from reticent.errors import CheckpointError, DataError, OptionError
from reticent.features.applying import feature_note

from ..small_encoder import LONGEST, PIECES, WIDTH, WORDS, expected, write_encoder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "encoder")


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.tensor([[0, 0, 1, 3, 5], [4, 2, 7, 8, 6], [0, 0, 0, 0, 0], [0, 0, 0, 3, 5]])


def test_texts_are_what_transformer_layers_make_of_them(folder: Path, tokens: torch.Tensor) -> None:
    made = features.SentenceEncoder(folder, WORDS)
    assert made.width == WIDTH
    found = made(tokens)
    texts = ([4, 6, 7], [5, 1, 1, 11, 1, 10, 8, 9], [], [4, 6, 7])
    texts[1][3:5] = WordPieces(PIECES).of("unfilm")
    for row, pieces in zip(found, texts, strict=True):
        torch.testing.assert_close(row, expected(pieces), rtol=1e-5, atol=1e-6)
    assert torch.equal(found[0], found[3])  # a text's start is no word
    for text, row in zip(tokens, found, strict=True):  # each on its own
        torch.testing.assert_close(made(text[None])[0], row, rtol=1e-5, atol=1e-6)
    assert made(tokens[:0]).shape == (0, WIDTH)
    assert not list(made.parameters())


def test_long_texts_are_cut(folder: Path, tokens: torch.Tensor) -> None:
    made = features.SentenceEncoder(folder, WORDS, longest=4)
    torch.testing.assert_close(made(tokens)[0], expected([4, 6]), rtol=1e-5, atol=1e-6)
    assert features.SentenceEncoder(folder, WORDS, longest=99).longest == LONGEST
    with pytest.raises(OptionError, match="longest = 2: "):
        features.SentenceEncoder(folder, WORDS, longest=2)


def test_features_are_kept_and_follow_words_and_encoder(
    folder: Path, tokens: torch.Tensor, tmp_path: Path
) -> None:
    labels = torch.tensor([0, 1, 0, 1])
    both = (tokens, labels), (tokens[:2], labels[:2])
    vectors = torch.randn((len(WORDS), 4), generator=torch.Generator().manual_seed(1))
    splits = data.Splits(*both, data.lookup("imdb"), {"vectors": vectors}, words=WORDS)
    given = {"encoder": str(folder)}
    made = features.apply(splits, "sentence-encoder", given, root=tmp_path)
    assert torch.equal(made.train[0], features.SentenceEncoder(folder, WORDS)(tokens))
    assert "must not have been trained on the records" in made.notes[-1]
    paths = features.locate(splits, "sentence-encoder", given, root=tmp_path)
    stamps = [path.stat().st_mtime_ns for path in paths.values()]
    again = features.apply(splits, "sentence-encoder", given, root=tmp_path)
    assert torch.equal(again.test[0], made.test[0])
    assert [path.stat().st_mtime_ns for path in paths.values()] == stamps
    other = replace(splits, words=(*WORDS[:3], "bad", "good", *WORDS[5:]))
    swapped = features.apply(other, "sentence-encoder", given, root=tmp_path)
    assert not torch.equal(swapped.train[0], made.train[0])
    held = load_file(folder / "model.safetensors")
    save_file({name: 2 * one for name, one in held.items()}, folder / "model.safetensors")
    assert features.locate(splits, "sentence-encoder", given, root=tmp_path) != paths
    with pytest.raises(OptionError, match="needs the data's words, which are not there"):
        features.apply(replace(splits, words=()), "sentence-encoder", given)
    images = replace(data.load("digits"), words=WORDS, extras=splits.extras)
    with pytest.raises(OptionError, match=r"takes texts .*; these inputs have shape \(1, 8, 8\)"):
        features.apply(images, "sentence-encoder", given)


def test_word_clusters_may_stand_beside(folder: Path, tokens: torch.Tensor) -> None:
    labels = torch.tensor([0, 1, 0, 1])
    vectors = torch.randn((len(WORDS), 4), generator=torch.Generator().manual_seed(1))
    splits = data.Splits(
        (tokens, labels), (tokens, labels), data.lookup("imdb"), {"vectors": vectors}, words=WORDS
    )
    given = {"encoder": str(folder), "clusters": 3, "weight": 0.25}
    made = features.apply(splits, "sentence-encoder", given, keep=False).train[0]
    clusters = features.WordClusters(vectors, clusters=3)(tokens)
    sentences = features.SentenceEncoder(folder, WORDS)(tokens)
    together = torch.cat((clusters, 0.25 * sentences), 1)
    lengths = (clusters.norm(dim=1) ** 2 + 0.25**2).sqrt()  # a text of padding has no clusters
    torch.testing.assert_close(made, together / lengths[:, None], rtol=1e-5, atol=1e-6)
    for wrong in ({"weight": 0.0}, {"clusters": -1}):
        with pytest.raises(OptionError, match=f"{next(iter(wrong))} = "):
            features.apply(splits, "sentence-encoder", {**given, **wrong}, keep=False)


def test_tokens_beyond_the_words_are_named(folder: Path) -> None:
    with pytest.raises(DataError, match="token 9 has no word: the table has rows 0 to 8"):
        features.SentenceEncoder(folder, WORDS)(torch.tensor([[9]]))


def test_a_run_says_which_files_and_an_audit_refuses_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETICENT_ENCODER", str(folder))
    note = feature_note("sentence-encoder", {"clusters": 3})
    assert f"(longest 256, clusters 3, weight 0.5, files of fingerprint {encoder_digest()})" in note
    assert feature_note("sentence-encoder", {"clusters": 3, "encoder": str(folder)}) == note
    assert str(folder) not in note
    run = object.__new__(AuditedRun)
    run.folder, run.report = tmp_path, {"ledger": {"notes": ["another", note]}}
    run.settings = Settings(features="sentence-encoder", feature_options={"clusters": 3})
    run._check_features()
    held = load_file(folder / "model.safetensors")
    save_file({name: 2 * one for name, one in held.items()}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match="made with other files than are named now"):
        run._check_features()
    run.report = {"ledger": {"notes": ["inputs are sentence-encoder features (), before"]}}
    run._check_features()  # a run of before there were fingerprints


def test_files_are_kept_by_what_they_hold(folder: Path, tmp_path: Path) -> None:
    splits = data.Splits((None, None), (None, None), data.lookup("imdb"), words=WORDS)
    copied = tmp_path / "copy"
    shutil.copytree(folder, copied)
    first, again = (
        features.locate(splits, "sentence-encoder", {"encoder": str(one)}, root=tmp_path)
        for one in (folder, copied)
    )
    assert first == again
