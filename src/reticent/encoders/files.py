"""A sentence encoder of BERT's kind, as its files have it: checked before it is used.

The files are those that encoders are published with: `config.json`, `model.safetensors` (no
pickles), and `vocab.txt` or `tokenizer.json`. Where there are files that say how texts are cut and
vectors pooled, they are heeded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from reticent.errors import DataError, OptionError, positive, whole
from reticent.files import read_json

_N = TypeVar("_N")

ENVIRONMENT = "RETICENT_ENCODER"
CONFIG, WEIGHTS, VOCABULARY = "config.json", "model.safetensors", "vocab.txt"
TOKENIZER, CUTTING, POOLING = "tokenizer.json", "tokenizer_config.json", "1_Pooling/config.json"
MEAN, FIRST = "mean", "first"
_POOLINGS = {"pooling_mode_mean_tokens": MEAN, "pooling_mode_cls_token": FIRST}
_SHORT = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers"),
    *("num_attention_heads", "max_position_embeddings", "type_vocab_size"),
)
_STATED = {"hidden_act": "gelu", "position_embedding_type": "absolute"}
_PREFIX = "##"


@dataclass(frozen=True)
class Encoder:
    """What the files hold.

    Attributes:
        heads: Of attention, in every layer.
        layers: How many.
        epsilon: Of layer normalisation.
        weights: In float32, by BERT's names.
        vocabulary: The word pieces.
        pooling: `mean` of a text's vectors, or the `first` of them.
    """

    heads: int
    layers: int
    epsilon: float
    weights: dict[str, Tensor]
    vocabulary: list[str]
    pooling: str = MEAN

    @classmethod
    def read(cls, encoder: str | Path) -> Encoder:
        """The encoder in a folder, or what is wrong with it."""
        folder = where(encoder)
        if folder is None:
            raise OptionError(
                "encoder", str(encoder), f"name the folder of one, here or in ${ENVIRONMENT}"
            )
        missing = _missing(folder)
        if missing:
            raise OptionError(
                "encoder",
                str(folder),
                f"must be a folder with {CONFIG}, {WEIGHTS} and {VOCABULARY} of a sentence "
                f"encoder of BERT's kind, such as all-MiniLM-L6-v2; it has no {missing}",
            )
        try:
            config = _read(folder / CONFIG)
            held = load_file(folder / WEIGHTS)
            vocabulary = _vocabulary(folder)
            pooling = _pooling(folder)
        except DataError:
            raise
        except (OSError, ValueError, SafetensorError) as error:
            raise DataError(f"{folder}: the encoder cannot be read ({error})") from error
        sizes = _sizes(folder / CONFIG, config)
        if len(vocabulary) != sizes["vocab_size"]:
            raise DataError(
                f"{folder}: {len(vocabulary)} word pieces; {CONFIG} has {sizes['vocab_size']}"
            )
        named = {name.removeprefix("bert."): tensor for name, tensor in held.items()}
        return cls(
            heads=sizes["num_attention_heads"],
            layers=sizes["num_hidden_layers"],
            epsilon=_checked(
                folder / CONFIG, positive, "layer_norm_eps", config.get("layer_norm_eps", 1e-12)
            ),
            weights=_weights(folder / WEIGHTS, named, sizes),
            vocabulary=vocabulary,
            pooling=pooling,
        )


def where(encoder: str | Path = "") -> Path | None:
    """The folder that is meant: $RETICENT_ENCODER where none is named."""
    named = str(encoder) or os.environ.get(ENVIRONMENT, "")
    if not named:
        return None
    try:
        return Path(named).expanduser()
    except RuntimeError:  # ~somebody who is not there
        return Path(named)


def _missing(folder: Path) -> str | None:
    """The first file that is not there; word pieces may be in either of two."""
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            return name
    if any((folder / name).is_file() for name in (VOCABULARY, TOKENIZER)):
        return None
    return f"{VOCABULARY} or {TOKENIZER}"


def _read(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one where there is no file."""
    return _object(path, read_json(path) if path.is_file() else {})


def _object(path: Path, found: Any, name: str = "") -> dict[str, Any]:
    if found is None and name:
        return {}
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a JSON object{f' as {name}' if name else ''}")
    return found


def _checked(path: Path, rule: Callable[[str, Any], _N], name: str, value: Any) -> _N:
    """A number of a file, by one of the rules for options."""
    try:
        return rule(name, value)
    except (OptionError, TypeError) as error:
        hint = error.hint if isinstance(error, OptionError) else "must be a number"
        raise DataError(f"{path}: {name} = {value!r}: {hint}") from None


def _vocabulary(folder: Path) -> list[str]:
    """The word pieces in their order, of an encoder that knows no capital letters."""
    path = folder / TOKENIZER
    tokenizer = _read(path)
    normalizer = _object(path, tokenizer.get("normalizer"), "normalizer")
    model = _object(path, tokenizer.get("model"), "model")
    if normalizer.get("type", "BertNormalizer") != "BertNormalizer":
        raise DataError(f"{path}: its normalizer must be BertNormalizer")
    if normalizer.get("strip_accents") is False:
        raise DataError(f"{path}: the encoder keeps accents; such are not read")
    if model.get("continuing_subword_prefix", _PREFIX) != _PREFIX:
        raise DataError(f"{path}: pieces inside words must begin with {_PREFIX}")
    lowers = (normalizer.get("lowercase"), _read(folder / CUTTING).get("do_lower_case"))
    pieces = _pieces(folder, path, model)
    letters = (piece for piece in pieces if not (piece.startswith("[") and piece.endswith("]")))
    if False in lowers or any(piece != piece.lower() for piece in letters):
        raise DataError(f"{folder}: the encoder tells capital letters apart; such are not read")
    return pieces


