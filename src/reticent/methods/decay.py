"""Noise decay: DP-SGD whose noise falls along a public schedule, each release at its own price."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from reticent.errors import OptionError
from reticent.methods.base import Stage, bill_of
from reticent.methods.dpsgd import DPSGD
from reticent.methods.schedules import Schedule
from reticent.privacy import Bill, Budget, Ledger, SampledGaussian, noise_for_plan

if TYPE_CHECKING:
    from reticent.training.run import Run

# Accountants take a fraction of a second for every multiplier.
MOST_STAGES = 200
TOO_MANY_STAGES = 100_000


@dataclass(frozen=True)
class NoiseDecay(DPSGD):
    """DP-SGD with noise multiplier σ_t = `noise`·f(t), f a public schedule (Yu et al. 2019).

    Early gradients are long and bear more noise than late ones; a falling multiplier spends the
    budget where it matters. The schedules are those of `Schedule`; t counts stages, by default
    epochs.

    Formal guarantee: release by release a Poisson-sampled Gaussian mechanism of rate batch/n and
    multiplier σ_t. All multipliers are fixed before the run, so every accountant for such charges
    is valid. A plan with more than 200 multipliers is charged for neighbours together, at the
    smallest of theirs: more than it costs.

    Args:
        batch: As for DP-SGD.
        clip: As for DP-SGD.
        noise: σ_0; None: such that the budget affords the whole plan.
        schedule: The shape of f; `rate`, `period`, `end` and `stage` as `Schedule` takes them.

    Example:
        >>> method = NoiseDecay(batch=100, noise=2.0, schedule="step", rate=0.5, period=1, stage=3)
        >>> [(price[0][0].multiplier, count) for price, count in method.stages(n=1000, steps=7)]
        [(2.0, 3), (1.0, 3), (0.5, 1)]
    """

    schedule: str = "exponential"
    rate: float | None = None
    period: int = 10
    end: float = 0.1
    stage: int | None = None

    name: ClassVar[str] = "noise-decay"
    title: ClassVar[str] = "Differentially private SGD with decaying noise"
    paper: ClassVar[str] = (
        "Yu, Liu, Pu, Gursoy, Truex, Differentially private model publishing for deep learning, "
        "IEEE S&P 2019"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.shape  # its options are checked there

    @property
    def shape(self) -> Schedule:
        """The schedule f."""
        return Schedule(self.schedule, self.rate, self.period, self.end, self.stage)

    def multiplier(self, step: int, n: int) -> float:
        """σ_t of the release after `step` others."""
        assert self.noise is not None
        shape = self.shape
        return self.noise * shape.factor(step // shape.length(n, self.batch))

    def noise_now(self, run: Run) -> float:
        """As DP-SGD says."""
        return self.multiplier(run.state.step, run.n)

    def stages(self, n: int, steps: int) -> tuple[Stage, ...]:
        """As the base class says."""
        price = self.price(n)
        if self.noise == 0:
            return ((price, steps),)
        rate, length = self._rate(n), self.shape.length(n, self.batch)
        plan: list[tuple[float, int]] = []
        last = self.multiplier(max(steps - 1, 0), n)
        for begin in range(0, steps, length):
            multiplier, count = self.multiplier(begin, n), min(length, steps - begin)
            if multiplier == last:  # none is larger from here on: the rest is alike
                plan.append((multiplier, steps - begin))
                break
            if len(plan) >= TOO_MANY_STAGES:
                raise OptionError(
                    "steps",
                    steps,
                    f"has more than {TOO_MANY_STAGES:,} stages of {length:,} releases, each with "
                    "its own noise; make fewer, or stages longer",
                )
            if plan and plan[-1][0] == multiplier:
                count += plan.pop()[1]
            plan.append((multiplier, count))
        together = -(-len(plan) // MOST_STAGES)
        stages = []
        for first in range(0, len(plan), together or 1):
            some = plan[first : first + together]
            charge = SampledGaussian(rate, min(multiplier for multiplier, _ in some))
            stages.append((((charge, "training"),), sum(count for _, count in some)))
        return tuple(stages)

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> NoiseDecay:
        """As the base class says."""

        def bill_at(multiplier: float) -> Bill:
            return bill_of(replace(self, noise=multiplier).stages(n, steps))

        return replace(self, noise=noise_for_plan(budget, bill_at, ledger=ledger))

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        shape = self.shape
        return {**super().options(), **vars(shape)}
