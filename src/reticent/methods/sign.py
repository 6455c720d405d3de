"""DP-SignSGD and DP-SignAdam: keep only the signs of the noisy gradient.

Bottlenecked backpropagation, Algorithms 3 and 4. The sign is taken after the noise, so it is
post-processing: a release costs what it costs in DP-SGD. Read literally, both algorithms add
N(0, σ²C²) to the *mean* of the clipped gradients, S times the noise that is accounted for; here it
is added to their sum, (Σ ḡ_i + N(0, σ²C²I)) / S, whose sign is that of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from reticent.errors import OptionError, between, positive
from reticent.methods.dpsgd import DPSGD

if TYPE_CHECKING:
    from reticent.training.run import Run

_PAPER = "Bottlenecked backpropagation to train differentially private deep neural networks"


@dataclass(frozen=True)
class SignSGD(DPSGD):
    """Clip each gradient, sum, add noise, step along the sign (Algorithm 3).

    With `momentum` β the sign is that of an average of the noisy gradients instead,
    m ← β·m + (1 − β)·g̃ (Bernstein et al. 2018, "Signum"). An optimizer with momentum of its own
    averages signs.

    Formal guarantee: that of `DPSGD`. Signs, averages and moments are functions of what was
    released.

    Example:
        >>> SignSGD(batch=256, clip=1.0, noise=1.1).price(n=60000)[0][0]
        SampledGaussian(rate=0.0042..., multiplier=1.1)
    """

    momentum: float = 0.0

    name: ClassVar[str] = "sign-sgd"
    title: ClassVar[str] = "Signs of differentially private gradients"
    paper: ClassVar[str] = f"{_PAPER}, Algorithm 3"

    def __post_init__(self) -> None:
        super().__post_init__()
        _below_one("momentum", self.momentum)

    def direction(self, run: Run, released: torch.Tensor) -> torch.Tensor:
        """The sign of the noisy sum, or of an average of such sums."""
        if self.momentum == 0:
            return released.sign()
        average = _kept(run, "sign average", released)
        average.lerp_(released, 1 - self.momentum)
        return average.sign()

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return {**super().options(), "momentum": self.momentum}


@dataclass(frozen=True)
class SignAdam(DPSGD):
    """Clip each gradient, sum, add noise, take the sign, and average signs as Adam does.

    Algorithm 4: with s the sign of the noisy gradient, m ← β₁m + (1 − β₁)s, v ← β₂v + (1 − β₂)s²,
    and the step is m̂ / (√v̂ + ε_a) with bias-corrected moments. The optimizer multiplies it by the
    learning rate: give it plain SGD.

    Formal guarantee: that of `DPSGD`.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    name: ClassVar[str] = "sign-adam"
    title: ClassVar[str] = "Adam on the signs of differentially private gradients"
    paper: ClassVar[str] = f"{_PAPER}, Algorithm 4"

    def __post_init__(self) -> None:
        super().__post_init__()
        _below_one("beta1", self.beta1)
        _below_one("beta2", self.beta2)
        positive("eps", self.eps)

    def direction(self, run: Run, released: torch.Tensor) -> torch.Tensor:
        """m̂ / (√v̂ + ε_a)."""
        sign = released.sign()
        first, second = (_kept(run, f"sign moment {order}", released) for order in (1, 2))
        first.lerp_(sign, 1 - self.beta1)
        second.lerp_(sign.square(), 1 - self.beta2)
        count = run.state.step + 1
        scale = (second / (1 - self.beta2**count)).sqrt_().add_(self.eps)
        return first / (1 - self.beta1**count) / scale

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return {
            **super().options(),
            "beta1": self.beta1,
            "beta2": self.beta2,
            "eps": self.eps,
        }


def _below_one(option: str, value: float) -> None:
    if between(option, value, 0, 1) == 1:
        raise OptionError(option, value, "must be less than 1: nothing new would ever count")


def _kept(run: Run, name: str, like: torch.Tensor) -> torch.Tensor:
    """A vector of the run's public state, zeros at first."""
    kept = run.state.public.get(name)
    kept = torch.zeros_like(like) if kept is None else kept.to(like.device)
    run.state.public[name] = kept
    return kept
