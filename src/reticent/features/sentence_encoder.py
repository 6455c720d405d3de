"""Texts as the vectors of a frozen public sentence encoder of BERT's kind, which the user brings.

Nothing is learned from the records, and each text is mapped on its own; what the encoder was
trained on is for whoever chooses it to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reticent.encoders import LONGEST, TextEncoder
from reticent.errors import single
from reticent.features.word_vectors import PADDING, check_tokens


class SentenceEncoder(nn.Module):
    """From tokens [n, length] to [n, width] vectors of length 1.

    A token is a word of the data's vocabulary and becomes its word pieces; padding and the other
    marks, such as a text's start, become none.

    Args:
        encoder: As for `TextEncoder`.
        words: The word of every token; marks in angle brackets are skipped, but for <unk>.
        longest: As for `TextEncoder`.
        padding: The token that stands for no word.
    """

    def __init__(
        self,
        encoder: str | Path,
        words: Sequence[str],
        *,
        longest: int = LONGEST,
        padding: int = PADDING,
    ) -> None:
        super().__init__()
        self.encoder = TextEncoder(encoder, longest=longest)
        self.padding = padding
        self._pieces = [self.encoder.pieces.of_token(word) for word in words]

    @property
    def width(self) -> int:
        """How many numbers a text becomes."""
        return self.encoder.width

    @property
    def longest(self) -> int:
        """How many word pieces of a text are read."""
        return self.encoder.longest

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        """Encode a batch."""
        check_tokens(tokens, len(self._pieces), "word")
        return self.encoder.of_pieces(
            [
                [piece for token in text if token != self.padding for piece in self._pieces[token]]
                for text in tokens.tolist()
            ]
        )


class WithClusters(nn.Module):
    """An encoder's vectors beside word clusters, of length 1 together.

    Which words a text has and what a sentence says are not the same: a linear layer on both gets
    more right than on either.

    Args:
        encoder: A `SentenceEncoder`.
        clusters: A `WordClusters`, whose features have length 1.
        weight: The length of the encoder's vectors beside them, before both are scaled to 1.
    """

    def __init__(self, encoder: nn.Module, clusters: nn.Module, weight: float) -> None:
        super().__init__()
        self.encoder, self.clusters = encoder, clusters
        self.weight = single("weight", weight)

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        """From tokens [n, length]; the clusters' numbers come first."""
        both = self.clusters(tokens), self.weight * self.encoder(tokens)
        return F.normalize(torch.cat(both, 1), dim=1)
