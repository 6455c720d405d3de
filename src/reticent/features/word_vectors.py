"""Texts as pooled word vectors: mean and maximum over the words, coordinate by coordinate.

Which words a text holds decides most of what a small model can learn of it, and pooled vectors of
public origin say that in a few numbers (Joulin et al. 2017; Shen et al. 2018). Nothing is learned,
and each text is mapped on its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reticent.errors import DataError, OptionError, one_of, whole

POOLINGS = ("mean", "max", "both")
PADDING = 0

# Bytes of the words' vectors looked up at a time: a part of a core's cache, or enough for a GPU.
_WORKING_SET = {"cpu": 4 << 20, "cuda": 256 << 20}


class WordVectors(nn.Module):
    """From tokens [n, length] to [n, width] pooled vectors, or [n, 2·width] for both poolings.

    All tokens but padding count, those without a vector of their own (zeros in the table) too. A
    text of padding alone becomes zeros.

    Args:
        vectors: one row for each token; a copy is kept and never trained.
        pooling: `mean`, `max`, or `both` side by side, the mean first.
        padding: the token that stands for no word.

    Example:
        >>> vectors = torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, -2.0]])
        >>> WordVectors(vectors)(torch.tensor([[0, 1, 2], [0, 0, 0]]))
        tensor([[2., 0., 3., 2.],
                [0., 0., 0., 0.]])
    """

    table: Tensor

    def __init__(self, vectors: Tensor, *, pooling: str = "both", padding: int = PADDING) -> None:
        super().__init__()
        self.pooling = one_of("pooling", pooling, POOLINGS)
        table = checked_table(vectors)
        self.padding = whole("padding", padding, least=0)
        self.register_buffer("table", table, persistent=False)

    @property
    def width(self) -> int:
        """How many numbers a text becomes."""
        return self.table.shape[1] * (2 if self.pooling == "both" else 1)

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        """Pool a batch, a few texts at a time, whose number matters to nothing."""
        check_tokens(tokens, len(self.table))
        result = self.table.new_empty((len(tokens), self.width))
        size = tokens.shape[1] * self.table.shape[1] * self.table.element_size()
        piece = max(1, _WORKING_SET.get(self.table.device.type, 1 << 28) // size)
        for start in range(0, len(tokens), piece):
            chunk = slice(start, start + piece)
            result[chunk] = self._pool(tokens[chunk].to(self.table.device, torch.int64))
        return result

    def _pool(self, tokens: Tensor) -> Tensor:
        words = self.table[tokens]
        absent = (tokens == self.padding).unsqueeze(-1)
        pooled = []
        if self.pooling != "max":
            count = absent.logical_not().sum(1).clamp_(min=1)
            pooled.append(words.masked_fill(absent, 0).sum(1) / count)
        if self.pooling != "mean":
            largest = words.masked_fill(absent, -torch.inf).amax(1)
            pooled.append(largest.masked_fill_(absent.all(1), 0))
        return torch.cat(pooled, 1)


def checked_table(vectors: Tensor) -> Tensor:
    """A copy of the vectors in float32, or what is wrong with them."""
    table = torch.as_tensor(vectors).detach().to(torch.float32).clone()
    if table.dim() != 2 or 0 in table.shape or not bool(table.isfinite().all()):
        raise OptionError(
            "vectors",
            tuple(table.shape),
            "must be a table of finite numbers, one row for each token",
        )
    return table


def check_tokens(tokens: Tensor, rows: int, of: str = "word vector") -> None:
    """Refuse what is no batch of texts in the words of a table of `rows`."""
    if tokens.dim() != 2 or tokens.shape[1] == 0:
        raise DataError(
            f"tokens have shape {tuple(tokens.shape)}: texts are [n, length], length at least 1"
        )
    if tokens.is_floating_point() or tokens.is_complex() or tokens.dtype == torch.bool:
        raise DataError(f"tokens are {tokens.dtype}: they must be whole numbers, such as int64")
    unknown = tokens[(tokens < 0) | (tokens >= rows)]
    if len(unknown):
        raise DataError(f"token {int(unknown[0])} has no {of}: the table has rows 0 to {rows - 1}")
