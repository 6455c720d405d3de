"""Noise, scaled from the sensitivity that the sum itself states and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from reticent.coins import Coins
from reticent.errors import AccountingError, finite, not_negative


class SensitiveSum(Protocol):
    """A sum over records that says how far one record can move it."""

    @property
    def flat(self) -> torch.Tensor:
        """The sum, as one vector."""
        ...

    @property
    def sensitivity(self) -> float:
        """The largest 2-norm of one record's contribution."""
        ...


@dataclass(frozen=True)
class Sensitive:
    """Any number or vector computed from the records, and how far one record can move it."""

    flat: torch.Tensor
    sensitivity: float


def noisy(
    total: SensitiveSum, multiplier: float, coins: Coins, stream: str, *counters: int
) -> torch.Tensor:
    """`total` plus Gaussian noise of standard deviation `multiplier`·`total.sensitivity`.

    The coins are addressed by (stream, counters): no two releases may share an address. With
    multiplier 0 (a run that states it is not private) the sum comes back as it is.
    """
    not_negative("multiplier", multiplier)
    if multiplier == 0:
        return total.flat
    if finite("sensitivity", total.sensitivity) <= 0:
        raise AccountingError(f"sensitivity = {total.sensitivity!r}: must be greater than 0")
    values = total.flat
    drawn = coins.normal(
        tuple(values.shape), stream, *counters, device=values.device, dtype=values.dtype
    )
    return torch.add(values, drawn, alpha=multiplier * total.sensitivity)
