"""How much a run looks as if a canary had been in it: the larger a score, the likelier.

A score decides how good an audit is, never whether its bounds hold: any function of what was
released will do, as long as it does not look at the auditor's coins.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from scipy.stats import rankdata
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.utils._pytree import tree_map

from reticent import gradients
from reticent.audit.bounds import Outcome
from reticent.coins import Coins
from reticent.errors import OptionError, whole
from reticent.gradients.batches import arguments, call, part, trainable
from reticent.gradients.losses import per_example_losses
from reticent.privacy import Charge, Ledger

# Canaries that go through the model at once.
BATCH = 256


class Charges:
    """What each release cost, read from a ledger that merges equal lines."""

    def __init__(self, ledger: Ledger) -> None:
        self._seen = self._counts(ledger)

    @staticmethod
    def _counts(ledger: Ledger) -> dict[Charge, int]:
        counts: dict[Charge, int] = {}
        for entry in ledger.entries:
            counts[entry.charge] = counts.get(entry.charge, 0) + entry.count
        return counts

    def since(self, ledger: Ledger) -> list[Charge]:
        """The charges paid since this was asked last."""
        before, self._seen = self._seen, self._counts(ledger)
        return [charge for charge, count in self._seen.items() if count > before.get(charge, 0)]


def sampled_gaussian(charges: Iterable[Charge]) -> tuple[float, float] | None:
    """(rate, multiplier) of the charge with the least noise among those that have both."""
    pairs = [
        (float(charge.rate), float(charge.multiplier))
        for charge in charges
        if hasattr(charge, "rate") and hasattr(charge, "multiplier")
    ]
    return min(pairs, key=lambda pair: pair[1]) if pairs else None


def likelihood_ratio(moves: Tensor, rate: float, multiplier: float) -> Tensor:
    """Log of p(move | in) / p(move | out) in one Poisson-sampled Gaussian release.

    With x the move in units of what a canary that takes part adds,
    log(1 − q + q·exp((2x − 1)/(2σ²))). The unit (bound over batch, or whatever the method made of
    it) is read off the moves themselves: half of the canaries take part with probability q, so
    their variance is σ² + (q/2)(1 − q/2) units squared.
    """
    share = rate / 2
    unit = moves.std() / math.sqrt(multiplier**2 + share * (1 - share))
    x = moves / unit
    quiet = torch.full_like(x, math.log1p(-rate) if rate < 1 else -math.inf)
    return torch.logaddexp(quiet, math.log(rate) + (2 * x - 1) / (2 * multiplier**2))


class TraceWatch:
    """White-box scores of gradient-space canaries: each one's number, from release to release.

    Plain SGD moves a number by the learning rate times what was released for it, so the moves show
    the releases up to a unit. Their log-likelihood ratios add up over releases; where a release was
    not charged as a sampled Gaussian the moves themselves do, in units of their deviation.
    """

    def __init__(self, traces: nn.Embedding) -> None:
        self._traces = traces
        self._before = self._now()
        self.scores = torch.zeros(len(self._before), dtype=torch.float64)
        self.log_odds = True

    def _now(self) -> Tensor:
        return self._traces.weight.detach()[1:, 0].to("cpu", torch.float64, copy=True)

    def release(self, charges: Iterable[Charge]) -> None:
        """Take in one more release, which was charged so."""
        now = self._now()
        moves, self._before = self._before - now, now  # the loss falls where a canary was in
        if not bool((moves != moves[0]).any()):
            return  # nothing moved: nothing is said
        paid = sampled_gaussian(charges)
        self.log_odds &= paid is not None
        self.scores += moves / moves.std() if paid is None else likelihood_ratio(moves, *paid)


class AlignmentWatch:
    """White-box scores of input-space canaries: −<θ_{t+1} − θ_t, g_i(θ_t)> / ‖g_i(θ_t)‖, summed.

    The product is the derivative of a canary's loss along the step, taken in forward mode.
    """

    def __init__(self, model: nn.Module, loss_fn: Any, canaries: tuple[Any, Any]) -> None:
        self._model, self._loss_fn, self._canaries = model, loss_fn, canaries
        self._earlier = copy.deepcopy(model).eval()
        self.scores = torch.zeros(count_of(canaries), dtype=torch.float64)
        self.log_odds = False

    def release(self, charges: Iterable[Charge]) -> None:
        """Take in one more release."""
        then, now = trainable(self._earlier), trainable(self._model)
        points = {name: value.detach() for name, value in then.items()}
        step = {name: now[name].detach() - points[name] for name in points}
        found = [
            self._alignments(inputs, targets, points, step)
            for inputs, targets in _batches(self._canaries, device_of(self._model))
        ]
        self.scores += torch.cat(found)
        with torch.no_grad():
            for name, value in then.items():
                value.copy_(now[name])

    def _alignments(
        self, inputs: Any, targets: Any, points: dict[str, Tensor], step: dict[str, Tensor]
    ) -> Tensor:
        args, kwargs = arguments(inputs)

        def losses(values: dict[str, Tensor]) -> Tensor:
            outputs = functional_call(self._earlier, values, args, kwargs)
            return per_example_losses(self._loss_fn, outputs, targets)

        try:
            along = jvp(losses, (points,), (step,))[1]
        except (NotImplementedError, RuntimeError) as error:
            raise OptionError(
                "view",
                "white-box",
                f"the model has no forward-mode derivative ({error}); use view 'black-box'",
            ) from error
        norms = gradients.clipped_sum(self._earlier, self._loss_fn, inputs, targets, 1.0).norms
        return (-along / norms.clamp(min=1e-12)).to("cpu", torch.float64)


def final_traces(traces: nn.Embedding) -> Tensor:
    """Black-box scores of gradient-space canaries: how far down the model's answer is."""
    return -traces.weight.detach()[1:, 0].to("cpu", torch.float64)


