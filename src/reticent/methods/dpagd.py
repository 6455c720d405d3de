"""DP-AGD: private gradient descent that chooses its steps, and buys precision where none helps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from reticent.errors import OptionError, between, not_negative, single, whole
from reticent.gradients import Clipping
from reticent.gradients.clipping import slack_for
from reticent.methods.base import Price
from reticent.methods.dpsgd import DPSGD
from reticent.privacy import (
    Bill,
    Budget,
    Ledger,
    NonPrivate,
    SampledGaussian,
    SampledPure,
    Sensitive,
    noise_for_plan,
    order_for_most,
)

if TYPE_CHECKING:
    from reticent.training.run import Run

_STATE = "agd"  # what a run remembers between rounds, all of it released


@dataclass(frozen=True)
class DPAGD(DPSGD):
    """Adaptive gradient descent (Lee and Kifer 2018, Algorithm 2), every query of it charged.

    One release is one round. (a) Measure the gradient: a clipped sum with noise of the present
    multiplier σ, budget ρ = 1/(2σ²). (b) Among step sizes, 0 included, choose the one with the
    smallest objective on a fresh batch, by a noisy minimum. If 0 wins, nothing moves and ρ grows by
    1 + γ: the next round measures the gradient of the same parameters once more with noise for γ·ρ,
    and averages by inverse variances (the paper's GRADAVG). Else the parameters move, and the
    gradient is dropped. Every `adapt` moves the candidates are scaled to the longest step taken.

    The method chooses its own steps: it takes plain SGD, whose learning rate multiplies them.

    Formal guarantee: (a) is a Poisson-sampled Gaussian mechanism of rate batch/n, (b) a
    Poisson-sampled choice under pure differential privacy (`SampledPure`). What a round costs
    depends on earlier ones, so a privacy filter keeps the budget, and the run states the budget's
    ε. Rounds that fail are paid like all others.

    Args:
        batch: The expected number of records in (a); the paper takes all of them.
        clip: As for DP-SGD, with a bound that does not move (C_grad).
        noise: The first multiplier σ. None: such that as many rounds as planned would, all at the
            first price, use `share` of the budget.
        objective_batch: The expected number of records in (b); by default `batch`.
        objective_bound: One record's loss counts as at most this (C_obj).
        choice_epsilon: ε of one choice; by default 1/noise, the same budget ρ as the gradient's.
        gamma: By how much ρ grows after a failure (γ).
        candidates: How many step sizes, evenly spaced up to `longest`.
        longest: The longest step.
        sizes: The step sizes themselves, instead.
        moves: How far the parameters move where each of `sizes` wins, if not by that size: larger
            ones do not stop where the objective of the next batch is least. Needs `sizes`.
        adapt: After so many moves (τ) the longest becomes 1 + `stretch` times the longest one
            taken since, at most as long as at first. 0: never.
        stretch: As `adapt` says (η).
        normalise: Whether directions have length 1, as in the paper, so that sizes are distances;
            else they are the noisy sum over `batch`.
        share: As `noise` says; the rest is for what failures add.

    Example:
        >>> [charge.kind for charge, _ in DPAGD(batch=500, noise=8.0).price(n=1000)]
        ['sampled-gaussian', 'sampled-pure']
    """

    objective_batch: int | None = None
    objective_bound: float = 3.0
    choice_epsilon: float | None = None
    gamma: float = 0.1
    candidates: int = 20
    longest: float = 2.0
    sizes: Sequence[float] | None = None
    moves: Sequence[float] | None = None
    adapt: int = 10
    stretch: float = 0.1
    normalise: bool = True
    share: float = 0.6

    adaptive: ClassVar[bool] = True
    restores: ClassVar[bool] = True
    name: ClassVar[str] = "dpagd"
    title: ClassVar[str] = "Gradient descent with an adaptive privacy budget per iteration"
    paper: ClassVar[str] = (
        "Lee and Kifer, Concentrated differentially private gradient descent with adaptive "
        "per-iteration privacy budget, KDD 2018, Algorithm 2"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.clip, (int, float, Clipping)):
            raise OptionError(
                "clip", self.clip, "must not move: measurements of one gradient are averaged"
            )
        if self.objective_batch is not None:
            whole("objective_batch", self.objective_batch)
        single("objective_bound", self.objective_bound)
        if self.choice_epsilon is not None:
            SampledPure(1.0, self.choice_epsilon)  # checked there
        between("gamma", self.gamma, 1e-6, 1e6)
        whole("candidates", self.candidates)
        single("longest", self.longest)
        for name in ("sizes", "moves"):
            given = getattr(self, name)
            if given is None:
                continue
            if not isinstance(given, (list, tuple)) or not given:
                raise OptionError(name, given, "must be a list of step sizes")
            object.__setattr__(self, name, tuple(single(name, one) for one in given))
        if self.moves is not None and len(self.moves) != len(self.sizes or ()):
            raise OptionError("moves", self.moves, "must be as many as sizes, which are needed too")
        if self.sizes is not None:  # by size, each with its move
            pairs = sorted(zip(self.sizes, self.moves or self.sizes, strict=True))
            object.__setattr__(self, "sizes", tuple(size for size, _ in pairs))
            if self.moves is not None:
                object.__setattr__(self, "moves", tuple(move for _, move in pairs))
        whole("adapt", self.adapt, least=0)
        not_negative("stretch", self.stretch)
        between("share", self.share, 0, 1, open_low=True)

    # -- what it costs ------------------------------------------------------------------------

    @property
    def drawn(self) -> int:
        """As the base class says."""
        return max(self.batch, self.objective_batch or 0)

    def _objective_rate(self, n: int) -> float:
        batch = self.batch if self.objective_batch is None else self.objective_batch
        if batch > n:
            raise OptionError("objective_batch", batch, f"exceeds the nominal size {n}")
        return batch / n

    def choice(self, n: int) -> SampledPure:
        """What one choice of a step size costs."""
        assert self.noise
        epsilon = 1 / self.noise if self.choice_epsilon is None else self.choice_epsilon
        return SampledPure(self._objective_rate(n), epsilon)

    def multiplier(self, failures: int, again: bool) -> float:
        """σ of a measurement after so many failures in all; `again`: of the same gradient."""
        assert self.noise is not None
        if again:  # the last growth of ρ alone
            return self.noise * (1 + self.gamma) ** ((1 - failures) / 2) / math.sqrt(self.gamma)
        return self.noise * (1 + self.gamma) ** (-failures / 2)

    def price(self, n: int) -> Price:
        """What the first round costs, and every other that follows no failure."""
        return self._price(n, 0, False)

    def _price(self, n: int, failures: int, again: bool) -> Price:
        rate = self._rate(n)
        self._objective_rate(n)
        if self.noise is None:
            raise OptionError("noise", None, "is not set; calibrate it, or give a multiplier")
        if self.noise == 0:
            free = NonPrivate("noise multiplier 0")
            return ((free, "gradient"), (free, "step size"))
        gradient = SampledGaussian(rate, self.multiplier(failures, again))
        purpose = "gradient, measured again" if again else "gradient"
        return ((gradient, purpose), (self.choice(n), "step size"))

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> DPAGD:
        """As the base class says; fixes the order of the ledger's filter too."""
        rounds = max(math.ceil(steps / self.share), 1)

        def bill_at(multiplier: float) -> Bill:
            price = replace(self, noise=multiplier).price(n)
            return tuple((charge, rounds) for charge, _ in price)

        method = self
        if self.noise is None:
            by = "rdp" if ledger.filter_order is None else "filter"
            noise = noise_for_plan(budget, bill_at, ledger=ledger, accountant=by)
            method = replace(self, noise=noise)
        if ledger.filter_order is None:
            charges = [charge for charge, _ in method.price(n)]
            ledger.use_filter(order_for_most(budget, charges, ledger))
        return method

    def affordable(self, run: Run) -> bool:
        """As the base class says."""
        budget, memory = run.ledger.budget, self._memory(run)
        if budget is None:
            return True
        price = self._price(run.n, memory["failures"], memory["gradient"] is not None)
        charges = tuple((charge, 1) for charge, _ in price)
        return run.ledger.epsilon_with(charges, "filter") <= budget.epsilon

    # -- one round ----------------------------------------------------------------------------

    def _memory(self, run: Run) -> dict[str, Any]:
        """Failures so far, the gradient they left, the longest step, those taken since it was set.

        A copy: only `release` writes it back.
        """
        first: dict[str, Any] = {"failures": 0, "gradient": None, "scale": 1.0, "taken": []}
        return {**first, **run.state.public.get(_STATE, {})}

    def release(self, run: Run) -> None:
        """As the base class says."""
        check_optimizer(run)
        memory = self._memory(run)
        again = memory["gradient"] is not None
        to_measure, to_choose = self._price(run.n, memory["failures"], again)
        self._pay(run, *to_measure)
        gradient = self._measured(run, memory)
        sizes = [0.0, *(memory["scale"] * size for size in self._sizes)]
        self._pay(run, *to_choose)
        chosen = self._chosen(run, self.direction(run, gradient), sizes)
        if chosen == 0:
            memory |= {"gradient": gradient, "failures": memory["failures"] + 1}
            run.state.public[_STATE] = memory
            return run.state.hold()
        memory["gradient"] = None
        run.state.public[_STATE] = self._adapted(memory, sizes[chosen])
        moved = sizes[chosen]
        if self.moves is not None:
            moved = memory["scale"] * self.moves[chosen - 1]
        return run.step(moved * self.direction(run, gradient))

    def _pay(self, run: Run, charge: Any, purpose: str) -> None:
        if self.noise == 0:
            run.ledger.charge(charge, purpose)  # nothing to be kept by a filter
        else:
            run.pay(charge, purpose)

    def _measured(self, run: Run, memory: dict[str, Any]) -> torch.Tensor:
        """The noisy sum, averaged with what was measured of the same gradient before."""
        before = memory["gradient"]
        total = run.clipped_sum(run.sample(self._rate(run.n)), self.clipping)
        fresh = run.noisy(total, self.multiplier(memory["failures"], before is not None))
        if before is None:
            return fresh
        # weights ρ and γ·ρ: those before have, together, the budget of before the last failure
        return (before.to(fresh.device) + self.gamma * fresh) / (1 + self.gamma)

    def direction(self, run: Run, released: torch.Tensor) -> torch.Tensor:
        """A noisy sum as the direction that step sizes multiply."""
        if not self.normalise:
            return released / self.batch
        return released / released.norm().clamp(min=torch.finfo(released.dtype).tiny)

    @property
    def _sizes(self) -> Sequence[float]:
        if self.sizes is not None:
            return self.sizes
        return [self.longest * j / self.candidates for j in range(1, self.candidates + 1)]

    def _chosen(self, run: Run, direction: torch.Tensor, sizes: list[float]) -> int:
        """Which step size has the smallest objective, with noise; all from the same start."""
        judges = run.sample(self._objective_rate(run.n), "objective")
        before, scores = run.state.snapshot(), []
        for number, size in enumerate(sizes):
            if size:
                run.step(size * direction)
            scores.append(self._score(run, judges, f"candidate {number}"))
            if size:
                run.state.restore(before)
        together = Sensitive(torch.stack(scores), self.objective_bound)
        if self.noise == 0:
            return int(together.flat.argmin())
        return run.noisy_min(together, self.choice(run.n).epsilon, "choice")

    def _score(self, run: Run, judges: torch.Tensor, stream: str) -> torch.Tensor:
        """Σ min(max(loss, 0), C_obj) over the drawn records. Private.

        A loss that is not finite counts as C_obj. One record more moves the rounding of the others'
        losses: a little less than C_obj leaves room for that, as for gradients.
        """
        slack = slack_for(run.state.parameters.values.dtype, run.device)
        most = self.objective_bound * (1 - slack)
        losses = run.losses(judges, stream)
        return torch.where(losses.isfinite(), losses, most).clamp(0, most).sum()

    def _adapted(self, memory: dict[str, Any], size: float) -> dict[str, Any]:
        """The candidates of the next rounds, from the sizes chosen in the last ones."""
        taken = [*memory["taken"], size]
        if self.adapt == 0 or len(taken) < self.adapt:
            return {**memory, "taken": taken}
        scale = min((1 + self.stretch) * max(taken) / max(self._sizes), 1.0)
        return {**memory, "scale": scale, "taken": []}

    def released(self, public: dict[str, Any]) -> dict[str, Any]:
        """As the base class says."""
        memory = public.get(_STATE, {"failures": 0, "scale": 1.0})
        longest = memory["scale"] * max(self.moves or self._sizes)
        return {"failures": memory["failures"], "longest_step": longest}

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        own = (
            *("objective_batch", "objective_bound", "choice_epsilon", "gamma", "candidates"),
            *("longest", "adapt", "stretch", "normalise", "share"),
        )
        found = {**super().options(), **{name: getattr(self, name) for name in own}}
        for name in ("sizes", "moves"):
            given = getattr(self, name)
            found[name] = None if given is None else list(given)
        return found


def check_optimizer(run: Run) -> None:
    """Refuse what would make of a chosen step another one."""
    optimizer = run.state.optimizer
    kind = type(optimizer).__name__
    if type(optimizer) is not torch.optim.SGD:
        raise OptionError(
            "optimizer", kind, "dpagd chooses its own steps; give torch.optim.SGD, without momentum"
        )
    for group in optimizer.param_groups:
        for name in ("momentum", "weight_decay", "maximize"):
            if group[name]:
                raise OptionError(name, group[name], "dpagd chooses its own steps; leave this out")
