"""Which records are held out: public coins, one for each record's number.

The coin of a record depends on the seed and on its number alone, so one more record at the end
moves no other across.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from reticent.errors import DataError


def held_out(n: int, share: float, seed: int) -> NDArray[np.bool_]:
    """Which of `n` records are held out, each with probability `share`.

    >>> held_out(5, 0.5, seed=0).tolist() == held_out(9, 0.5, seed=0).tolist()[:5]
    True
    """
    key = hashlib.blake2b(f"reticent split {seed}".encode(), digest_size=8).digest()
    # the raw stream of a bit generator is what NumPy promises never to change
    coins = np.random.Philox(int.from_bytes(key, "little")).random_raw(n)
    chosen: NDArray[np.bool_] = coins < np.uint64(int(share * 2**64))
    if chosen.all() or not chosen.any():
        raise DataError(
            f"test_share = {share:g}: of {n} records, {int(chosen.sum())} would be held out; give "
            "more records, another share, or a file of test records"
        )
    return chosen
