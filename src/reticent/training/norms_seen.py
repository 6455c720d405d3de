"""How long the records' gradients were before clipping: private, kept only if it is asked for."""

from __future__ import annotations

import math
from typing import Any

import torch

DECADES, EACH = (-6, 6), 8  # bins from 1e-6 to 1e6, so many to a power of ten


class NormsSeen:
    """A histogram of gradient norms, in bins that are the same for all data.

    Counts stay on the device; nothing waits for them until they are read.

    Example:
        >>> seen = NormsSeen()
        >>> seen.add(torch.tensor([0.5, 2.0, 3.0]), bound=1.0)
        >>> found = seen.to_json()
        >>> found["records"], found["above"], sum(found["counts"])
        (3, 2, 3)
    """

    def __init__(self) -> None:
        low, high = DECADES
        size = (high - low) * EACH
        self.edges = [10.0 ** (low + k / EACH) for k in range(size + 1)]
        self._edges: torch.Tensor | None = None
        self._counts: torch.Tensor | None = None
        self._above: torch.Tensor | None = None
        self._low, self._high = math.inf, 0.0

    def add(self, norms: torch.Tensor, bound: float) -> None:
        """Count these norms [n] against the bound they were clipped to."""
        if self._counts is None or self._edges is None or self._above is None:
            inner = torch.tensor(self.edges[1:-1], dtype=torch.float64, device=norms.device)
            self._edges = inner  # what lies outside goes into the outermost bins
            self._counts = torch.zeros(len(self.edges) - 1, dtype=torch.long, device=norms.device)
            self._above = torch.zeros((), dtype=torch.long, device=norms.device)
        lengths = norms.detach().double().nan_to_num(nan=math.inf)
        bins = torch.bucketize(lengths, self._edges, right=True)
        self._counts.index_add_(0, bins, torch.ones_like(bins))
        self._above += (lengths > bound).sum()
        if math.isfinite(bound):
            self._low, self._high = min(self._low, bound), max(self._high, bound)

    def to_json(self) -> dict[str, Any] | None:
        """Bins from the first to the last that is not empty; None where nothing was counted."""
        counts = [] if self._counts is None else self._counts.tolist()
        filled = [place for place, count in enumerate(counts) if count]
        if not filled or self._above is None or not math.isfinite(self._low):
            return None
        first, last = filled[0], filled[-1]
        return {
            "edges": self.edges[first : last + 2],
            "counts": counts[first : last + 1],
            "records": sum(counts),
            "above": int(self._above),
            "bound": [self._low, self._high],
        }
