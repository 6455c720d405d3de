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
    many = encoder([*TEXTS, *["film"] * 40, "bad", *["good"] * 40])  # more than are read at once
    torch.testing.assert_close(many[44], expected([5]), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(many[-1], expected([4]), rtol=1e-5, atol=1e-6)
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
    assert pieces.of("good\nfilm\tbad\u00a0good") == [4, 6, 5, 4]
    assert pieces.of("good\ufffd\x00 film") == [4, 6]
    for mark in ("—", "“", "{", "^", ":", "~", "㐀", "豈", "\U00020000", "\U0002f800"):
        assert pieces.of(f"good{mark}film") == [4, 1, 6], mark  # it stands alone
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
        ({"num_hidden_layers": "2"}, "num_hidden_layers = '2': must be a number"),
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


def test_how_a_text_is_computed_does_not_depend_on_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither padding nor the number of rows: one record more would round all others anew."""
    config = {**CONFIG, "max_position_embeddings": 40}
    (folder / "config.json").write_text(json.dumps(config))
    held = tensors()
    held["embeddings.position_embeddings.weight"] = torch.randn(40, WIDTH)
    save_file(held, folder / "model.safetensors")
    encoder = TextEncoder(folder)
    seen: list[tuple[int, ...]] = []
    forward = encoder.bert.forward
    monkeypatch.setattr(
        encoder.bert,
        "forward",
        lambda ids, mask: seen.append(tuple(ids.shape)) or forward(ids, mask),
    )
    texts = ["good", "bad " * 14, "bad " * 15, "film " * 60, ""]
    alone = []
    for text in texts:
        encoder([text])
        alone.append(seen.pop())
    assert [length for _, length in alone] == [16, 16, 32, 40, 16]
    found = encoder([*texts * 9, "good film " * 12])
    assert set(seen) == set(alone)
    for k, text in enumerate(texts):
        torch.testing.assert_close(found[k], encoder([text])[0], rtol=1e-6, atol=1e-7)


def test_the_fingerprint_is_of_every_file(folder: Path) -> None:
    before = encoder_digest(folder)
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole + b" ")
        assert encoder_digest(folder) != before
        (folder / name).write_bytes(whole)
    assert encoder_digest(folder) == before


def test_the_normalisation_is_that_of_the_files(folder: Path) -> None:
    before = TextEncoder(folder)(TEXTS)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "layer_norm_eps": 0.5}))
    assert not torch.allclose(TextEncoder(folder)(TEXTS), before, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "holds", "says"),
    [
        ("config.json", {**CONFIG, "layer_norm_eps": None}, "layer_norm_eps = None: must be a num"),
        ("config.json", {**CONFIG, "layer_norm_eps": -1}, "layer_norm_eps = -1: must be greater"),
        ("config.json", {**CONFIG, "num_hidden_layers": True}, "must be a whole number"),
        ("config.json", {**CONFIG, "position_embedding_type": "relative_key"}, "must be absolute"),
        ("config.json", [], "expected a JSON object"),
        ("tokenizer.json", {"normalizer": "x"}, "expected a JSON object as normalizer"),
        ("tokenizer.json", {"model": [1]}, "expected a JSON object as model"),
        ("tokenizer.json", {"normalizer": {"type": "Sequence"}}, "must be BertNormalizer"),
        ("tokenizer.json", {"normalizer": {"strip_accents": False}}, "keeps accents"),
        ("tokenizer.json", {"model": {"continuing_subword_prefix": "@@"}}, "must begin with ##"),
        ("1_Pooling/config.json", {"pooling_mode": "max"}, "pools by max"),
    ],
)
def test_files_that_say_something_else_are_refused(
    folder: Path, name: str, holds: object, says: str
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(holds))
    with pytest.raises(DataError, match=says):
        TextEncoder(folder)


def test_odd_files_are_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "2_Dense").mkdir()
    with pytest.raises(DataError, match="layers after the pooling are not read"):
        TextEncoder(folder)
    (folder / "2_Dense").rmdir()
    (folder / "config.json").write_text("[" * 100_000)
    with pytest.raises(DataError, match="cannot be read"):
        TextEncoder(folder)
    monkeypatch.setenv("RETICENT_ENCODER", "~nobody-of-that-name/x")
    with pytest.raises(OptionError, match=r"it has no config\.json"):
        TextEncoder()


def test_a_vocabulary_with_capital_letters_is_refused(folder: Path) -> None:
    pieces = [*PIECES[:-1], "Good"]
    (folder / "vocab.txt").write_text("\n".join(pieces))
    with pytest.raises(DataError, match="tells capital letters apart"):
        TextEncoder(folder)
