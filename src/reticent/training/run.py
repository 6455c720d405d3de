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
from reticent.data.sampling import poisson_draws
from reticent.errors import DataError
from reticent.gradients import Clipping
from reticent.privacy import Ledger, noisy
from reticent.training.state import State

LossFn = Callable[[Any, Any], torch.Tensor]


@contextmanager
def _naming_records() -> Iterator[None]:
    try:
        yield
    except IndexError as error:
        raise DataError(f"the model or loss rejects a record: {error}") from error


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """`model.eval()`, then every module's own mode again; written past the slow `__setattr__`."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        for module, training in modes:
            if training:
                _set_mode(module, False)
        yield
    finally:
        for module, training in modes:
            if training:
                _set_mode(module, True)


def _set_mode(module: nn.Module, training: bool) -> None:
    if "training" in module.__dict__:
        module.__dict__["training"] = training
    else:  # a scripted module keeps it elsewhere
        module.training = training


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
        self.release = 0
        self.trial = 0
        # what a method saw on its way, for the eyes of whoever holds the records; None: not kept
        self.diagnostics: list[dict[str, float]] | None = None
        self._drawn: set[tuple[str, int]] = set()

    def _address(self, stream: str, later: int = 0) -> tuple[int, int]:
        trial = self.trial + later
        if (stream, trial) in self._drawn:
            raise RuntimeError(
                f"stream {stream!r} was drawn from already in release {self.release}, trial "
                f"{trial}: coins used twice are no coins; name another stream"
            )
        self._drawn.add((stream, trial))
        return self.release, trial

    def frozen_fingerprint(self) -> str:
        """A hash of what the model holds besides its trainable parameters."""
        trained = set(self.state.parameters.named)
        held = {**dict(self.model.named_buffers()), **self.model.state_dict()}
        return fingerprint(held[name] for name in sorted(held) if name not in trained)

    def begin_release(self) -> None:
        """Start a release: trials count from 0 and its addresses are unused."""
        self.release, self.trial = self.state.step, 0
        self._drawn.clear()

    def trials(self, most: int) -> Iterator[int]:
        """Count the trials of this release; each has coins of its own."""
        for self.trial in range(most):
            yield self.trial

    def sample(self, rate: float, stream: str = "sampling") -> torch.Tensor:
        """Draw records by independent coins of probability `rate`; possibly none."""
        return self.samples(rate, stream, 1)[0]

    def samples(self, rate: float, stream: str, count: int) -> list[torch.Tensor]:
        """The draws of this trial and of the next `count` - 1, with one wait for the device."""
        addresses = [self._address(stream, later) for later in range(count)]
        return poisson_draws(
            self.records.n, rate, self.coins, stream, addresses, device=self.device
        )

    def clipped_sums(self, draws: list[torch.Tensor], clipping: Clipping) -> list[RecordSum]:
        """The sum of each draw, from as few passes as one draw takes: for small models."""
        sizes = [len(draw) for draw in draws]
        if not sum(sizes) or sum(sizes) > 1.25 * self.microbatch * len(draws):
            return [self._clipped_sum(draw, clipping, later) for later, draw in enumerate(draws)]
        drawn, mask = self._padded(torch.cat(draws))
        sizes += [] if mask is None else [len(drawn) - sum(sizes)]  # a sum that nobody asks for
        inputs, targets = self.records.fetch(drawn)
        with self._model_coins("model", 0, 0), _naming_records():
            sums = gradients.clipped_sums(
                self.model, self.loss_fn, inputs, targets, clipping, sizes, path=self.path
            )
        return [
            RecordSum(s.flat().double(), s.sensitivity, s.norms, s.losses, s.nonfinite)
            for s in sums[: len(draws)]
        ]

    def _padded(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """On a device, indices up to a rounder number of them, and which of them count.

        A Poisson batch has a new size each time, and the libraries below prepare for every size
        anew, which takes longer than the work on a few records more.
        """
        count = len(indices)
        extra = 0 if self.device.type == "cpu" else -count % (1 << max(count.bit_length() - 5, 0))
        if not extra:
            return indices, None
        mask = torch.arange(count + extra, device=self.device) < count
        return torch.cat([indices, indices.new_zeros(extra)]), mask

    def clipped_sum(
        self, indices: torch.Tensor, clipping: Clipping, stream: str = "model"
    ) -> RecordSum:
        """The sum of the drawn records' clipped gradients, in physical pieces of `microbatch`.

        Dropout draws from coins of `stream`: a second sum in one trial takes another.
        """
        return self._clipped_sum(indices, clipping, 0, stream)

    def _clipped_sum(
        self, indices: torch.Tensor, clipping: Clipping, later: int, stream: str = "model"
    ) -> RecordSum:
        values = self.state.parameters.values
        # Double precision: adding up many pieces in single would let rounding, which one record
        # can shift, grow with the batch. The noise is drawn and added in double too.
        total = torch.zeros_like(values, dtype=torch.float64)
        pieces = []
        for number, piece in enumerate(indices.split(self.microbatch) if len(indices) else ()):
            drawn, mask = self._padded(piece)
            inputs, targets = self.records.fetch(drawn)
            with self._model_coins(stream, later, number), _naming_records():
                part = gradients.clipped_sum(
                    self.model,
                    self.loss_fn,
                    inputs,
                    targets,
                    clipping,
                    path=self.path,
                    mask=mask,
                )
            total += part.flat()
            count = len(piece)
            pieces.append((part.norms[:count], part.losses[:count], part.nonfinite))
        empty = values.new_zeros(0)
        return RecordSum(
            flat=total,
            sensitivity=clipping.sensitivity,
            norms=torch.cat([p[0] for p in pieces]) if pieces else empty,
            losses=torch.cat([p[1] for p in pieces]) if pieces else empty,
            nonfinite=sum((p[2] for p in pieces), torch.zeros((), device=values.device)),
        )

    @contextmanager
    def _model_coins(self, stream: str, later: int, piece: int) -> Iterator[None]:
        """Dropout and the like draw from secret coins of this release, not from a public seed.

        With known masks, one record more would shift the masks of all others, which no clip bounds;
        with secret ones the masks of the others are as random with it as without it.
        """
        self._address(f"{stream}, piece {piece}", later)  # refused if drawn from already
        seed = self.coins.seed(stream, self.release, self.trial + later, piece)
        generators = [torch.default_generator]
        if self.device.type == "cuda":
            index = self.device.index
            index = torch.cuda.current_device() if index is None else index
            generators.append(torch.cuda.default_generators[index])
        # the generators themselves: torch.manual_seed and fork_rng take milliseconds
        before = [generator.get_state() for generator in generators]
        try:
            for generator in generators:
                generator.manual_seed(seed)
            yield
        finally:
            for generator, state in zip(generators, before, strict=True):
                generator.set_state(state)

    @torch.no_grad()
    def mean_losses(self, draws: list[torch.Tensor], stream: str) -> list[torch.Tensor]:
        """The mean loss of each draw, dropout off; 0 for an empty one. Private, like all sums.

        A model that is random even so draws from coins of this stream.
        """
        losses = [torch.zeros(0, dtype=torch.float64, device=self.device)]
        drawn = torch.cat(draws)
        for number, piece in enumerate(drawn.split(self.microbatch) if len(drawn) else ()):
            inputs, targets = self.records.fetch(self._padded(piece)[0])
            coins = self._model_coins(stream, 0, number)
            with _evaluating(self.model), coins, _naming_records():
                outputs = gradients.batches.call(self.model, inputs)
                found = gradients.losses.per_example_losses(self.loss_fn, outputs, targets)
            losses.append(found[: len(piece)].double())
        each = torch.cat(losses).split([len(draw) for draw in draws])
        return [part.sum() / max(len(part), 1) for part in each]

    def diagnose(self, **numbers: float) -> None:
        """Keep numbers that must stay private, if whoever started the run asked for them."""
        if self.diagnostics is not None:
            self.diagnostics.append({"release": self.release, **numbers})

    def noisy(self, total: Any, multiplier: float, stream: str = "noise") -> torch.Tensor:
        """`total` plus noise of `multiplier` times the sensitivity it states."""
        return noisy(total, multiplier, self.coins, stream, *self._address(stream))

    def step(self, gradient: torch.Tensor) -> None:
        """Move the parameters by a released gradient."""
        self.state.advance(gradient)
