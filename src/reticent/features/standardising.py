"""Every channel brought to mean 0 and variance 1, by statistics of the records that were paid for.

The mean and the variance of a channel over the private records are a release (Tramèr & Boneh
2021). Here every number that reaches them is public or noisy: the bounds, the divisor and the
floor are stated, and the two sums over records are charged and get Gaussian noise.

Formal guarantee. Let x be one record with C channels, values that are not finite counted as 0 and
all of them clamped to [-B, B]. With averages over a channel's positions, let ρ² be the sum over
channels of the average of x², and let x be shortened by min(1, K/ρ), K at most B·√C. Then for its
averages m and averages of squares s, both vectors over channels:

    ‖m‖² ≤ Σ s = ρ² ≤ K²                                    (an average's square is at most the
                                                             average of squares)
    ‖s‖² ≤ max s · Σ s ≤ min(B², K²) · K²

so adding or removing a record moves Σ m by at most K and Σ s by at most K·min(B, K). Each sum is
one Gaussian release of all records: `SampledGaussian(rate=1, multiplier=noise)`, twice. Dividing
by the nominal n, the floor and the map of the records by what came out are post-processing.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from reticent.coins import Coins
from reticent.data.datasets import Splits
from reticent.errors import (
    AccountingError,
    CheckpointError,
    DataError,
    OptionError,
    between,
    positive,
    whole,
)
from reticent.files import write_atomically
from reticent.privacy import Charge, Ledger, SampledGaussian, Sensitive, noisy

NOISE = 8.0
"""The multiplier of Tramèr & Boneh: two such sums are a small part of what a training spends."""
MEANS, VARIANCES = "channel means", "channel variances"
FORMAT = "reticent-standardisation/1"

SEEDED_NOTE = (
    "the noise of the standardisation comes from a stated seed: its guarantee holds only against "
    "those who do not know or guess it"
)
_STREAMS = "standardisation means", "standardisation variances"
_EXTREME = 1e100  # squares beyond it, or below its inverse, leave the range of float64
_SLACK = 1e-9  # records are shortened to a little less than the bound, more than rounding can add
_PIECE_BYTES = 1 << 25  # of float64 values at a time; no influence on the result but rounding


@dataclass(frozen=True)
class Reach:
    """Public bounds on one record, from what is known without looking at the records.

    Attributes:
        bound: B; values beyond ±B count as ±B.
        clip: K; records longer than this are shortened to it, where a record's length is the root
            of its mean squares summed over channels. By default B·√C: none is.
    """

    bound: float = 1.0
    clip: float | None = None

    def __post_init__(self) -> None:
        for option, value in (("bound", self.bound), ("clip", self.clip)):
            if value is not None:
                between(option, positive(option, value), 1 / _EXTREME, _EXTREME)

    def sensitivities(self, channels: int) -> tuple[float, float]:
        """How far one record can move the sum of averages, and that of averages of squares."""
        longest = self.bound * math.sqrt(channels)
        length = longest if self.clip is None else min(self.clip, longest)
        return length, length * min(self.bound, length)


@dataclass(frozen=True)
class ChannelStatistics:
    """Means and standard deviations by channel as they were released: public, like a model.

    Attributes:
        mean: one number for each channel.
        deviation: the same; never 0.
        options: the public numbers they were released with.
    """

    mean: Tensor
    deviation: Tensor
    options: dict[str, Any]

    def __call__(self, inputs: Tensor) -> Tensor:
        """Standardise inputs [n, channels, ...], from these records or any other."""
        _check_inputs(inputs)
        if inputs.shape[1] != len(self.mean):
            raise DataError(
                f"inputs have {inputs.shape[1]} channels: the statistics are of {len(self.mean)}"
            )
        mean, deviation = (
            values.view(-1, *[1] * (inputs.dim() - 2)) for values in (self.mean, self.deviation)
        )
        result, start = torch.empty_like(inputs, memory_format=torch.contiguous_format), 0
        for piece in _pieces(inputs):
            result[start : start + len(piece)] = piece.sub_(mean).div_(deviation)
            start += len(piece)
        return result

    def apply(self, splits: Splits) -> Splits:
        """Standardise both splits by the same numbers."""
        said = ", ".join(f"{option} {value:g}" for option, value in self.options.items())
        return replace(
            splits,
            train=(self(splits.train[0]), splits.train[1]),
            test=(self(splits.test[0]), splits.test[1]),
            notes=(
                *splits.notes,
                f"inputs are standardised by channel with private statistics ({said})",
            ),
        )

    def save(self, path: str | Path, ledger: Ledger) -> None:
        """Keep the statistics together with the ledger that shows them paid."""
        metadata = {
            "format": FORMAT,
            "options": json.dumps(self.options),
            "ledger": json.dumps(ledger.to_json()),
        }
        tensors = {"mean": self.mean, "deviation": self.deviation}
        write_atomically(Path(path), save(tensors, metadata))

    @classmethod
    def load(cls, path: str | Path) -> tuple[ChannelStatistics, Ledger]:
        """Read both back."""
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != FORMAT:
                    raise CheckpointError(f"{str(path)!r}: not in format {FORMAT!r}")
                statistics = cls(
                    file.get_tensor("mean"),
                    file.get_tensor("deviation"),
                    json.loads(metadata["options"]),
                )
                return statistics, Ledger.from_json(json.loads(metadata["ledger"]))
        except (OSError, SafetensorError, KeyError, ValueError, AccountingError) as error:
            raise CheckpointError(
                f"statistics {str(path)!r} cannot be read ({type(error).__name__}: {error})"
            ) from error


def standardise(
    splits: Splits,
    *,
    ledger: Ledger,
    n: int,
    noise: float = NOISE,
    bound: float = 1.0,
    clip: float | None = None,
    floor: float | None = None,
    coins: Coins | None = None,
) -> Splits:
    """Bring every channel of both splits to mean 0 and variance 1, as far as noise allows.

    The statistics are of the training split and are paid from `ledger`; hand it on to the training
    (`rt.run(..., ledger=ledger)`), whose noise is then set from what is left. Arguments are those
    of `channel_statistics`.

    Example:
        >>> import reticent as rt
        >>> ledger = rt.Ledger(rt.Budget(epsilon=3, delta=1e-5))
        >>> splits = rt.features.standardise(rt.data.load("digits"), ledger=ledger, n=1437)
        >>> [entry.purpose for entry in ledger.entries]
        ['channel means', 'channel variances']
    """
    reach = Reach(bound, clip)
    return channel_statistics(
        splits.train[0], ledger=ledger, n=n, noise=noise, reach=reach, floor=floor, coins=coins
    ).apply(splits)


PLAN_OR_OWN = (
    "with Ledger(budget, planned=True) if all that it pays for was fixed before the first release; "
    "else give each training a ledger of its own (with what the statistics of its inputs cost: "
    "Ledger.from_json(ledger.to_json()) before the first), and add up with rt.together_epsilon"
)


def paid_for_others(ledger: Ledger) -> bool:
    """Whether releases were paid that are no statistics of inputs, which are planned with a run."""
    return any(entry.purpose not in (MEANS, VARIANCES) for entry in ledger.entries)


def check_planned(ledger: Ledger, *, first: bool = False) -> None:
    """Refuse a ledger from which others were paid, unless all of it was planned.

    What comes after a release may follow from it, and then the composition of both proves nothing.
    With `first`, statistics count as others, too.
    """
    if not isinstance(ledger, Ledger):
        raise OptionError("ledger", ledger, "must be a Ledger")
    if ledger.planned or not (ledger.entries if first else paid_for_others(ledger)):
        return
    others = dict.fromkeys(entry.purpose for entry in ledger.entries)
    raise OptionError(
        "ledger",
        ", ".join(others),
        "is paid from it already, and what comes now may follow from what that gave. Open it "
        f"{PLAN_OR_OWN}",
    )


def price(noise: float = NOISE) -> list[tuple[Charge, str]]:
    """What the statistics cost, and what for."""
    charge = SampledGaussian(rate=1.0, multiplier=noise)
    return [(charge, MEANS), (charge, VARIANCES)]


def channel_statistics(
    inputs: Tensor,
    *,
    ledger: Ledger,
    n: int,
    noise: float = NOISE,
    reach: Reach | None = None,
    floor: float | None = None,
    coins: Coins | None = None,
) -> ChannelStatistics:
    """Pay for, then release, the mean and the standard deviation of each channel.

    A training paid from the same ledger is taken to be fixed before: its settings must not follow
    from these statistics.

    Args:
        inputs: the private records, as floats [records, channels, ...]; a table's columns are
            channels.
        ledger: who pays; nothing is computed if it cannot.
        n: the nominal number of records, a public number that sums are divided by.
        noise: the noise multiplier of each of the two sums.
        reach: public bounds on one record.
        floor: the least variance; by default the noise's standard deviation in the mean square,
            below which a variance cannot be told from noise.
        coins: randomness that nothing else uses; fresh by default.

    Raises:
        BudgetError: the ledger cannot pay; nothing was released.
        OptionError: something was paid from the ledger already, and it was not opened for a plan.
    """
    _check_inputs(inputs)
    reach = Reach() if reach is None else reach
    nominal, noise = whole("n", n), positive("noise", noise)
    sensitivities = reach.sensitivities(inputs.shape[1])
    least = noise * sensitivities[1] / nominal if floor is None else positive("floor", floor)
    check_planned(ledger, first=True)
    coins = (Coins.fresh() if coins is None else coins).claim()
    ledger.pay(price(noise))
    if coins.seeded:
        ledger.note(SEEDED_NOTE)
    totals = _totals(inputs, reach)
    mean, square = (
        noisy(Sensitive(total, sensitivity), noise, coins, stream) / nominal
        for total, sensitivity, stream in zip(totals, sensitivities, _STREAMS, strict=True)
    )
    mean = mean.clamp(-reach.bound, reach.bound)
    variance = (square - mean.square()).clamp(max=reach.bound**2).clamp(min=least)
    options = {"noise": noise, **asdict(reach), "clip": sensitivities[0], "n": nominal}
    return ChannelStatistics(mean, variance.sqrt(), {**options, "floor": least})


def contributions(values: Tensor, reach: Reach) -> tuple[Tensor, Tensor]:
    """What each record adds to the two sums: m and s of the guarantee, as [records, channels]."""
    length, _ = reach.sensitivities(values.shape[1])
    values = values.to(torch.float64).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    values = values.clamp_(-reach.bound, reach.bound).reshape(*values.shape[:2], -1)
    means, squares = values.mean(-1), values.square().mean(-1)
    shorter = (length * (1 - _SLACK) / squares.sum(1, keepdim=True).sqrt()).clamp_(max=1)
    return means * shorter, squares * shorter.square()


def _totals(inputs: Tensor, reach: Reach) -> tuple[Tensor, Tensor]:
    means, squares = torch.zeros(2, inputs.shape[1], dtype=torch.float64)
    for piece in _pieces(inputs):
        for total, each in zip((means, squares), contributions(piece, reach), strict=True):
            total += each.sum(0)
    return means, squares


def _pieces(inputs: Tensor) -> Iterator[Tensor]:
    """Copies of a few records at a time, as float64 on the CPU."""
    rows = max(1, _PIECE_BYTES // (8 * math.prod(inputs.shape[1:])))
    for start in range(0, len(inputs), rows):
        yield inputs[start : start + rows].to("cpu", torch.float64, copy=True)


def _check_inputs(inputs: Tensor) -> None:
    if not inputs.is_floating_point():
        raise DataError(
            f"inputs are {inputs.dtype}: only floats have a mean; turn tokens into features first"
        )
    if inputs.dim() < 2 or 0 in inputs.shape[1:]:
        raise DataError(
            f"inputs have shape {tuple(inputs.shape)}: must be [records, channels, ...]"
        )
