"""Draws made before they are asked for.

A draw is a function of its address and of nothing that is trained, so the next release's can be
enqueued before the present release's work: when it is asked for, its size has reached the host, and
the host need not wait for the device to finish what it is doing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from reticent.coins import Coins
from reticent.data.sampling import Draws, begin_draws


@dataclass(frozen=True)
class _Terms:
    """All that a draw depends on."""

    coins: Coins
    n: int
    rate: float
    stream: str
    release: int
    trial: int
    count: int

    @property
    def address(self) -> tuple[str, int, int]:
        return self.stream, self.release, self.trial


class DrawsAhead:
    """Makes draws, and guesses that the next release will ask as this one did.

    A guess is used only if everything it depends on is what is asked for; otherwise it is dropped
    and the draw is made then. Either way the same coins decide, so nobody can tell the difference.

    Args:
        device: Where the coins are flipped.
        indices_on: Where the indices are wanted; None: where the coins are flipped.
        guess: Whether to guess; by default where somebody would wait for a device.
    """

    def __init__(
        self,
        device: torch.device,
        indices_on: torch.device | None = None,
        *,
        guess: bool | None = None,
    ) -> None:
        self.device = device
        self.indices_on = device if indices_on is None else indices_on
        self.guesses = device.type != "cpu" if guess is None else guess
        self._made: dict[tuple[str, int, int], tuple[_Terms, Draws]] = {}
        self._after: tuple[torch.Tensor, Draws] | None = None

    def take(
        self,
        coins: Coins,
        n: int,
        rate: float,
        stream: str,
        release: int,
        trial: int,
        count: int,
        *,
        last: bool = False,
    ) -> list[torch.Tensor]:
        """The draws of trial `trial` and of the next `count` - 1.

        `last`: no release comes after this one, so none is guessed.
        """
        terms = _Terms(coins, n, rate, stream, release, trial, count)
        guessed, draws = self._made.pop(terms.address, (None, None))
        if draws is None or guessed != terms:
            draws = self._begin(terms)
        drawn = draws.get()
        self._after = None
        for address in [key for key in self._made if key[1] < release]:
            del self._made[address]  # never asked for
        if self.guesses and trial == 0 and not last:
            expected = _Terms(coins, n, rate, stream, release + 1, 0, count)
            following = self._begin(expected)
            self._made[expected.address] = expected, following
            self._after = drawn[0], following
        return drawn

    def after(self, drawn: torch.Tensor) -> Draws | None:
        """What is guessed to come after this draw, if it is the last one that was taken."""
        return self._after[1] if self._after is not None and self._after[0] is drawn else None

    def _begin(self, terms: _Terms) -> Draws:
        return begin_draws(
            terms.n,
            terms.rate,
            terms.coins,
            terms.stream,
            [(terms.release, terms.trial + later) for later in range(terms.count)],
            device=self.device,
            indices_on=self.indices_on,
        )
