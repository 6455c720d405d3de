"""How one example's gradient is bounded before it enters the sum.

A clipping style answers two questions: by what factor is an example's gradient scaled, given its
norm, and how far can one example then move the sum (`sensitivity`, in L2, add or remove one
record). The noise of a mechanism is scaled from that sensitivity and from nothing else, so the two
cannot disagree.

Symbols: g one example's gradient, n = ‖g‖₂, C the bound.

| style        | factor           | sensitivity   | source                                      |
|--------------|------------------|---------------|---------------------------------------------|
| `Flat`       | min(1, C/n)      | C             | Abadi et al. 2016, Algorithm 1              |
| `PerLayer`   | min(1, C_l/n_l)  | √(Σ C_l²)     | McMahan et al. 2018, section 2.2            |
| `Automatic`  | C/(n + γ)        | C             | Bu et al. 2023, AUTO-S                      |
| `Normalised` | C/n, 0 at n = 0  | C             | Bu et al. 2023, AUTO-V                      |

Floating point: a norm is computed with a relative error of a few units in the last place, and
so is the sum it scales. Where n is a little too small, C/n is a little too large and the scaled
gradient would be a little *longer* than C, which the accountant was not told. Every factor is
therefore computed for the bound C·(1 − slack), with `slack` well above the rounding error of the
arithmetic in use (`slack_for`). The stated sensitivity stays C.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from reticent.errors import OptionError
from reticent.gradients import rounding

# Squares below 1e-38 are lost in single precision; a sum of very many of them stays below this².
SMALLEST = 1e-12
# Squares above 3e38 are infinite there: no longer gradient is ever seen. Noise of many times this
# bound is still finite.
LARGEST = 1e18


def slack_for(dtype: torch.dtype, device: torch.device) -> float:
    """Relative head room between the bound and what a factor may reach.

    float32: for the rounding of the norm, and of sums over a few thousand examples, which one
    example more can shift. TF32 rounds every factor of a product to 11 bits (2⁻¹¹ each), on two
    products; cuDNN convolutions use it unless told otherwise. Products may also have been allowed
    bfloat16, of 8 bits.
    """
    if dtype == torch.float64:
        return 1e-12
    formats = rounding.allowed(device)
    if "bf16" in formats:
        return 2e-2
    return 4e-3 if "tf32" in formats else 5e-5


def clip_bound(option: str, value: float, *, infinite: bool = False) -> float:
    """Return a bound as a float > 0, finite unless `infinite` allows otherwise."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise OptionError(option, value, "must be a number greater than 0") from None
    except OverflowError:  # a whole number beyond all floating-point ones
        raise OptionError(option, "a huge number", f"must be at most {LARGEST:g}") from None
    if isinstance(value, bool) or math.isnan(number) or number <= 0:
        raise OptionError(option, value, "must be greater than 0")
    if number < SMALLEST:
        raise OptionError(
            option, value, f"must be at least {SMALLEST:g}: shorter gradients vanish when squared"
        )
    if math.isinf(number) and not infinite:
        raise OptionError(option, value, "must be finite: this style scales every gradient to it")
    if LARGEST < number < math.inf:
        raise OptionError(
            option,
            value,
            f"must be at most {LARGEST:g}: longer gradients overflow; 1e9 cuts nothing",
        )
    return number


class Clipping:
    """Base of the clipping styles: a bound per group of parameters and a factor per example."""

    @property
    def sensitivity(self) -> float:
        """Largest L2 change of the clipped sum when one record is added or removed."""
        raise NotImplementedError

    @property
    def grouped(self) -> bool:
        """Whether parameters are clipped module by module rather than all together."""
        return False

    def bounds_for(self, groups: Sequence[str]) -> list[float]:
        """The bound of each group; one group, the whole model, unless `grouped`."""
        return [self.sensitivity]

    def factors(self, norms: Tensor, bound: float | Tensor) -> Tensor:
        """Scale factors [B] for the finite `norms` [B] of one group with this bound."""
        raise NotImplementedError


@dataclass(frozen=True)
class Flat(Clipping):
    """Scale the whole gradient down to `bound` when it is longer (Abadi et al. 2016).

    >>> Flat(2.0).sensitivity
    2.0

    `bound=inf` never clips; its sensitivity is infinite, so no mechanism can use it by mistake.
    """

    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", clip_bound("clip", self.bound, infinite=True))

    @property
    def sensitivity(self) -> float:
        """C."""
        return self.bound

    def factors(self, norms: Tensor, bound: float | Tensor) -> Tensor:
        """min(1, C/n); a zero norm gives C/0 = inf, hence 1."""
        return (bound / norms).clamp(max=1.0)


