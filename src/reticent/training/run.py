"""A training in progress, as a method sees it.

A method reaches the records only through these calls. Each draws its coins at an address made of
the release, the trial and the stream, and no address is used twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from reticent import gradients
from reticent.coins import Coins
from reticent.data.ahead import DrawsAhead
from reticent.data.records import Batch, Records, fingerprint
from reticent.data.sampling import Draws, draw_each, record_coins
from reticent.errors import DataError
from reticent.gradients import Clipping, Flat
from reticent.gradients.modes import evaluated_quickly
from reticent.privacy import Charge, Ledger, Sensitive, noisy, noisy_min
from reticent.training.conduct import Conduct
from reticent.training.norms_seen import NormsSeen
from reticent.training.state import State
from reticent.training.unclipped import Unclipped

LossFn = Callable[[Any, Any], torch.Tensor]


def rounder(count: int) -> int:
    """The next number with at most five significant bits: at most a sixteenth more."""
    return count + -count % (1 << max(count.bit_length() - 5, 0))


@contextmanager
def _naming_records() -> Iterator[None]:
    try:
        yield
    except IndexError as error:
        raise DataError(f"the model or loss rejects a record: {error}") from error


@dataclass(frozen=True)
class RecordSum:
    """A sum over the drawn records with the sensitivity it states; `norms` and all else private."""

    flat: torch.Tensor
    sensitivity: float
    norms: torch.Tensor
    losses: torch.Tensor
    nonfinite: torch.Tensor


class Run(Unclipped):
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
        precision: str | None = None,
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
        self.precision = precision
        self._sums = gradients.RepeatedSum(model, loss_fn, path=path, wide=True)
        self._losses = gradients.RepeatedLosses(model, loss_fn)
        self.release = 0
        self.trial = 0
        self.releases: int | None = None  # how many there will be, if that is known
        self.conduct = Conduct()
        # what a method keeps of each record, never released; goes into checkpoints, nowhere else
        self.private: dict[str, torch.Tensor] = {}
        # what a method saw on its way, for the eyes of whoever holds the records; None: not kept
        self.diagnostics: list[dict[str, float]] | None = None
        self.norms_seen: NormsSeen | None = None
        self._drawn: set[tuple[str, int]] = set()
        self._ahead = DrawsAhead(
            device,
            records.indices_on,
            guess=device.type != "cpu" or records.fetches_ahead,
        )

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
        ours = {id(parameter) for parameter in self.state.parameters.named.values()}
        everywhere = self.model.named_parameters(remove_duplicate=False)
        trained = {name for name, one in everywhere if id(one) in ours}  # a tied one has more names
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
        """The draws of this trial and of the next `count` - 1, with one wait for the device.

        The indices lie where the records are. The next release's draws are enqueued now if they can
        be guessed; only what is asked for here counts as drawn.
        """
        for later in range(count):
            self._address(stream, later)
        self.conduct.drew(stream, rate, count)
        return self._ahead.take(
            self.coins,
            self.records.n,
            rate,
            stream,
            self.release,
            self.trial,
            count,
            last=self.releases is not None and self.release + 1 >= self.releases,
        )

    def flips(self, stream: str) -> torch.Tensor:
        """One coin of this stream for every record, [n] uniform on [0, 1)."""
        where = self._address(stream)
        return record_coins(self.records.n, self.coins, stream, *where, device=self.device)

    def sample_each(self, probabilities: torch.Tensor, stream: str = "sampling") -> torch.Tensor:
        """Draw records by independent coins of their own probabilities [n]; possibly none."""
        drawn = draw_each(probabilities, self.flips(stream))
        self.conduct.drew(stream, None)
        where = self.records.indices_on
        return drawn if where is None else drawn.to(where)

    @property
    def replays(self) -> bool:
        """Whether sums come from recorded graphs: nothing is saved then by computing several."""
        return self.device.type == "cuda" and not self._sums.reason

    def clipped_sums(self, draws: list[torch.Tensor], clipping: Clipping) -> list[RecordSum]:
        """The sum of each draw, from as few passes as one draw takes: for small models."""
        sizes = [len(draw) for draw in draws]
        if self.replays or not sum(sizes) or sum(sizes) > 1.25 * self.microbatch * len(draws):
            each = enumerate(draws)
            return [self._seen(self._clipped_sum(d, clipping, k), clipping) for k, d in each]
        drawn, mask = self._padded(torch.cat(draws))
        sizes += [] if mask is None else [len(drawn) - sum(sizes)]  # a sum that nobody asks for
        inputs, targets = self.records.fetch(drawn)
        with self._computing("model", 0, 0):
            sums = gradients.clipped_sums(
                self.model,
                self.loss_fn,
                inputs,
                targets,
                clipping,
                sizes,
                path=self.path,
                wide=True,
            )
        return [
            self._seen(
                RecordSum(s.flat().double(), s.sensitivity, s.norms, s.losses, s.nonfinite),
                clipping,
            )
            for s in sums[: len(draws)]
        ]

    def _seen(self, found: RecordSum, clipping: Clipping, least: Any = None) -> RecordSum:
        """Count the norms behind a sum, if whoever started the run asked for that."""
        if self.norms_seen is not None:
            norms = found.norms if least is None else found.norms[found.norms >= least]
            self.norms_seen.add(norms, clipping.sensitivity)
        return found

    def _padded(self, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """On a device, indices up to a rounder number of them, and which of them count.

        A Poisson batch has a new size each time, and the libraries below prepare for every size
        anew, which takes longer than the work on a few records more.
        """
        count, rounded = len(indices), self._rounded(indices)
        if rounded is indices:
            return indices, None
        return rounded, torch.arange(len(rounded), device=self.device) < count

    def _rounded(self, indices: torch.Tensor) -> torch.Tensor:
        extra = 0 if self.device.type == "cpu" else rounder(len(indices)) - len(indices)
        return torch.cat([indices, indices.new_zeros(extra)]) if extra else indices

    def _pieces(self, indices: torch.Tensor) -> Iterator[tuple[Batch, torch.Tensor | None, int]]:
        """The records in physical pieces: a batch, which of it count, and how many.

        Records that fetch ahead are told of the piece to come, after the last one of a draw of the
        first piece of the next release's.
        """
        pieces = indices.split(self._piece(len(indices))) if len(indices) else ()
        for number, piece in enumerate(pieces):
            drawn, mask = self._padded(piece)
            batch = self.records.fetch(drawn)
            if self.records.fetches_ahead:
                if number + 1 < len(pieces):
                    self.records.expect(functools.partial(self._rounded, pieces[number + 1]))
                elif (draws := self._ahead.after(indices)) is not None:
                    self.records.expect(functools.partial(self._first_piece, draws))
            yield batch, mask, len(piece)

    def _first_piece(self, draws: Draws) -> torch.Tensor | None:
        drawn = draws.early()
        if drawn is None or not len(drawn[0]):
            return None
        return self._rounded(drawn[0][: self._piece(len(drawn[0]))])

    def _piece(self, count: int) -> int:
        """How many at once; on a device pieces of about one size, which is prepared for once."""
        if self.device.type == "cpu":
            return self.microbatch
        return -(-count // -(-count // self.microbatch))

    def clipped_sum(
        self,
        indices: torch.Tensor,
        clipping: Clipping,
        stream: str = "model",
        least: torch.Tensor | None = None,
    ) -> RecordSum:
        """The sum of the drawn records' clipped gradients, in physical pieces of `microbatch`.

        Dropout draws from coins of `stream`: a second sum in one trial takes another. Records whose
        norm does not reach their number in `least` are left out of the sum.
        """
        return self._seen(self._clipped_sum(indices, clipping, 0, stream, least), clipping, least)

    def norms(self, stream: str) -> torch.Tensor:
        """The gradient norms [n] of all records. Private."""
        everyone = torch.arange(self.records.n, device=self.records.indices_on or self.device)
        never = torch.full((self.records.n,), torch.inf, device=self.device)
        return self._clipped_sum(everyone, Flat(1.0), 0, stream, never).norms

    def _clipped_sum(
        self,
        indices: torch.Tensor,
        clipping: Clipping,
        later: int,
        stream: str = "model",
        least: torch.Tensor | None = None,
    ) -> RecordSum:
        values = self.state.parameters.values
        total: torch.Tensor | None = None
        parts = []
        begin = 0
        for number, (batch, mask, count) in enumerate(self._pieces(indices)):
            some = None if least is None else least[begin : begin + count]
            begin += count
            if some is not None and mask is not None:
                some = torch.cat([some, some.new_full((len(mask) - count,), torch.inf)])
            with self._computing(stream, later, number):
                part = self._sums(*batch, mask, clip=clipping, least=some)
            # Double precision: adding up many pieces in single would let rounding, which one record
            # can shift, grow with the batch. The noise is drawn and added in double too.
            total = part.flat().double() if total is None else total.add_(part.flat())
            parts.append((part.norms[:count], part.losses[:count], part.nonfinite))
        if total is None:
            total = torch.zeros_like(values, dtype=torch.float64)
            none = values.new_zeros(0)
            parts.append((none, none, torch.zeros((), dtype=torch.long, device=values.device)))
        norms, losses, nonfinite = zip(*parts, strict=True)
        return RecordSum(
            flat=total,
            sensitivity=clipping.sensitivity,
            norms=norms[0] if len(parts) == 1 else torch.cat(norms),
            losses=losses[0] if len(parts) == 1 else torch.cat(losses),
            nonfinite=nonfinite[0] if len(parts) == 1 else torch.stack(nonfinite).sum(),
        )

    @contextmanager
    def _computing(self, stream: str, later: int, piece: int) -> Iterator[None]:
        """What every pass of the model over records is wrapped in."""
        chosen = gradients.rounding.precision(self.precision, self.device)
        with chosen, self._model_coins(stream, later, piece), _naming_records():
            yield

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
    def losses(self, draw: torch.Tensor, stream: str) -> torch.Tensor:
        """The losses of the drawn records, dropout off. Private.

        A model that is random even so draws from coins of this stream.
        """
        losses = [torch.zeros(0, dtype=torch.float64, device=self.device)]
        for number, ((inputs, targets), _, count) in enumerate(self._pieces(draw)):
            with evaluated_quickly(self.model), self._computing(stream, 0, number):
                found = self._losses(inputs, targets)
            losses.append(found[:count].double())
        return torch.cat(losses)

    def mean_losses(self, draws: list[torch.Tensor], stream: str) -> list[torch.Tensor]:
        """The mean loss of each draw; 0 for an empty one. Private, like all sums."""
        each = self.losses(torch.cat(draws), stream).split([len(draw) for draw in draws])
        return [part.sum() / max(len(part), 1) for part in each]

    def diagnose(self, **numbers: float) -> None:
        """Keep numbers that must stay private, if whoever started the run asked for them."""
        if self.diagnostics is not None:
            self.diagnostics.append({"release": self.release, **numbers})

    def pay(self, charge: Charge, purpose: str) -> None:
        """Pay for what is about to be released; for charges that depend on earlier releases."""
        self.ledger.charge(charge, purpose, adaptive=True)

    def noisy(self, total: Any, multiplier: float, stream: str = "noise") -> torch.Tensor:
        """`total` plus noise of `multiplier` times the sensitivity it states."""
        where = self._address(stream)
        self.conduct.noised(stream, multiplier, total.sensitivity)
        return noisy(total, multiplier, self.coins, stream, *where)

    def noisy_min(self, scores: Sensitive, epsilon: float, stream: str) -> int:
        """Which score is smallest, with noise for `epsilon`; see `privacy.noisy_min`."""
        where = self._address(stream)
        self.conduct.chose(stream, epsilon)
        return noisy_min(scores, epsilon, self.coins, stream, *where)

    def step(self, gradient: torch.Tensor) -> None:
        """Move the parameters by a released gradient."""
        self.state.advance(gradient)
