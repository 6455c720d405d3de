"""Texts to vectors of length 1 by a frozen encoder of BERT's kind.

The mean of a transformer's last vectors over a text's word pieces, of length 1 (Devlin et al. 2019;
Reimers and Gurevych 2019), or the first of them where the encoder says so. Nothing is learned from
the texts, and each is mapped on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reticent.encoders.files import EMBEDDINGS, FIRST, Encoder
from reticent.encoders.pieces import WordPieces
from reticent.errors import DataError, whole

LONGEST = 256
"""Word pieces of a text that are read if nothing is said: as many as most are trained on."""
_CHARACTERS = 256  # more than a piece of a hundred letters, with spaces, ever has on average
_AT_ONCE = {"cpu": 16, "cuda": 512}  # texts; always as many, whoever else is there
_STEP = 16  # word pieces; a text is padded to a multiple of it


class TextEncoder(nn.Module):
    """From texts to [n, width] vectors of length 1.

    A text without words is [CLS] and [SEP] alone.

    Args:
        encoder: Folder with `config.json`, `model.safetensors`, and `vocab.txt` or `tokenizer.json`
            of a BERT encoder; if empty, that of $RETICENT_ENCODER.
        longest: Word pieces of a text that are read, the first ones; the encoder may read fewer.
    """

    def __init__(self, encoder: str | Path = "", *, longest: int = LONGEST) -> None:
        super().__init__()
        read = Encoder.read(encoder)
        self.pieces = WordPieces(read.vocabulary)
        self.bert = Bert(read)
        # [CLS], one piece and [SEP] at least
        self.longest = min(whole("longest", longest, least=3), len(self.bert.positions))

    @property
    def width(self) -> int:
        """How many numbers a text becomes."""
        return self.bert.width

    def forward(self, texts: Sequence[str]) -> Tensor:
        """Encode texts."""
        most = _CHARACTERS * self.longest  # a long text is not cut to its end
        return self.of_pieces([self.pieces.of(text[:most]) for text in texts])

    @torch.no_grad()
    def of_pieces(self, texts: Sequence[Sequence[int]]) -> Tensor:
        """Encode texts that are cut already.

        The shape in which a text is computed follows from its own length: padded to the longest of
        a batch, it would be rounded otherwise when a record is added or removed.
        """
        device = self.bert.positions.device
        result = torch.empty((len(texts), self.width), device=device)
        alike: dict[int, list[int]] = {}
        for k, text in enumerate(texts):
            length = len(self._whole(text))
            alike.setdefault(min(-(-length // _STEP) * _STEP, self.longest), []).append(k)
        size = _AT_ONCE.get(device.type, 64)
        for length, numbers in alike.items():
            for start in range(0, len(numbers), size):
                some = numbers[start : start + size]
                ids = torch.zeros((size, length), dtype=torch.long)
                mask = torch.zeros((size, length))
                mask[:, 0] = 1  # rows that are no text count for nothing, but must be finite
                for row, k in enumerate(some):
                    pieces = self._whole(texts[k])
                    ids[row, : len(pieces)] = torch.tensor(pieces)
                    mask[row, : len(pieces)] = 1
                result[some] = self.bert(ids.to(device), mask.to(device))[: len(some)]
        if not bool(result.isfinite().all()):
            raise DataError("the encoder's vectors are not finite: its weights are damaged")
        return result

    def _whole(self, pieces: Sequence[int]) -> list[int]:
        return [self.pieces.first, *pieces[: self.longest - 2], self.pieces.last]


class Bert(nn.Module):
    """BERT's encoder and one vector of what it puts out (Devlin et al. 2019), frozen."""

    words: Tensor
    positions: Tensor

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.heads, self.layers = encoder.heads, encoder.layers
        self.epsilon, self.pooling = encoder.epsilon, encoder.pooling
        own = {part: encoder.weights[f"embeddings.{part}.weight"] for part in EMBEDDINGS}
        for name, tensor in encoder.weights.items():
            if not any(tensor is one for one in own.values()):
                self.register_buffer(name.replace(".", "_"), tensor, persistent=False)
        self.register_buffer("words", own["word_embeddings"], False)
        # a text is one segment: the first kind throughout
        positions = own["position_embeddings"] + own["token_type_embeddings"][0]
        self.register_buffer("positions", positions, False)

    @property
    def width(self) -> int:
        """Of its vectors."""
        return self.words.shape[1]

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """From word pieces [n, length], and 1 where there is one, to [n, width] of length 1."""
        x = self.words[ids] + self.positions[: ids.shape[1]]
        x = self._normalised(x, "embeddings")
        seen = mask.bool()[:, None, None, :]
        for k in range(self.layers):
            x = self._layer(x, seen, f"encoder.layer.{k}")
        if self.pooling == FIRST:
            return F.normalize(x[:, 0], dim=1)
        weight = mask.unsqueeze(-1)
        return F.normalize((x * weight).sum(1) / weight.sum(1), dim=1)

    def _layer(self, x: Tensor, seen: Tensor, name: str) -> Tensor:
        n, length, width = x.shape
        query, key, value = (
            self._dense(x, f"{name}.attention.self.{part}")
            .view(n, length, self.heads, width // self.heads)
            .transpose(1, 2)
            for part in ("query", "key", "value")
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen)
        mixed = mixed.transpose(1, 2).reshape(n, length, width)
        mixed = self._dense(mixed, f"{name}.attention.output.dense")
        x = self._normalised(x + mixed, f"{name}.attention.output")
        wide = F.gelu(self._dense(x, f"{name}.intermediate.dense"))
        return self._normalised(x + self._dense(wide, f"{name}.output.dense"), f"{name}.output")

    def _dense(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weight(f"{name}.weight"), self._weight(f"{name}.bias"))

    def _normalised(self, x: Tensor, name: str) -> Tensor:
        scale = self._weight(f"{name}.LayerNorm.weight")
        shift = self._weight(f"{name}.LayerNorm.bias")
        return F.layer_norm(x, scale.shape, scale, shift, self.epsilon)

    def _weight(self, name: str) -> Tensor:
        found = getattr(self, name.replace(".", "_"))
        assert isinstance(found, Tensor)
        return found