@dataclass(frozen=True)
class Automatic(Clipping):
    """Scale every gradient by C/(n + γ), so that small gradients keep their order (AUTO-S).

    Bu, Wang, Zha, Karypis, "Automatic Clipping", NeurIPS 2023: γ > 0 keeps the method convergent.
    """

    bound: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", clip_bound("bound", self.bound))
        object.__setattr__(self, "gamma", clip_bound("gamma", self.gamma))

    @property
    def sensitivity(self) -> float:
        """C, since n/(n + γ) < 1."""
        return self.bound

    def factors(self, norms: Tensor, bound: float | Tensor) -> Tensor:
        """C/(n + γ)."""
        return bound / (norms + self.gamma)


@dataclass(frozen=True)
class Normalised(Clipping):
    """Scale every gradient to length C exactly; a zero gradient stays zero (AUTO-V)."""

    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", clip_bound("bound", self.bound))

    @property
    def sensitivity(self) -> float:
        """C."""
        return self.bound

    def factors(self, norms: Tensor, bound: float | Tensor) -> Tensor:
        """C/n, and 0 where n² would underflow: there the direction is rounding noise."""
        least = math.sqrt(torch.finfo(norms.dtype).tiny)
        return torch.where(norms > least, bound / norms.clamp(min=least), 0.0)


@dataclass(frozen=True)
class PerLayer(Clipping):
    """Clip the parameters of each module on their own (McMahan et al. 2018).

    A group is a module that owns trainable parameters; a tied parameter belongs to the first
    module that names it. One number C is split equally, C/√k for each of k groups, so the
    sensitivity is C. A mapping gives one bound per module name, a sequence one per group in the
    order of `model.named_parameters()`.

    >>> round(PerLayer({"0": 3.0, "2": 4.0}).sensitivity, 6)
    5.0
    """

    bounds: float | Mapping[str, float] | Sequence[float]

    def __post_init__(self) -> None:
        given = self.bounds
        checked: float | dict[str, float] | tuple[float, ...]
        if isinstance(given, Mapping):
            checked = {str(k): clip_bound(f"bounds[{k!r}]", v) for k, v in given.items()}
        elif isinstance(given, Sequence):
            checked = tuple(clip_bound(f"bounds[{i}]", v) for i, v in enumerate(given))
        else:
            checked = clip_bound("bounds", given)
        if not isinstance(checked, float) and not checked:
            raise OptionError("bounds", given, "must name at least one group")
        object.__setattr__(self, "bounds", checked)

    def __hash__(self) -> int:
        given = self.bounds
        return hash(tuple(given.items()) if isinstance(given, Mapping) else given)

    @property
    def grouped(self) -> bool:
        """True."""
        return True

    @property
    def sensitivity(self) -> float:
        """√(Σ C_l²): the groups' gradients are orthogonal blocks of one vector."""
        given = self.bounds
        if isinstance(given, Mapping):
            return math.hypot(*given.values())
        if isinstance(given, Sequence):
            return math.hypot(*given)
        return given

    def bounds_for(self, groups: Sequence[str]) -> list[float]:
        """One bound per group, checked against the model's modules."""
        given = self.bounds
        if isinstance(given, Mapping):
            if set(given) != set(groups):
                raise OptionError(
                    "bounds", dict(given), f"must name exactly these modules: {', '.join(groups)}"
                )
            return [given[name] for name in groups]
        if isinstance(given, Sequence):
            if len(given) != len(groups):
                raise OptionError(
                    "bounds", list(given), f"needs {len(groups)} numbers: {', '.join(groups)}"
                )
            return list(given)
        return [given / math.sqrt(max(len(groups), 1))] * len(groups)

    def factors(self, norms: Tensor, bound: float | Tensor) -> Tensor:
        """min(1, C_l/n_l) for each group."""
        return (bound / norms).clamp(max=1.0)


def as_clipping(clip: float | Clipping) -> Clipping:
    """A number means flat clipping at that bound."""
    return clip if isinstance(clip, Clipping) else Flat(clip)
