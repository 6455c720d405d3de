"""Which records take part in a release.

Poisson sampling: every record flips its own coin. The coin of record i at address (stream,
counters) depends on nothing else: not on how many records there are, not on draws made before. So
neighbouring data sets share all coins but the extra record's, and a process that holds a part of
the records flips that part's coins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from reticent.coins import Coins
from reticent.data.transfer import Landing
from reticent.errors import between, whole

# Coins are drawn in blocks of fixed size, each at its own address.
BLOCK = 1 << 16


def poisson_draw(
    n: int,
    rate: float,
    coins: Coins,
    stream: str,
    *counters: int,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Indices, ascending, of the records whose coin came up; possibly none.

    A coin is a uniform multiple of 2^-53, compared with `rate` rounded down to that grid: a record
    takes part with probability `rate` exactly where the grid holds it, and never with more.

    Example:
        >>> from reticent.coins import Coins
        >>> coins = Coins.from_seed(0)
        >>> few = poisson_draw(1000, 0.01, coins, "training", 1)
        >>> more = poisson_draw(1001, 0.01, coins, "training", 1)
        >>> torch.equal(few, more[more < 1000])
        True
    """
    return poisson_draws(n, rate, coins, stream, [counters], device=device)[0]


def poisson_draws(
    n: int,
    rate: float,
    coins: Coins,
    stream: str,
    addresses: Sequence[tuple[int, ...]],
    *,
    device: torch.device | str = "cpu",
) -> list[torch.Tensor]:
    """The draws at several addresses, as `poisson_draw` makes each, with one wait for their sizes.

    A device must tell the host how many records came up before anything of that size is made.
    """
    return begin_draws(n, rate, coins, stream, addresses, device=device).get()


class Draws:
    """Draws that were begun: made already on the host, enqueued on a device."""

    def __init__(self, drawn: list[torch.Tensor] | None) -> None:
        self._drawn = drawn

    def get(self) -> list[torch.Tensor]:
        """The indices; waits for their sizes, not for what was enqueued after them."""
        assert self._drawn is not None
        return self._drawn

    def early(self) -> list[torch.Tensor] | None:
        """The same from another thread; None if that would take work on the device."""
        return self._drawn


class DeviceDraws(Draws):
    """The draws of masks [draws, n], whose sizes are on their way to the host.

    The indices go into room that is too small for less than one draw in 10^14; those are found
    again, exactly and with a wait. `expected` is the public expectation of their number.
    """

    def __init__(self, masks: torch.Tensor, expected: float, *, to_host: bool) -> None:
        super().__init__(None)
        room = min(capacity(expected), masks.numel())
        self._found = torch.nonzero_static(masks, size=room, fill_value=0)[:, 1].contiguous()
        self._masks: torch.Tensor | None = masks
        self._to_host = to_host
        sizes = masks.sum(1)
        self._landing = Landing(sizes, self._found) if to_host else Landing(sizes)

    def get(self) -> list[torch.Tensor]:
        """As the base class says."""
        drawn = self.early()
        if drawn is None:
            assert self._masks is not None
            exact = self._masks.nonzero()[:, 1].contiguous()
            drawn = list((exact.cpu() if self._to_host else exact).split(self._sizes()))
        self._drawn, self._masks = drawn, None
        return drawn

    def early(self) -> list[torch.Tensor] | None:
        """As the base class says."""
        if self._drawn is not None:
            return self._drawn
        sizes = self._sizes()
        found = self._landing.wait()[1] if self._to_host else self._found
        return list(found[: sum(sizes)].split(sizes)) if sum(sizes) <= len(found) else None

    def _sizes(self) -> list[int]:
        sizes: list[int] = self._landing.wait()[0].tolist()
        return sizes


def record_coins(
    n: int,
    coins: Coins,
    stream: str,
    *counters: int,
    device: torch.device | str = "cpu",
) -> torch.Tensor:
    """Every record's coin itself, [n] uniform multiples of 2^-53 in [0, 1); as for the draws."""
    flips = torch.empty(-(-n // BLOCK) * BLOCK, dtype=torch.float64, device=device)
    for block, some in enumerate(flips.split(BLOCK)):
        coins.uniform_into(some, stream, *counters, block)
    return flips[:n]


def draw_each(probabilities: torch.Tensor, flips: torch.Tensor) -> torch.Tensor:
    """Indices of the records whose coin is below their own probability, never more often."""
    below = torch.floor(probabilities * 2.0**53) / 2.0**53
    return torch.nonzero(flips < below)[:, 0]


def capacity(expected: float) -> int:
    """Room for the records of a draw: eight standard deviations more than it has on average."""
    return math.ceil(expected + 8 * math.sqrt(expected) + 64)


def begin_draws(
    n: int,
    rate: float,
    coins: Coins,
    stream: str,
    addresses: Sequence[tuple[int, ...]],
    *,
    device: torch.device | str = "cpu",
    indices_on: torch.device | str | None = None,
) -> Draws:
    """Begin to draw; on a device nothing is waited for before `Draws.get`.

    Args:
        n: How many records there are.
        rate: The probability that one takes part.
        coins: Who decides.
        stream: Which of the coins' streams.
        addresses: Where in the stream, one address for each draw.
        device: Where the coins are flipped.
        indices_on: Where the indices are wanted: there, or on the host.
    """
    whole("n", n, least=0)
    between("rate", rate, 0, 1)
    threshold = math.floor(rate * 2**53) / 2**53
    device = torch.device(device)
    to_host = indices_on is not None and torch.device(indices_on).type == "cpu"
    if n == 0:
        where = "cpu" if to_host else device
        return Draws([torch.empty(0, dtype=torch.long, device=where) for _ in addresses])
    if device.type == "cpu":
        flip = torch.empty(min(n, BLOCK), dtype=torch.float64)
        return Draws([_flipped(n, threshold, coins, stream, at, flip) for at in addresses])
    masks = masks_on(device, n, threshold, coins, stream, addresses)
    return DeviceDraws(masks, len(addresses) * n * rate, to_host=to_host)


def _flipped(
    n: int,
    threshold: float,
    coins: Coins,
    stream: str,
    counters: tuple[int, ...],
    flip: torch.Tensor,
) -> torch.Tensor:
    """One draw on the host, by NumPy, which searches a sparse mask several times faster."""
    found = []
    for block, start in enumerate(range(0, n, BLOCK)):
        some = flip[: n - start]  # a shorter draw of NumPy begins like a longer one
        coins.uniform_into(some, stream, *counters, block)
        found.append(np.flatnonzero(some.numpy() < threshold) + start)
    return torch.from_numpy(found[0] if len(found) == 1 else np.concatenate(found))


def masks_on(
    device: torch.device,
    n: int,
    threshold: float,
    coins: Coins,
    stream: str,
    addresses: Sequence[tuple[int, ...]],
) -> torch.Tensor:
    """Which records each draw takes, [draws, n].

    Always from whole blocks: on a device a draw of another length shares no number with it.
    """
    masks = torch.empty((len(addresses), n), dtype=torch.bool, device=device)
    flip = torch.empty(BLOCK, dtype=torch.float64, device=device)
    for mask, counters in zip(masks, addresses, strict=True):
        for block, start in enumerate(range(0, n, BLOCK)):
            coins.uniform_into(flip, stream, *counters, block)
            some = mask[start : start + BLOCK]
            torch.lt(flip[: len(some)], threshold, out=some)
    return masks