def _pieces(folder: Path, path: Path, model: dict[str, Any]) -> list[str]:
    if (folder / VOCABULARY).is_file():
        return (folder / VOCABULARY).read_text(encoding="utf-8-sig").splitlines()
    numbers = model.get("vocab")
    if model.get("type") != "WordPiece" or not isinstance(numbers, dict):
        raise DataError(f"{path}: its model must be WordPiece, with a vocabulary")
    if sorted(str(number) for number in numbers.values()) != sorted(map(str, range(len(numbers)))):
        raise DataError(f"{path}: word pieces must be numbered from 0, each once")
    return sorted(numbers, key=lambda piece: int(numbers[piece]))


def _pooling(folder: Path) -> str:
    """How the encoder was trained to make one vector of many; by their mean if nothing says."""
    stated = _read(folder / POOLING)
    modes = {name for name, value in stated.items() if value and name.startswith("pooling_mode_")}
    if isinstance(stated.get("pooling_mode"), str):
        modes |= {_SHORT.get(stated["pooling_mode"], stated["pooling_mode"])}
    further = {"2_Dense", "3_Dense"} & {path.name for path in folder.iterdir()}
    if further:
        raise DataError(f"{folder / further.pop()}: layers after the pooling are not read")
    if not modes:
        return MEAN
    if len(modes) > 1 or not modes <= set(_POOLINGS):
        raise DataError(
            f"{folder / POOLING}: pools by {', '.join(sorted(modes))}; one of "
            f"{', '.join(_POOLINGS)} is read"
        )
    return _POOLINGS[modes.pop()]


def _sizes(path: Path, config: dict[str, Any]) -> dict[str, int]:
    if config.get("model_type") != "bert":
        raise DataError(f"{path}: model_type must be bert; other encoders are not read")
    for name, value in _STATED.items():
        if config.get(name, value) != value:
            raise DataError(f"{path}: {name} must be {value}, not {config[name]}")
    sizes = {name: _checked(path, whole, name, config.get(name)) for name in _SIZES}
    if sizes["hidden_size"] % sizes["num_attention_heads"]:
        raise DataError(f"{path}: hidden_size must be a multiple of num_attention_heads")
    return sizes


def _weights(path: Path, held: Mapping[str, Tensor], sizes: Mapping[str, int]) -> dict[str, Tensor]:
    """Those that are used, whatever else the file holds."""
    found = {}
    for name, shape in _shapes(sizes):
        if name not in held or tuple(held[name].shape) != shape:
            has = tuple(held[name].shape) if name in held else "nothing"
            raise DataError(f"{path}: expected {shape} numbers as {name}, found {has}")
        found[name] = held[name].float()
        if not bool(found[name].isfinite().all()):
            raise DataError(f"{path}: {name} holds numbers that are not finite")
    return found


def _shapes(sizes: Mapping[str, int]) -> Iterator[tuple[str, tuple[int, ...]]]:
    width, wide = sizes["hidden_size"], sizes["intermediate_size"]
    rows = (sizes[n] for n in ("vocab_size", "max_position_embeddings", "type_vocab_size"))
    for part, count in zip(EMBEDDINGS, rows, strict=True):
        yield f"embeddings.{part}.weight", (count, width)
    normed = ["embeddings"]
    for k in range(sizes["num_hidden_layers"]):
        layer = f"encoder.layer.{k}"
        normed += [f"{layer}.attention.output", f"{layer}.output"]
        dense = {f"attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        dense |= {"attention.output.dense": (width, width)}
        dense |= {"intermediate.dense": (wide, width), "output.dense": (width, wide)}
        for name, (out, into) in dense.items():
            yield f"{layer}.{name}.weight", (out, into)
            yield f"{layer}.{name}.bias", (out,)
    for part in normed:
        yield f"{part}.LayerNorm.weight", (width,)
        yield f"{part}.LayerNorm.bias", (width,)


def about(encoder: str | Path = "") -> tuple[int, str]:
    """How many numbers an encoder makes of a text, and its fingerprint; all of it is checked."""
    words = Encoder.read(encoder).weights["embeddings.word_embeddings.weight"]
    return words.shape[1], encoder_digest(encoder)


def encoder_digest(encoder: str | Path = "") -> str:
    """A fingerprint of an encoder's files; empty where they are not all there."""
    folder = where(encoder)
    if folder is None or _missing(folder):
        return ""
    digest = hashlib.blake2b(digest_size=16)
    for name in (CONFIG, WEIGHTS, VOCABULARY, TOKENIZER, CUTTING, POOLING):
        if (folder / name).is_file():
            held = hashlib.blake2b((folder / name).read_bytes()).digest()
            digest.update(name.encode() + held)
    return digest.hexdigest()