@torch.no_grad()
def losses_of(model: nn.Module, loss_fn: Any, canaries: tuple[Any, Any]) -> Tensor:
    """The loss of each canary, dropout off."""
    evaluated = copy.deepcopy(model).eval()
    found = [
        per_example_losses(loss_fn, call(evaluated, inputs), targets).to("cpu", torch.float64)
        for inputs, targets in _batches(canaries, device_of(model))
    ]
    return torch.cat(found)


def outcomes(
    scores: Tensor,
    included: Tensor,
    guesses: Sequence[int],
    coins: Coins,
    *,
    log_odds: bool = False,
) -> tuple[Outcome, ...]:
    """How many guesses are right, for each number c of guesses.

    In general the c/2 highest scores are "in" and the c/2 lowest "out". Where scores are log odds,
    the c furthest from their median are guessed: with sampling, a canary can be surely in, but not
    surely out. The median, not 0, as half of the canaries are in whatever unit the odds are in.
    Equal scores are put in a random order by the auditor's coins; NaN is the lowest score, and the
    least clear.
    """
    count = len(scores)
    shuffled = coins.uniform((count,), "ties").argsort()
    missing = scores.isnan()[shuffled]
    clean, inside = torch.where(missing, -math.inf, scores[shuffled]), included[shuffled]
    if log_odds:
        centred = clean - clean.median()
        right = (centred > 0) == inside
        clarity = torch.where(missing | centred.isnan(), -1.0, centred.abs())
        ranked = right[clarity.argsort(descending=True, stable=True)].cumsum(0)
        return tuple(Outcome(count, number, int(ranked[number - 1])) for number in guesses)
    inside = inside[clean.argsort(stable=True)]
    found = []
    for number in guesses:
        half = number // 2
        hits = int((~inside[:half]).sum()) + int(inside[count - half :].sum())
        found.append(Outcome(count, number, hits))
    return tuple(found)


def checked_guesses(guesses: int | Sequence[int] | None, canaries: int) -> tuple[int, ...]:
    """Even numbers of guesses; by default a quarter, a 16th and a 64th of the canaries.

    Few guesses on the clearest canaries show a large ε, many show a small one.

    Example:
        >>> checked_guesses(None, 4096)
        (64, 256, 1024)
    """
    least = 2 * (min(canaries, 32) // 2)
    if guesses is None:
        guesses = sorted({max(2 * (canaries // (2 * part)), least) for part in (4, 16, 64)})
    numbers = tuple(guesses) if isinstance(guesses, Sequence) else (guesses,)
    for number in numbers:
        if whole("guesses", number, least=2) % 2:
            raise OptionError("guesses", number, "must be even: as many 'in' as 'out'")
        if number > canaries:
            raise OptionError("guesses", number, f"exceeds the {canaries} canaries")
    if not numbers or len(set(numbers)) < len(numbers):
        raise OptionError("guesses", guesses, "must be one number or several different ones")
    return tuple(int(number) for number in numbers)


def separation(scores: Tensor, included: Tensor) -> dict[str, float | None]:
    """The area under the ROC curve and the mean scores of both groups; None where undefined."""
    count, inside = len(scores), int(included.sum())
    clean = torch.where(scores.isnan(), -math.inf, scores)
    ranks = torch.from_numpy(rankdata(clean.numpy()))
    area = None
    if 0 < inside < count:
        above = float(ranks[included].sum()) - inside * (inside + 1) / 2
        area = above / (inside * (count - inside))
    means = {"mean_in": scores[included], "mean_out": scores[~included]}
    said = {name: float(group.mean()) if len(group) else None for name, group in means.items()}
    finite = {n: v if v is not None and math.isfinite(v) else None for n, v in said.items()}
    return {"auc": area, **finite}


def device_of(model: nn.Module) -> torch.device:
    """Where the parameters are."""
    return next(iter(model.parameters())).device


def count_of(canaries: tuple[Any, Any]) -> int:
    """How many there are."""
    return gradients.batches.batch_size(*canaries)


def _batches(canaries: tuple[Any, Any], device: torch.device) -> Iterator[tuple[Any, Any]]:
    count = count_of(canaries)
    for start in range(0, count, BATCH):
        some = part(canaries, start, min(start + BATCH, count))
        inputs, targets = tree_map(lambda leaf: leaf.to(device), some)
        yield inputs, targets
