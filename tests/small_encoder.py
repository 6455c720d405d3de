"""A small encoder of BERT's kind, in the files that such are published with; one of images."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from reticent.encoders import export_encoder

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "good", "bad", "film", "##s", "'", "t", "don", "un"]
WORDS = ("<pad>", "<start>", "<unk>", "good", "bad", "films", "don't", "zzz", "unfilm")
WIDTH, WIDE, HEADS, LAYERS, LONGEST = 12, 20, 3, 2, 16
CONFIG = {
    "model_type": "bert",
    "hidden_act": "gelu",
    "vocab_size": len(PIECES),
    "hidden_size": WIDTH,
    "intermediate_size": WIDE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": LONGEST,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-7,
}


def tensors() -> dict[str, torch.Tensor]:
    coins = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> torch.Tensor:
        return 0.5 * torch.randn(shape, generator=coins)

    found = {
        "embeddings.word_embeddings.weight": drawn(len(PIECES), WIDTH),
        "embeddings.position_embeddings.weight": drawn(LONGEST, WIDTH),
        "embeddings.token_type_embeddings.weight": drawn(2, WIDTH),
        "pooler.dense.weight": drawn(WIDTH, WIDTH),  # not used
    }
    normed = ["embeddings"]
    for k in range(LAYERS):
        layer = f"encoder.layer.{k}"
        normed += [f"{layer}.attention.output", f"{layer}.output"]
        for name, out, into in (
            *((f"attention.self.{part}", WIDTH, WIDTH) for part in ("query", "key", "value")),
            ("attention.output.dense", WIDTH, WIDTH),
            ("intermediate.dense", WIDE, WIDTH),
            ("output.dense", WIDTH, WIDE),
        ):
            found[f"{layer}.{name}.weight"] = drawn(out, into)
            found[f"{layer}.{name}.bias"] = drawn(out)
    for part in normed:
        found[f"{part}.LayerNorm.weight"] = 1 + drawn(WIDTH)
        found[f"{part}.LayerNorm.bias"] = drawn(WIDTH)
    return found


def write_encoder(where: Path) -> Path:
    """The folder, with its files."""
    where.mkdir()
    (where / "config.json").write_text(json.dumps(CONFIG))
    (where / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    save_file(tensors(), where / "model.safetensors")
    return where


def expected(pieces: list[int], *, first: bool = False) -> torch.Tensor:
    """One text by `nn.TransformerEncoderLayer`, which is BERT's layer if it normalises last."""
    held = tensors()
    ids = torch.tensor([2, *pieces, 3])
    x = held["embeddings.word_embeddings.weight"][ids]
    x = x + held["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + held["embeddings.token_type_embeddings.weight"][0]
    norm = (held["embeddings.LayerNorm.weight"], held["embeddings.LayerNorm.bias"])
    x = nn.functional.layer_norm(x, (WIDTH,), *norm, 1e-7)[None]
    for k in range(LAYERS):
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, WIDE, 0.0, "gelu", 1e-7, batch_first=True, norm_first=False
        )
        name = f"encoder.layer.{k}"
        three = ("query", "key", "value")
        names = {
            "self_attn.out_proj": "attention.output.dense",
            "linear1": "intermediate.dense",
            "linear2": "output.dense",
            "norm1": "attention.output.LayerNorm",
            "norm2": "output.LayerNorm",
        }
        state = {
            f"self_attn.in_proj_{kind}": torch.cat(
                [held[f"{name}.attention.self.{part}.{kind}"] for part in three]
            )
            for kind in ("weight", "bias")
        }
        for own, theirs in names.items():
            state |= {
                f"{own}.{kind}": held[f"{name}.{theirs}.{kind}"] for kind in ("weight", "bias")
            }
        layer.load_state_dict(state)
        x = layer(x)
    one = x[0][0] if first else x[0].mean(0)
    return (one / one.norm()).detach()


def write_image_encoder(path: Path, side: int, rows: int = 16) -> Path:
    """Random convolutions of two kinds of patches, with what every place has."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        stem = nn.Conv2d(3, 24, 3, padding=1)
        wide = nn.Conv2d(24, 32, 3, stride=2)
    pooled = (nn.AdaptiveAvgPool2d(2), nn.Flatten())
    return export_encoder(nn.Sequential(stem, nn.ReLU(), wide, *pooled), path, side=side, rows=rows)
