"""Texts as averages over their words: directions of meaning, and which of many meanings occur.

A word is its public vector, whitened by the vocabulary and brought to unit length, beside soft
memberships in clusters of such vectors. The first says in which direction a text leans; the second
keeps apart what an average of vectors blurs, close to counting words but with synonyms together.
Clusters are of the vocabulary's vectors alone: nothing is learned from any text.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reticent.errors import OptionError, positive, whole
from reticent.features.word_vectors import PADDING, check_tokens, checked_table

_ROUNDS = 15
_WORDS = 4096  # whose cosines with all clusters are taken at a time
_SCALE = 10.0  # the length of a whitened vector of 100 dimensions


class WordClusters(nn.Module):
    """From tokens [n, length] to [n, width + clusters], two unit vectors side by side, scaled to 1.

    Words without a vector of their own (zeros in the table) do not count; a text without any word
    that counts becomes zeros.

    Args:
        vectors: one row for each token.
        clusters: how many; 0 for directions alone.
        sharpness: of memberships: the softmax of `sharpness` times ten times the cosine.
        seed: of the clusters' beginning; public.
    """

    vectors: Tensor
    table: Tensor | None

    def __init__(
        self, vectors: Tensor, *, clusters: int = 4000, sharpness: float = 1.5, seed: int = 0
    ) -> None:
        super().__init__()
        checked = checked_table(vectors)
        known = int((checked.abs().sum(1) > 0).sum())
        if known == 0:
            raise OptionError("vectors", tuple(checked.shape), "must not all be zeros")
        self.clusters = whole("clusters", clusters, least=0)
        if self.clusters > known:
            raise OptionError("clusters", clusters, f"must be at most the {known} words' number")
        self.sharpness = positive("sharpness", sharpness)
        self.seed = whole("seed", seed, least=0)
        self.register_buffer("vectors", checked, persistent=False)
        self.register_buffer("table", None, persistent=False)

    @property
    def width(self) -> int:
        """How many numbers a text becomes."""
        return self.vectors.shape[1] + self.clusters

    @torch.no_grad()
    def forward(self, tokens: Tensor) -> Tensor:
        """Average over the words of each text."""
        check_tokens(tokens, len(self.vectors))
        if len(tokens) == 0:
            return self.vectors.new_zeros((0, self.width))
        table, directions = self.words(), self.vectors.shape[1]
        tokens = tokens.to(table.device, torch.int64)
        known = (table[:, :directions].abs().sum(1) > 0)[tokens] & (tokens != PADDING)
        share = known / known.sum(1, keepdim=True).clamp(min=1)
        sums = F.embedding_bag(tokens, table, mode="sum", per_sample_weights=share.to(table.dtype))
        parts = [part for part in (sums[:, :directions], sums[:, directions:]) if part.shape[1]]
        both = torch.cat([F.normalize(part, dim=1) for part in parts], dim=1)
        return both / len(parts) ** 0.5

    def words(self) -> Tensor:
        """A row of features for every word, made when first asked for; on the CPU, for one answer.

        Zeros for words without a vector.
        """
        if self.table is None:
            made = _make(self.vectors.cpu(), self.clusters, self.sharpness, self.seed)
            self.table = made.to(self.vectors.device)
        return self.table


def _make(table: Tensor, clusters: int, sharpness: float, seed: int) -> Tensor:
    known = table.abs().sum(1) > 0
    words = table[known].double()
    centred = words - words.mean(0)
    variances, axes = torch.linalg.eigh(centred.T @ centred / len(words))
    least = max(1e-6 * float(variances.amax()), torch.finfo(torch.float64).tiny)  # > 0: one word
    # back to the vectors' own axes: signs of eigenvectors differ between machines
    whitened = centred @ (axes / variances.clamp(min=least).sqrt()) @ axes.T
    units = F.normalize(whitened, dim=1).float()
    made = table.new_zeros((len(table), table.shape[1] + clusters))
    made[known, : table.shape[1]] = units
    if clusters:
        centres = _cluster(units, clusters, seed)
        members = (sharpness * _SCALE * (units @ centres.T)).softmax(dim=1)
        made[known, table.shape[1] :] = members - members.mean(0)
    return made


def _cluster(units: Tensor, clusters: int, seed: int) -> Tensor:
    """Spherical k-means (Dhillon & Modha 2001): unit centres [clusters, d] of unit vectors."""
    order = torch.randperm(len(units), generator=Generator().manual_seed(seed))
    centres = units[order[:clusters]]
    for _ in range(_ROUNDS):
        nearest = torch.cat([(part @ centres.T).argmax(1) for part in units.split(_WORDS)])
        sums = torch.zeros_like(centres).index_add_(0, nearest, units)
        empty = sums.abs().sum(1) == 0
        centres = torch.where(empty[:, None], centres, F.normalize(sums, dim=1))
    return centres
