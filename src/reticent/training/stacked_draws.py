"""Which records each of several models takes in a release, and these records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_map

from reticent.coins import Coins
from reticent.data.records import Batch, Records
from reticent.data.sampling import DeviceDraws, Draws, begin_draws, masks_on
from reticent.errors import ModelError
from reticent.training.run import rounder


class StackedDraws:
    """Which records each model takes in a release: those a separate run would draw.

    Args:
        coins: One for each model.
        rows: The positions of each model's records in the pool.
        rates: The probability that a record of a model takes part.
        device: Where coins are flipped, as a separate run flips them.
    """

    def __init__(
        self,
        coins: Sequence[Coins],
        rows: Sequence[Tensor],
        rates: Sequence[float],
        device: torch.device,
    ) -> None:
        self.coins, self.rates, self.device = coins, rates, device
        self.sizes = [len(row) for row in rows]
        self.rows = torch.cat(list(rows)).to(device)
        begins = [0]
        for size in self.sizes[:-1]:
            begins.append(begins[-1] + size)
        self.begins = torch.tensor(begins, device=device)
        self.first = self.rows[self.begins]
        self._ahead: tuple[int, Draws] | None = None

    def take(self, release: int, *, last: bool) -> tuple[Tensor, Tensor]:
        """Positions in the pool [K, M] and which of them count; padding repeats an own record.

        On a device the next release's draws are enqueued now, so that their sizes have reached the
        host when they are asked for.
        """
        if self.device.type == "cpu":
            return self.at([(release, 0)] * len(self.coins))
        ahead, self._ahead = self._ahead, None
        here = ahead is not None and ahead[0] == release
        begun = ahead[1] if ahead is not None and here else self._begin_all(release)
        drawn = begun.get()
        if not last:
            self._ahead = release + 1, self._begin_all(release + 1)
        return self._padded(drawn)

    def at(
        self, addresses: Sequence[tuple[int, int]], stream: str = "sampling"
    ) -> tuple[Tensor, Tensor]:
        """The same where each model has its own release and trial."""
        if self.device.type != "cpu":
            return self._padded(self._begin(addresses, stream).get())
        each = zip(self.sizes, self.rates, self.coins, addresses, strict=True)
        return self._padded(
            [
                begin_draws(n, rate, coins, stream, [address]).get()[0]
                for n, rate, coins, address in each
            ]
        )

    def _begin_all(self, release: int) -> Draws:
        return self._begin([(release, 0)] * len(self.coins), "sampling")

    def _begin(self, addresses: Sequence[tuple[int, int]], stream: str) -> Draws:
        """All models' draws on a device, with one wait for their sizes."""
        masks = torch.zeros(
            (len(self.sizes), max(self.sizes)), dtype=torch.bool, device=self.device
        )
        each = zip(masks, self.sizes, self.rates, self.coins, addresses, strict=True)
        for mask, n, rate, coins, address in each:
            threshold = math.floor(rate * 2**53) / 2**53  # as for a separate draw
            mask[:n] = masks_on(self.device, n, threshold, coins, stream, [address])[0]
        expected = sum(n * rate for n, rate in zip(self.sizes, self.rates, strict=True))
        return DeviceDraws(masks, expected, to_host=False)

    def _padded(self, drawn: list[Tensor]) -> tuple[Tensor, Tensor]:
        sizes = torch.tensor([len(some) for some in drawn], device=self.device)
        most = max(len(some) for some in drawn)
        most = most if self.device.type == "cpu" else rounder(most)
        valid = torch.arange(most, device=self.device) < sizes.unsqueeze(1)
        local = pad_sequence(drawn, batch_first=True)
        local = torch.nn.functional.pad(local, (0, most - local.shape[1]))
        positions = self.rows[torch.where(valid, local + self.begins.unsqueeze(1), 0)]
        return torch.where(valid, positions, self.first.unsqueeze(1)), valid


def fetch(records: Records, positions: Tensor) -> Batch:
    """The records at positions [K, M], as inputs and targets [K, M, ...]."""
    flat = positions.reshape(-1)
    batch = records.fetch(flat if records.indices_on is None else flat.to(records.indices_on))

    def folded(leaf: Any) -> Tensor:
        if not isinstance(leaf, Tensor):
            raise ModelError(f"a batch holds a {type(leaf).__name__}, not only tensors")
        return leaf.reshape(*positions.shape, *leaf.shape[1:])

    inputs, targets = tree_map(folded, batch[0]), tree_map(folded, batch[1])
    return inputs, targets
