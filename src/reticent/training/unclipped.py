"""Ordinary gradients of whole batches, for methods that promise no differential privacy.

No example's part is bounded here, so nothing that comes from these calls has a sensitivity, and no
charge but `NonPrivate` can pay for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad
from torch.utils._pytree import tree_map

from reticent.coins import Coins
from reticent.data.records import Batch, Records
from reticent.data.sampling import record_coins
from reticent.errors import ModelError, OptionError, ReticentError
from reticent.gradients.batches import arguments, call
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
    _shuffled: tuple[int, str, torch.Tensor] | None = None

    def _address(self, stream: str, later: int = 0) -> tuple[int, int]:
        raise NotImplementedError

    def _computing(self, stream: str, later: int, piece: int) -> AbstractContextManager[None]:
        raise NotImplementedError

    def permutation(self, stream: str) -> torch.Tensor:
        """All records in random order, from secret coins."""
        where = self._address(stream)
        flips = record_coins(self.records.n, self.coins, stream, *where, device=self.device)
        return self._placed(flips.argsort())

    def _placed(self, indices: torch.Tensor) -> torch.Tensor:
        where = self.records.indices_on
        return indices if where is None else indices.to(where)

    def shuffled(self, epoch: int, stream: str) -> torch.Tensor:
        """All records in an order that holds for a whole epoch, which may be many releases.

        Its coins are addressed by the epoch, so that a resumed run goes on with the same order. It
        is kept until another epoch is asked for.
        """
        self._address(stream)
        if self._shuffled is None or self._shuffled[:2] != (epoch, stream):
            where = (f"{stream}, by epoch", epoch)
            flips = record_coins(self.records.n, self.coins, *where, device=self.device)
            self._shuffled = (epoch, stream, self._placed(flips.argsort()))
        return self._shuffled[2]

    def order(self, count: int, stream: str) -> list[int]:
        """The numbers from 0 to `count` - 1 in random order."""
        flips = self.coins.uniform((count,), stream, *self._address(stream))
        return [int(place) for place in flips.argsort().tolist()]

    def chance(self, stream: str) -> float:
        """A number uniform on [0, 1)."""
        return float(self.coins.uniform((), stream, *self._address(stream)))

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

    def batch_gradients(self, batches: Sequence[torch.Tensor], stream: str) -> torch.Tensor:
        """The gradients [batches, P] of the mean losses of several batches. Private, and unbounded.

        Where all of them fit into one piece, from one pass, which pays if a batch is too little
        work for the device. Batches may differ in size. Dropout draws from coins of `stream`.
        """
        most = max(len(batch) for batch in batches)
        if len(batches) == 1:
            return self.batch_gradient(batches[0], stream)[None]
        if len(batches) * most > self.microbatch:
            each = enumerate(batches)
            return torch.stack([self.batch_gradient(b, f"{stream}, batch {j}") for j, b in each])
        with self._computing(stream, 0, 0), torch.enable_grad():
            return self._vectorised(batches, most)

    def _vectorised(self, batches: Sequence[torch.Tensor], most: int) -> torch.Tensor:
        # shorter ones are filled up with a record of their own that does not count
        filled = torch.cat([torch.cat([b, b[:1].expand(most - len(b))]) for b in batches])
        sizes = torch.tensor([len(batch) for batch in batches], device=self.device)[:, None]
        shares = (torch.arange(most, device=self.device) < sizes) / sizes
        inputs, targets = tree_map(
            lambda leaf: leaf.unflatten(0, (len(batches), most)), self.records.fetch(filled)
        )
        values = {name: one.detach() for name, one in self.state.parameters.named.items()}

        def loss(values: dict[str, torch.Tensor], x: Any, y: Any, share: torch.Tensor) -> Any:
            outputs = functional_call(self.model, values, *arguments(x))
            return (per_example_losses(self.loss_fn, outputs, y) * share).sum()

        each = torch.vmap(grad(loss), in_dims=(None, 0, 0, 0), randomness="different")
        try:
            parts = each(values, inputs, targets, shares)
        except (ReticentError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise ModelError(
                "gradients of several batches cannot be computed in one pass with torch.vmap "
                f"({type(error).__name__}: {error}); compute them one by one (group = 1)"
            ) from error
        return torch.cat([parts[name].flatten(1) for name in values], 1)
