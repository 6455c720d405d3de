"""Ordinary gradients of whole batches, for methods that promise no differential privacy.

No example's part is bounded here, so nothing that comes from these calls has a sensitivity, and no
charge but `NonPrivate` can pay for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from reticent.coins import Coins
from reticent.data.records import Batch, Records
from reticent.data.sampling import record_coins
from reticent.errors import OptionError
from reticent.gradients.batches import call
from reticent.gradients.losses import per_example_losses


class Unclipped:
    """What a run offers to methods without a guarantee; the base of `Run`."""

    model: nn.Module
    records: Records
    loss_fn: Any
    coins: Coins
    device: torch.device
    state: Any
    microbatch: int

    def _address(self, stream: str, later: int = 0) -> tuple[int, int]:
        raise NotImplementedError

    def _computing(self, stream: str, later: int, piece: int) -> AbstractContextManager[None]:
        raise NotImplementedError

    def permutation(self, stream: str) -> torch.Tensor:
        """All records in random order, from secret coins."""
        where = self._address(stream)
        flips = record_coins(self.records.n, self.coins, stream, *where, device=self.device)
        order = flips.argsort()
        return order if self.records.indices_on is None else order.to(self.records.indices_on)

    def partition(self, parts: int, stream: str) -> list[torch.Tensor]:
        """The records in `parts` random batches whose sizes differ by at most one."""
        if parts > self.records.n:
            raise OptionError("batches", parts, f"exceeds the number of records {self.records.n}")
        return list(self.permutation(stream).tensor_split(parts))

    def subset(self, size: int, stream: str) -> torch.Tensor:
        """`size` different records at random."""
        return self.permutation(stream)[:size]

    def fetch(self, indices: torch.Tensor) -> Batch:
        """The records themselves, on the training device. Private."""
        return self.records.fetch(indices)

    def batch_gradient(self, indices: torch.Tensor, stream: str = "model") -> torch.Tensor:
        """The gradient [P] of the mean loss of these records, in pieces. Private, and unbounded.

        Dropout draws from coins of `stream`.
        """
        total: torch.Tensor | None = None
        for number, piece in enumerate(indices.split(self.microbatch)):
            inputs, targets = self.records.fetch(piece)
            with self._computing(stream, 0, number), torch.enable_grad():
                losses = per_example_losses(self.loss_fn, call(self.model, inputs), targets)
                part = self.state.parameters.gradient_of(losses.sum() / len(indices))
            total = part if total is None else total.add_(part)
        assert total is not None
        return total
