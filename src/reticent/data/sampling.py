"""Which records take part in a release.

Poisson sampling: every record flips its own coin. The coin of record i at address (stream,
counters) depends on nothing else: not on how many records there are, not on draws made before. So
neighbouring data sets share all coins but the extra record's, and a process that holds a part of
the records flips that part's coins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from reticent.coins import Coins
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
    whole("n", n, least=0)
    between("rate", rate, 0, 1)
    threshold = math.floor(rate * 2**53) / 2**53
    if n == 0:
        return [torch.empty(0, dtype=torch.long, device=device) for _ in addresses]
    masks = torch.stack(
        [
            torch.cat(
                [
                    coins.uniform((BLOCK,), stream, *counters, block, device=device) < threshold
                    for block in range(-(-n // BLOCK))
                ]
            )[:n]
            for counters in addresses
        ]
    )
    if len(addresses) == 1:
        return [masks[0].nonzero().squeeze(1)]
    sizes = masks.sum(1).tolist()
    return list(masks.nonzero()[:, 1].split(sizes))
