"""Encoders that users bring: their files, word pieces by hand, vectors by PyTorch's own layers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from reticent.encoders import TextEncoder, about, encoder_digest
from reticent.encoders.pieces import WordPieces
from reticent.errors import DataError, OptionError

from ..small_encoder import CONFIG, PIECES, WIDTH, WORDS, expected, tensors, write_encoder

TEXTS = ["Good films", "bad UNFILM, don't", "", "good films"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_encoder(tmp_path / "encoder")


def test_vectors_of_texts(folder: Path) -> None:
    encoder = TextEncoder(folder)
    found = encoder(TEXTS)
    assert about(folder) == (WIDTH, encoder_digest(folder))
    for row, text in zip(found, TEXTS, strict=True):
        pieces = encoder.pieces.of(text)
        torch.testing.assert_close(row, expected(pieces), rtol=1e-5, atol=1e-6)
    assert torch.equal(found[0], found[3])
    for text, row in zip(TEXTS, found, strict=True):  # each on its own
        torch.testing.assert_close(encoder([text])[0], row, rtol=1e-5, atol=1e-6)
    assert encoder([]).shape == (0, WIDTH)


def test_words_are_cut_as_bert_cuts_them() -> None:
    pieces = WordPieces(PIECES)
    assert pieces.of("films") == [6, 7]
    assert pieces.of("don't") == [10, 8, 9]
    assert pieces.of("Góod  FILM") == [4, 6]
    assert pieces.of("filmy") == [1]  # whole runs are known or not
    assert pieces.of("s") == [1]  # a piece inside a word does not begin one
    assert pieces.of("good's") == [4, 8, 1]
    assert pieces.of("good\u200b") == [4]
    assert pieces.of("t日t") == [9, 1, 9]
    assert pieces.of("t" * 101) == [1]
    assert pieces.of("") == []
    assert [pieces.of_token(mark) for mark in WORDS[:3]] == [[], [], [1]]
    with pytest.raises(DataError, match=r"no \[CLS\]: it is not BERT's kind"):
        WordPieces(["[UNK]", "[SEP]"])


def test_the_environment_may_name_the_encoder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RETICENT_ENCODER", raising=False)
    with pytest.raises(OptionError, match=r"encoder = '': .* here or in \$RETICENT_ENCODER"):
        TextEncoder("")
    assert encoder_digest("") == ""
    monkeypatch.setenv("RETICENT_ENCODER", str(folder))
    assert encoder_digest("") == encoder_digest(str(folder)) != ""
    named = TextEncoder(folder)(TEXTS)
    assert torch.equal(TextEncoder("")(TEXTS), named)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "vocab.txt"])
def test_a_folder_that_is_not_whole_is_refused(folder: Path, name: str) -> None:
    assert encoder_digest(str(folder))
    whole = (folder / name).read_bytes()
    (folder / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cannot be read|word pieces; config.json has 12"):
        TextEncoder(folder)
    (folder / name).unlink()
    with pytest.raises(OptionError, match=f"encoder = .*must be a folder with .* it has no {name}"):
        TextEncoder(folder)
    assert encoder_digest(str(folder)) == encoder_digest("") == ""


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt2"}, "model_type must be bert"),
        ({"hidden_act": "relu"}, "hidden_act must be gelu, not relu"),
        ({"num_attention_heads": 5}, "hidden_size must be a multiple of num_attention_heads"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers must be a whole number from 1, not '2'"),
        ({"num_hidden_layers": 3}, r"expected \(12, 12\) numbers as .*layer.2.*, found nothing"),
        ({"intermediate_size": 21}, r"expected \(21, 12\) .*, found \(20, 12\)"),
    ],
)
def test_another_kind_of_encoder_is_refused(
    folder: Path, change: dict[str, object], says: str
) -> None:
    (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
    with pytest.raises(DataError, match=says):
        TextEncoder(folder)


def test_weights_that_are_not_finite_are_refused(folder: Path) -> None:
    held = load_file(folder / "model.safetensors")
    held["encoder.layer.1.output.dense.bias"][3] = torch.nan
    save_file(held, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"layer.1.output.dense.bias holds .* not finite"):
        TextEncoder(folder)


def test_names_with_a_prefix_are_known(folder: Path) -> None:
    before = TextEncoder(folder)(TEXTS)
    held = {f"bert.{name}": one for name, one in tensors().items()}
    save_file(held, folder / "model.safetensors")
    assert torch.equal(TextEncoder(folder)(TEXTS), before)


def test_word_pieces_may_come_with_the_tokenizer(folder: Path) -> None:
    before = TextEncoder(folder)(TEXTS)
    (folder / "vocab.txt").unlink()
    numbers = {piece: k for k, piece in reversed(list(enumerate(PIECES)))}
    tokenizer = {"normalizer": {"lowercase": True}, "model": {"type": "WordPiece"}}
    tokenizer["model"]["vocab"] = numbers
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    assert torch.equal(TextEncoder(folder)(TEXTS), before)
    named = encoder_digest(str(folder))
    for wrong, says in (
        ({"type": "BPE"}, "its model must be WordPiece"),
        ({"vocab": {"[PAD]": 0, "good": 0}}, "numbered from 0, each once"),
    ):
        broken = {**tokenizer, "model": {**tokenizer["model"], **wrong}}
        (folder / "tokenizer.json").write_text(json.dumps(broken))
        with pytest.raises(DataError, match=says):
            TextEncoder(folder)
        assert encoder_digest(str(folder)) != named


@pytest.mark.parametrize(
    ("name", "holds"),
    [
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("tokenizer.json", {"normalizer": {"lowercase": False}}),
    ],
)
def test_encoders_that_tell_capital_letters_apart_are_refused(
    folder: Path, name: str, holds: dict[str, object]
) -> None:
    (folder / name).write_text(json.dumps(holds))
    with pytest.raises(DataError, match="tells capital letters apart"):
        TextEncoder(folder)


def test_vectors_are_pooled_as_the_encoder_was_trained(folder: Path) -> None:
    mean = TextEncoder(folder)(TEXTS)
    where = folder / "1_Pooling" / "config.json"
    where.parent.mkdir()

    def said(**modes: bool) -> None:
        where.write_text(json.dumps({"word_embedding_dimension": WIDTH, **modes}))

    said(pooling_mode_mean_tokens=True, pooling_mode_cls_token=False)
    assert torch.equal(TextEncoder(folder)(TEXTS), mean)
    as_mean = encoder_digest(str(folder))
    said(pooling_mode_cls_token=True)
    assert encoder_digest(str(folder)) != as_mean
    made = TextEncoder(folder)
    first = made(TEXTS)
    assert not torch.allclose(first, mean, atol=1e-3)
    torch.testing.assert_close(first[0], expected([4, 6, 7], first=True), rtol=1e-5, atol=1e-6)
    said(pooling_mode_max_tokens=True)
    with pytest.raises(DataError, match="pools by pooling_mode_max_tokens; one of"):
        TextEncoder(folder)
