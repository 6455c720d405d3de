"""DPSUR for many models at once: each tries candidates at its own pace.

A round is one trial of every model. Those whose candidate is accepted go on to their next release,
the others are put back, row by row, and try again: models are soon at different releases, and take
the coins of their own release and trial. The decisions are those of separate runs, but for a loss
that falls to the other side of the threshold by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from reticent import gradients
from reticent.data.records import Batch, Records
from reticent.errors import TrialsExhaustedError
from reticent.gradients.batches import call
from reticent.gradients.losses import LossFn, per_example_losses
from reticent.gradients.modes import evaluated
from reticent.methods import DPSUR
from reticent.methods.published import START_LOSS, PublishedDPSUR
from reticent.privacy import Sensitive
from reticent.training.besides import Beside
from reticent.training.packs import Pack
from reticent.training.side_by_side import Stack
from reticent.training.stacked_draws import StackedDraws, fetch
from reticent.training.stacking import StackedGradients, StackedModels, pieces_of


class MappedLosses:
    """The losses of examples, each model's on examples of its own, dropout off."""

    def __init__(self, models: StackedModels, loss_fn: LossFn) -> None:
        self.models, self.loss_fn = models, loss_fn
        self._each = torch.vmap(self._one, (0, models.fixed_dims, 0, 0), randomness="error")

    def _one(self, trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Any, y: Any) -> Tensor:
        return per_example_losses(self.loss_fn, self.models.call(trained, fixed, x), y)

    @torch.no_grad()
    def means(self, trained: dict[str, Tensor], batch: Batch, valid: Tensor, piece: int) -> Tensor:
        """The mean loss [K] of each model's examples; 0 where it has none."""
        total = torch.zeros(len(valid), dtype=torch.float64, device=valid.device)
        with evaluated(self.models.base):
            for x, y, counted in pieces_of(batch, valid, piece):
                losses = self._each(trained, self.models.fixed, x, y).double()
                total += torch.where(counted, losses, 0.0).sum(1)
        return total / valid.sum(1).clamp(min=1)


def losses_differ(sums: StackedGradients, models: Sequence[nn.Module], records: Records) -> str:
    """Why losses cannot be had for several models at once; tried on made-up records."""
    inputs, targets = gradients.synthetic_like(*records.one(), n=4)
    values = sums.parameters.values
    valid = torch.ones((len(values), 4), dtype=torch.bool, device=values.device)
    positions = torch.arange(4, device=values.device).expand(len(values), 4)

    def repeated(tree: Any) -> Any:
        return torch.utils._pytree.tree_map(lambda leaf: leaf[positions], tree)

    try:
        mapped = MappedLosses(sums.models, sums.loss_fn)
        batch = (repeated(inputs), repeated(targets))
        found = mapped.means(sums.parameters.by_name(values), batch, valid, 3)
    except Exception as error:
        said = str(error).split("\n")[0]
        return f"losses cannot be mapped over models ({type(error).__name__}: {said})"
    for k in {0, len(models) - 1}:
        with torch.no_grad(), evaluated(models[k]):
            alone = per_example_losses(sums.loss_fn, call(models[k], inputs), targets).mean()
        if not torch.allclose(found[k].float(), alone.float(), rtol=1e-2, atol=1e-4):
            return "losses are something else when they are mapped over models"
    return ""


