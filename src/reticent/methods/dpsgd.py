"""DP-SGD: clip each gradient, sum, add noise, step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from reticent.errors import OptionError, between, one_of, positive, whole
from reticent.gradients import Automatic, Clipping, Flat, Normalised, PerLayer
from reticent.gradients.clipping import clip_bound
from reticent.methods.base import Method, Price
from reticent.methods.schedules import Scheduled
from reticent.privacy import (
    Budget,
    Charge,
    Ledger,
    NonPrivate,
    SampledGaussian,
    Sensitive,
    noise_for,
)
from reticent.privacy.charges import LEAST_MULTIPLIER, MOST_MULTIPLIER

if TYPE_CHECKING:
    from reticent.training.run import RecordSum, Run

CLIPPING_STYLES = ("flat", "per-layer", "automatic", "normalised", "quantile")


@dataclass(frozen=True)
class Quantile:
    """Flat clipping whose bound follows a quantile of the gradient norms, privately.

    Andrew, Thakkar, McMahan, Ramaswamy 2021, Algorithm 1. Each release also counts, with noise, how
    many drawn records lie under the bound C, and sets C ← C·exp(−rate·(fraction − quantile)).

    The count comes out of the same charge. A record moves (Σ clipped / C, Σ (1[‖g‖ ≤ C] − ½)) by at
    most (1, ½); noise of z_Δ and σ_b on the two parts is one Gaussian release of multiplier z where
    z⁻² = z_Δ⁻² + (2σ_b)⁻² (Theorem 1 there). So the gradient gets a little more noise than z.

    Args:
        initial: The bound C of the first release.
        quantile: Which quantile of the norms C shall track.
        rate: How fast.
        count_noise: σ_b; by default a twentieth of the batch.
        low: C never falls below this.
        high: C never rises above this.
    """

    initial: float = 1.0
    quantile: float = 0.5
    rate: float = 0.2
    count_noise: float | None = None
    low: float = 1e-6
    high: float = 1e6

    def __post_init__(self) -> None:
        clip_bound("low", self.low)
        clip_bound("high", self.high)
        between("initial", self.initial, self.low, self.high)
        between("quantile", self.quantile, 0, 1)
        positive("rate", self.rate)
        if self.count_noise is not None:
            positive("count_noise", self.count_noise)

    def split(self, noise: float, batch: int) -> tuple[float, float]:
        """(z_Δ, σ_b) such that both releases together have multiplier `noise`."""
        count_noise = batch / 20 if self.count_noise is None else self.count_noise
        rest = noise**-2 - (2 * count_noise) ** -2
        if rest <= 0:
            raise OptionError(
                "count_noise",
                count_noise,
                f"must exceed half the noise multiplier {noise:g}; use a larger batch or set it",
            )
        return rest**-0.5, count_noise


def clipping_by_name(style: str, bound: float) -> Clipping | Quantile:
    """The clipping style the command line names, with its default settings."""
    styles: dict[str, Callable[[float], Clipping | Quantile]] = {
        "flat": Flat,
        "per-layer": PerLayer,
        "automatic": Automatic,
        "normalised": Normalised,
        "quantile": lambda initial: Quantile(initial=initial),
    }
    try:
        return styles[one_of("clipping", style, styles)](bound)
    except OptionError as error:  # said by the name it was given under
        named = error.option if error.option == "clipping" else "clip"
        raise OptionError(named, error.value, error.hint) from None


@dataclass(frozen=True)
class DPSGD(Method):
    """Clip each gradient, sum, add noise, divide by the expected batch, step.

    Formal guarantee: one release is a Poisson-sampled Gaussian mechanism of rate batch/n and
    multiplier `noise` for adding or removing one record, whatever the clipping style and the
    optimizer: momentum and Adam's moments are post-processing.

    Args:
        batch: The expected number of records in a release.
        clip: The bound on one record's gradient: a number (flat clipping), a `Clipping` style,
            `Quantile`, or `Scheduled`.
        noise: The noise multiplier; None lets the budget and the number of steps decide, 0 is a run
            without any guarantee.

    Example:
        >>> DPSGD(batch=256, clip=1.0, noise=1.1).price(n=60000)[0][0]
        SampledGaussian(rate=0.0042..., multiplier=1.1)
    """

    batch: int
    clip: float | Clipping | Quantile | Scheduled = 1.0
    noise: float | None = None

    name: ClassVar[str] = "dpsgd"
    title: ClassVar[str] = "Differentially private stochastic gradient descent"
    paper: ClassVar[str] = "Abadi et al., Deep learning with differential privacy, CCS 2016"

    def __post_init__(self) -> None:
        whole("batch", self.batch)
        if isinstance(self.clip, (int, float)):
            Flat(self.clip)  # the bound is checked there
        elif not isinstance(self.clip, (Clipping, Quantile, Scheduled)):
            raise OptionError("clip", self.clip, "must be a number or a clipping style")
        if self.noise is not None and self.noise != 0:
            between("noise", positive("noise", self.noise), LEAST_MULTIPLIER, MOST_MULTIPLIER)
        if self.noise and isinstance(self.clip, Quantile):
            self.clip.split(self.noise, self.batch)
        if self.noise and not math.isfinite(self.clipping.sensitivity):
            raise OptionError("clip", self.clip, "noise needs a finite bound")

    @property
    def clipping(self) -> Clipping:
        """The clipping style of the first release."""
        if isinstance(self.clip, (Quantile, Scheduled)):
            return Flat(self.clip.initial)
        return self.clip if isinstance(self.clip, Clipping) else Flat(float(self.clip))

    def _rate(self, n: int) -> float:
        if self.batch > n:
            raise OptionError("batch", self.batch, f"exceeds the data set's nominal size {n}")
        return self.batch / n

    def price(self, n: int) -> Price:
        """As the base class says."""
        if self.noise is None:
            raise OptionError("noise", None, "is not set; calibrate it, or give a multiplier")
        if self.noise == 0:
            return ((NonPrivate("noise multiplier 0"), "training"),)
        return ((SampledGaussian(self._rate(n), self.noise), "training"),)

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> DPSGD:
        """As the base class says."""
        rate = self._rate(n)

        def charge_at(multiplier: float) -> Charge:
            return SampledGaussian(rate, multiplier)

        return replace(self, noise=noise_for(budget, charge_at, steps, ledger=ledger))

    def release(self, run: Run) -> None:
        """As the base class says."""
        records = run.sample(self._rate(run.n))
        self.step(run, run.clipped_sum(records, self.bound_now(run)))

    def bound_now(self, run: Run) -> Clipping:
        """The clipping of the release to come: a public number may have moved its bound."""
        if isinstance(self.clip, Scheduled):
            return self.clip.at(run.state.step, run.n, self.batch)
        if not isinstance(self.clip, Quantile):
            return self.clipping
        bound = run.state.public.get("clip")
        return Flat(self.clip.initial if bound is None else float(bound))

    def noise_now(self, run: Run) -> float:
        """The noise multiplier of the release to come, which is the one that was charged."""
        assert self.noise is not None
        return self.noise

    def step(self, run: Run, total: RecordSum) -> None:
        """Add noise to a clipped sum and move the state by it."""
        if isinstance(self.clip, Quantile):
            return self._step_quantile(run, total, self.clip)
        return run.step(self.direction(run, run.noisy(total, self.noise_now(run))))

    def direction(self, run: Run, released: torch.Tensor) -> torch.Tensor:
        """What the optimizer gets for a gradient; by default the noisy sum as a mean."""
        return released / self.batch

    def _step_quantile(self, run: Run, total: RecordSum, style: Quantile) -> None:
        noise, bound = self.noise_now(run), total.sensitivity
        # how many drawn records lie under the bound, less half of them: one record moves it by ½
        under = (total.norms <= bound).to(total.flat.dtype).sub(0.5).sum()
        gradient_noise, count_noise = style.split(noise, self.batch) if noise else (0, 0)
        released = run.noisy(total, gradient_noise)
        counted = run.noisy(Sensitive(under, 0.5), 2 * count_noise, "count-noise")
        fraction = float(counted) / self.batch + 0.5
        moved = bound * math.exp(-style.rate * (fraction - style.quantile))
        run.state.public["clip"] = torch.tensor(
            min(max(moved, style.low), style.high), dtype=torch.float64
        )
        run.step(self.direction(run, released))

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        moving = isinstance(self.clip, (Quantile, Scheduled))
        style: Any = self.clip if moving else self.clipping
        # JSON knows no infinity; a bound of None is no bound
        own = {name: None if value == math.inf else value for name, value in vars(style).items()}
        return {
            "batch": self.batch,
            "noise": self.noise,
            "clip": {"style": type(style).__name__.lower(), **own},
        }
