"""A training in progress, as a method sees it.

A method reaches the records only through these calls. Each draws its coins at an address made of
the release, the trial and the stream, and no address is used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from reticent import gradients
from reticent.coins import Coins
from reticent.data.records import Records, fingerprint
from reticent.data.sampling import poisson_draw
from reticent.errors import DataError
from reticent.gradients import Clipping
from reticent.privacy import Ledger, noisy
from reticent.training.state import State

LossFn = Callable[[Any, Any], torch.Tensor]


@dataclass(frozen=True)
class RecordSum:
    """A sum over the drawn records with the sensitivity it states; `norms` and all else private."""

    flat: torch.Tensor
    sensitivity: float
    norms: torch.Tensor
    losses: torch.Tensor
    nonfinite: torch.Tensor


class Run:
    """One training: model, records, state, ledger and coins."""

    def __init__(
        self,
        *,
        model: nn.Module,
        records: Records,
        loss_fn: LossFn,
        state: State,
        ledger: Ledger,
        coins: Coins,
        n: int,
        device: torch.device,
        microbatch: int,
        path: str = "auto",
    ) -> None:
        self.model = model
        self.records = records
        self.loss_fn = loss_fn
        self.state = state
        self.ledger = ledger
        self.coins = coins
        self.n = n
        self.device = device
        self.microbatch = microbatch
        self.path = path
        self.trial = 0
        self._drawn: set[tuple[str, int, int]] = set()

    def _address(self, stream: str) -> tuple[int, int]:
        address = (stream, self.state.step, self.trial)
        if address in self._drawn:
            raise RuntimeError(
                f"stream {stream!r} was drawn from already in release {self.state.step}, trial "
                f"{self.trial}: coins used twice are no coins; name another stream"
            )
        self._drawn.add(address)
        return self.state.step, self.trial

    def frozen_fingerprint(self) -> str:
        """A hash of what the model holds besides its trainable parameters."""
        trained = set(self.state.parameters.named)
        held = self.model.state_dict()
        return fingerprint(held[name] for name in sorted(held) if name not in trained)

    def begin_release(self) -> None:
        """Start a release: trials count from 0 and its addresses are unused."""
        self.trial = 0
        self._drawn.clear()

    def sample(self, rate: float, stream: str = "sampling") -> torch.Tensor:
        """Draw records by independent coins of probability `rate`; possibly none."""
        return poisson_draw(
            self.records.n,
            rate,
            self.coins,
            stream,
            *self._address(stream),
            device=self.device,
        )

    def clipped_sum(self, indices: torch.Tensor, clipping: Clipping) -> RecordSum:
        """The sum of the drawn records' clipped gradients, in physical pieces of `microbatch`."""
        values = self.state.parameters.values
        # Double precision: adding up many pieces in single would let rounding, which one record
        # can shift, grow with the batch. The noise is drawn and added in double too.
        total = torch.zeros_like(values, dtype=torch.float64)
        pieces = []
        for number, piece in enumerate(indices.split(self.microbatch) if len(indices) else ()):
            inputs, targets = self.records.fetch(piece)
            try:
                with self._model_coins(number):
                    part = gradients.clipped_sum(
                        self.model, self.loss_fn, inputs, targets, clipping, path=self.path
                    )
            except IndexError as error:
                raise DataError(f"the model or loss rejects a record: {error}") from error
            total += part.flat()
            pieces.append((part.norms, part.losses, part.nonfinite))
        empty = values.new_zeros(0)
        return RecordSum(
            flat=total,
            sensitivity=clipping.sensitivity,
            norms=torch.cat([p[0] for p in pieces]) if pieces else empty,
            losses=torch.cat([p[1] for p in pieces]) if pieces else empty,
            nonfinite=sum((p[2] for p in pieces), torch.zeros((), device=values.device)),
        )

    @contextmanager
    def _model_coins(self, piece: int) -> Iterator[None]:
        """Dropout and the like draw from secret coins of this release, not from a public seed.

        With known masks, one record more would shift the masks of all others, which no clip bounds;
        with secret ones the masks of the others are as random with it as without it.
        """
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(self.coins.seed("model", self.state.step, self.trial, piece))
            yield

    def noisy(self, total: Any, multiplier: float, stream: str = "noise") -> torch.Tensor:
        """`total` plus noise of `multiplier` times the sensitivity it states."""
        return noisy(total, multiplier, self.coins, stream, *self._address(stream))

    def step(self, gradient: torch.Tensor) -> None:
        """Move the parameters by a released gradient."""
        self.state.advance(gradient)