class SelectiveStack(Stack):
    """Models in training by DPSUR; all with plain SGD or momentum, and one decay of averages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        values = self.parameters.values
        first = self.trainings[0].run.state.average
        self._decay = None if first is None else first.decay
        self._averages = None if first is None else values.clone()
        for pack in self.packs:
            pack.state.average = None  # a model takes up what it releases, when it does
        self._counts = [0] * len(self.trainings)
        self._trials = [0] * len(self.trainings)
        self._last = torch.full((len(values),), START_LOSS, dtype=torch.float64, device=self.device)
        self._losses = MappedLosses(self.sums.models, self.sums.loss_fn)
        self._judges = self._validation()

    def _validation(self) -> StackedDraws:
        everyone = torch.arange(self.records.n)
        rates = [_method(t).valid_batch / t.run.n for t in self.trainings]
        coins = [t.run.coins for t in self.trainings]
        return StackedDraws(coins, [everyone] * len(rates), rates, self.device)

    def _keep(self, staying: list[int]) -> None:
        super()._keep(staying)
        rows = torch.tensor(staying, device=self.device)
        self._counts = [self._counts[place] for place in staying]
        self._trials = [self._trials[place] for place in staying]
        self._last = self._last[rows]
        if self._averages is not None:
            self._averages = self._averages[rows]
        self._judges = self._validation()

    def _bring(self, place: int, training: Beside, pack: Pack, row: int) -> None:
        training.take(pack, row)
        average = training.run.state.average
        if average is not None and self._averages is not None:
            average.values.copy_(self._averages[place])
            average.count = self._counts[place]

    def _released(self) -> Tensor:
        values = self.parameters.values
        if self._averages is None:
            return values
        begun = torch.tensor([[count > 0] for count in self._counts], device=self.device)
        return torch.where(begun, self._averages, values)

    # -- a trial of each ----------------------------------------------------------------------

    def release(self) -> None:
        """One trial of every model; those accepted have made their release."""
        for place, training in enumerate(self.trainings):
            if training.busy:
                self._trials[place] += 1
            else:
                training.begin()
                self._trials[place] = 0
            training.run.trial = self._trials[place]
        before = self.parameters.values.clone()
        momenta = [_momentum(pack) for pack in self.packs]
        after, change = self._candidates()
        accepted = self._accepted(change)
        self._settle(accepted, after, before, momenta)
        self.moved = []
        for place, passed in enumerate(accepted.tolist()):  # the one wait of a round
            training = self.trainings[place]
            if passed:
                training.end()
                self._counts[place] += 1
                self.moved.append(place)
            elif self._trials[place] + 1 >= _method(training).most_trials:
                raise TrialsExhaustedError(
                    f"trials = {_method(training).most_trials}: no candidate of release "
                    f"{training.run.release} of model {training.number} was accepted; raise "
                    "trials, beta or valid_noise"
                )

    def _candidates(self) -> tuple[Tensor, Tensor]:
        """Move every row to its candidate: its loss on the fresh batch [K], and the change."""
        addresses = [(t.run.release, t.run.trial) for t in self.trainings]
        for training, rate in zip(self.trainings, self._judges.rates, strict=True):
            training.run.conduct.drew("validation", rate)
        with self._computing():
            positions, valid = self._judges.at(addresses, "validation")
            jury = fetch(self.records, positions) if positions.shape[1] else ((), ())
            total = self._clipped_sums(addresses=addresses)
            stale = _stale(_method(self.trainings[0]))
            last = self._last if stale else self._mean_losses(jury, valid)
        self.sums.models.check_unchanged()
        each = zip(self.trainings, total, strict=True)
        self._advance(torch.stack([training.noised(row) for training, row in each]))
        with self._computing():
            after = self._mean_losses(jury, valid)
        return after, after - last

    def _mean_losses(self, batch: Batch, valid: Tensor) -> Tensor:
        trained = self.parameters.by_name(self.parameters.values)
        return self._losses.means(trained, batch, valid, self._piece(clipped=False))

    def _accepted(self, change: Tensor) -> Tensor:
        """Whose noisy change of the loss lies below the threshold (Algorithm 2, lines 9 to 14)."""
        methods = [_method(training) for training in self.trainings]
        bounds = change.new_tensor([method.bound for method in methods])
        clipped = torch.where(change.isfinite(), change.clamp(-bounds, bounds), bounds)
        noised = [
            training.run.noisy(
                Sensitive(one, 2 * method.bound), method.valid_noise, "validation-noise"
            )
            for training, method, one in zip(self.trainings, methods, clipped, strict=True)
        ]
        below = change.new_tensor([method.beta * method.bound for method in methods])
        return torch.stack(noised) < below

    def _settle(
        self, accepted: Tensor, after: Tensor, before: Tensor, momenta: list[Tensor | None]
    ) -> None:
        """Put the rows of rejected candidates back; take up what was released."""
        rows, values = accepted.unsqueeze(1), self.parameters.values
        values.copy_(torch.where(rows, values, before))
        begin = 0
        for pack, kept in zip(self.packs, momenta, strict=True):
            own, begin = rows[begin : begin + len(pack)], begin + len(pack)
            buffer = _buffer(pack)
            if buffer is not None and not _leaky(pack.method):
                # without one, the next step begins a momentum with its gradient: as from 0
                held = torch.zeros_like(buffer) if kept is None else kept
                buffer.copy_(torch.where(own, buffer, held))
        self._last = torch.where(accepted, after, self._last)
        if self._averages is not None and self._decay is not None:
            decays = [min(self._decay, (2 + count) / (11 + count)) for count in self._counts]
            weights = torch.tensor([[1 - d] for d in decays], dtype=values.dtype).to(self.device)
            moved = torch.lerp(self._averages, values, weights)
            self._averages = torch.where(rows, moved, self._averages)


def _method(training: Beside) -> DPSUR:
    assert isinstance(training.method, DPSUR)
    return training.method


def _stale(method: Any) -> bool:
    return isinstance(method, PublishedDPSUR) and method.stale_validation


def _leaky(method: Any) -> bool:
    return isinstance(method, PublishedDPSUR) and method.leaky_momentum


def _buffer(pack: Pack) -> Tensor | None:
    state = pack.state.optimizer.state.get(pack.state.parameters.flat, {})
    found = state.get("momentum_buffer")
    return found if isinstance(found, Tensor) else None


def _momentum(pack: Pack) -> Tensor | None:
    found = _buffer(pack)
    return None if found is None else found.clone()
