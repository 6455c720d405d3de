"""How many releases a budget affords: a search for the last number that fits."""

from __future__ import annotations

from collections.abc import Callable

MOST_RELEASES = 2**40  # a search that gets this far has found no limit

Fits = Callable[[int, str | None], bool]
"""Whether so many releases stay within the budget, as this accountant has it."""


def most(fits: Fits, accountant: str | None, *, adaptive: bool, quick: int | None) -> int:
    """The largest number that fits.

    Args:
        fits: Asked for single numbers.
        accountant: The one that must prove it; by default the tightest.
        adaptive: Whether charges depended on earlier releases.
        quick: The answer of a faster way, where there is one.
    """
    if quick is not None:
        # few releases, or rare large losses: a quicker accountant may prove more
        for by in ("rdp", "pld") if accountant is None else ():
            quick = _search(fits, quick + 1, by) if fits(quick + 1, by) else quick
        return quick
    if accountant is not None or adaptive:
        return _search(fits, 1, accountant)
    # Rényi curves answer in microseconds and bracket the slower, tighter search.
    return _search(fits, max(_search(fits, 1, "rdp"), 1), None)


def _search(fits: Fits, start: int, by: str | None) -> int:
    if not fits(start, by):
        low, high = 0, start
    else:
        low, high = start, start + max(start // 4, 1)
        while fits(high, by):
            low, high = high, high * 2
            if high > MOST_RELEASES:
                return low
    while high - low > 1:  # low fits (or is 0), high does not
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle, by) else (low, middle)
    return low
