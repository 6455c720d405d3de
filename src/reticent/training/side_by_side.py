"""Trainings side by side: one pass for the gradients of all, one optimizer step, one evaluation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from reticent.data.records import Records
from reticent.errors import DataError
from reticent.gradients import Flat, rounding, synthetic_like
from reticent.gradients.batches import trainable
from reticent.gradients.engine import bounds_of
from reticent.methods import DPSGD
from reticent.training.besides import Beside
from reticent.training.evaluation import Evaluation
from reticent.training.explaining import ran_out
from reticent.training.held_out import MappedEvaluation, as_held_out
from reticent.training.memory import MemoryShortageError
from reticent.training.packs import Pack, key_of, spans
from reticent.training.result import Result
from reticent.training.run import LossFn
from reticent.training.stacked_draws import StackedDraws, fetch
from reticent.training.stacking import StackedGradients, StackedParameters


class Stack:
    """Models in training, a row for each; whoever is done leaves.

    Args:
        trainings: Of models of one architecture, on the same records, with the same batch, and of
            one kind: all clipped in the same style, or all plain.
        records: These records.
        loss_fn: As for `reticent.train`.
        evaluation: What all of them are evaluated by.
        room: Bytes that one pass may take.
        bytes_each: What one more example takes in a pass of one model.
        ruled: Whether clipped sums by the layers' rules were tried, and are right.
    """

    def __init__(
        self,
        trainings: Sequence[Beside],
        records: Records,
        loss_fn: LossFn,
        evaluation: Evaluation | None,
        *,
        room: int,
        bytes_each: int,
        ruled: bool,
    ) -> None:
        keys = [key_of(t, t.optimizer, t.scheduler) for t in trainings]
        order = sorted(range(len(keys)), key=lambda k: keys.index(keys[k]))
        self.trainings = [trainings[k] for k in order]
        first = self.trainings[0]
        self.records, self.device, self.precision = records, first.run.device, first.run.precision
        self.room, self.bytes_each = room, bytes_each
        models = [t.run.model for t in self.trainings]
        self.parameters = StackedParameters(models)
        self.parameters.replace(self.parameters.values)
        clip = first.method.clipping if isinstance(first.method, DPSGD) else Flat(math.inf)
        example = synthetic_like(*records.one(), n=1) if ruled else None
        self.sums = StackedGradients(models, self.parameters, loss_fn, clip, example)
        with self._computing():
            own = trainable(self.sums.models.base)
            self._share = bounds_of(Flat(1.0), own)[0][0]  # of a bound, to leave room for rounding
        self._bounds: tuple[tuple[float, ...], Tensor] | None = None
        self.packs: list[Pack] = []
        for span in spans([keys[k] for k in order]):
            one = self.trainings[span.start]
            rows = self.parameters.values[span]
            self.packs.append(Pack(rows, one, one.optimizer, one.scheduler))
        self.draws = self._draws()
        #: places of those that made a release in the last round
        self.moved: list[int] = []
        held_out = as_held_out(evaluation)
        self._evaluation: MappedEvaluation | None = None
        self._compared = False
        if held_out is not None:
            most = max(room // bytes_each, 1)
            self._evaluation = MappedEvaluation(held_out, self.sums.models, self.parameters, most)
        for training in self.trainings:
            training.open()

    def _draws(self) -> StackedDraws | None:
        """Poisson draws of all models; None where batches are parts of a shuffled epoch."""
        rates = []
        for training in self.trainings:
            if isinstance(training.method, DPSGD):
                rates.append(training.method.batch / training.run.n)
        if not rates:
            return None
        everyone = torch.arange(self.records.n)
        coins = [t.run.coins for t in self.trainings]
        return StackedDraws(coins, [everyone] * len(rates), rates, self.device)

    def _rows(self) -> Iterator[tuple[Beside, Pack, int]]:
        """Every training with its pack and its row there."""
        places = ((pack, row) for pack in self.packs for row in range(len(pack)))
        for training, (pack, row) in zip(self.trainings, places, strict=True):
            yield training, pack, row

    def _bring(self, place: int, training: Beside, pack: Pack, row: int) -> None:
        """Bring a model to where its row is."""
        training.take(pack, row)

    def _released(self) -> Tensor:
        """The parameters [K, P] that results would carry now."""
        return torch.cat([pack.released for pack in self.packs])

    # -- who is there -------------------------------------------------------------------------

    def leave(self) -> list[tuple[int, Result]]:
        """The results of those that are done, by number; their rows go."""
        done, staying = [], []
        for place, (training, pack, row) in enumerate(self._rows()):
            if training.busy or training.goes_on:
                staying.append(place)
            else:
                self._bring(place, training, pack, row)
                done.append((training.number, training.finished()))
        if done and staying:
            self._keep(staying)
        elif done:
            self.trainings = []
        return done

    def _keep(self, staying: list[int]) -> None:
        rows = torch.tensor(staying, device=self.device)
        self.parameters.replace(self.parameters.values[rows])
        self.sums.keep(rows)
        begin, placed, packs = 0, 0, []
        for pack in self.packs:
            own = [place - begin for place in staying if begin <= place < begin + len(pack)]
            begin += len(pack)
            if own:
                values = self.parameters.values[placed : placed + len(own)]
                pack.keep(torch.tensor(own, device=self.device), values)
                packs.append(pack)
                placed += len(own)
        self.packs = packs
        self.trainings = [self.trainings[place] for place in staying]
        self.draws = self._draws()
        self._bounds = None

    # -- a release of each --------------------------------------------------------------------

    def release(self) -> None:
        """Each model's next release: paid, computed, noised, stepped along."""
        step = self.trainings[0].run.state.step
        for training in self.trainings:
            training.begin()
        with self._computing():
            total = self._plain_means() if self.draws is None else self._clipped_sums(step)
        self.sums.models.check_unchanged()
        if self.draws is not None:
            each = zip(self.trainings, total, strict=True)
            total = torch.stack([training.noised(row) for training, row in each])
        self._advance(total)
        for training in self.trainings:
            training.end()
        self.moved = list(range(len(self.trainings)))

    def _advance(self, released: Tensor) -> None:
        """One optimizer step of all models."""
        begin = 0
        for pack in self.packs:
            pack.advance(released[begin : begin + len(pack)])
            begin += len(pack)

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """What every pass over records is wrapped in."""
        try:
            with rounding.precision(self.precision, self.device):
                yield
        except IndexError as error:
            raise DataError(f"the model or loss rejects a record: {error}") from error
        except Exception as error:
            if ran_out(error):
                raise MemoryShortageError(
                    f"memory = {self.room}: a release of {len(self.trainings)} models ran out of "
                    f"memory; begin again with less, or with fewer models at once. {error}"
                ) from error
            raise

    def _clipped_sums(
        self, step: int = 0, addresses: Sequence[tuple[int, int]] | None = None
    ) -> Tensor:
        """Sums of clipped gradients [K, P] over each model's own draw, all of one step or not."""
        assert self.draws is not None
        rates = zip(self.trainings, self.draws.rates, strict=True)
        for training, rate in rates:
            training.run.conduct.drew("sampling", rate)
        if addresses is None:
            last = all(step + 1 >= training.steps for training in self.trainings)
            positions, valid = self.draws.take(step, last=last)
        else:
            positions, valid = self.draws.at(addresses)
        batch = fetch(self.records, positions) if positions.shape[1] else ((), ())
        return self.sums.clipped(batch, valid, self._piece(clipped=True), self._bounds_now())

    def _plain_means(self) -> Tensor:
        """Gradients of mean losses [K, P], each model's own part of its shuffled epoch."""
        positions = torch.stack([training.part_of_epoch() for training in self.trainings])
        weights = torch.full(positions.shape, 1 / positions.shape[1], device=self.device)
        batch = fetch(self.records, positions)
        return self.sums.plain(batch, weights, self._piece(clipped=False))

    def _bounds_now(self) -> Tensor:
        """The bounds of this release [K, 1], with room for rounding; sent only where one moved."""
        now = []
        for training in self.trainings:
            assert isinstance(training.method, DPSGD)
            now.append(training.method.bound_now(training.run).sensitivity)
        if self._bounds is None or self._bounds[0] != tuple(now):
            shares = [[bound * self._share] for bound in now]
            sent = torch.tensor(shares, dtype=self.sums.dtype, device=self.device)
            self._bounds = tuple(now), sent
        return self._bounds[1]

    def _piece(self, *, clipped: bool) -> int:
        """How many examples of each model fit into a pass."""
        return self.sums.piece(self.room, self.bytes_each, clipped=clipped)

    # -- evaluation ---------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Evaluate those models that are due."""
        due = [place for place in self.moved if self.trainings[place].due]
        if not due:
            return
        rows = list(self._rows())
        if self._evaluation is not None:
            metrics = self._mapped(due, rows)
            if metrics is not None:
                for place, found in zip(due, metrics, strict=True):
                    self.trainings[place].measured(found)
                return
        for place in due:
            self._bring(place, *rows[place])
            self.trainings[place].measure()

    def _mapped(
        self, due: list[int], rows: list[tuple[Beside, Pack, int]]
    ) -> list[dict[str, float]] | None:
        """The metrics of those due; None, for good, if they cannot be had from one pass."""
        assert self._evaluation is not None
        try:
            found = self._evaluation(self._released(), due)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # a loss or an evaluated model that cannot be mapped
            self._evaluation = None
            return None
        if not self._compared:
            self._compared = True
            self._bring(due[0], *rows[due[0]])
            training = self.trainings[due[0]]
            alone = training.measure() or {}
            training.metrics.pop()
            if not _alike(found[0], alone):
                self._evaluation = None
                return None
        return found


def _alike(one: dict[str, float], other: dict[str, float]) -> bool:
    """Whether two evaluations of a model agree; a score may fall to either side of another."""
    return one.keys() == other.keys() and all(
        (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=0.02, abs_tol=0.01)
        for a, b in ((one[name], other[name]) for name in one)
    )
