"""Which accountant speaks for a bill, and the ε one can then quote."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reticent.errors import AccountingError, one_of
from reticent.privacy.accountants import (
    FFT_ERROR_PER_RELEASE,
    Bill,
    composed_pld,
    filter_epsilon,
    has_pld,
    pld_epsilon,
    rdp_epsilon,
)
from reticent.privacy.budget import ADJACENCY
from reticent.privacy.selective import SelectiveGaussian
from reticent.privacy.selective_exact import exact_capacity, exact_epsilon

# The selective ones are for bills with selected releases, where plain names mean them too.
EXACT, SELECTIVE_PLD, SELECTIVE_RDP = "selective-exact", "selective-pld", "selective-rdp"
ACCOUNTANTS = ("pld", "rdp", "filter", EXACT, SELECTIVE_PLD, SELECTIVE_RDP)
_PLAIN = {SELECTIVE_PLD: "pld", SELECTIVE_RDP: "rdp"}
_SELECTIVE = {plain: name for name, plain in _PLAIN.items()}
NEXT_TO_NOTHING = 1e-6


@dataclass(frozen=True)
class Statement:
    """An ε one can quote: its δ, who computed it and what it protects."""

    epsilon: float
    delta: float
    accountant: str
    adjacency: str = ADJACENCY
    guarantee: str = "differential-privacy"

    def to_json(self) -> dict[str, Any]:
        """The statement as JSON-ready data; an infinite ε is null and guarantees nothing."""
        bounded = math.isfinite(self.epsilon)
        return {
            "epsilon": self.epsilon if bounded else None,
            "delta": self.delta,
            "accountant": self.accountant,
            "adjacency": self.adjacency,
            "guarantee": self.guarantee if bounded else "none",
        }


def _split(bill: Bill) -> tuple[list[tuple[SelectiveGaussian, int]], Bill]:
    """The selected releases of a bill, and all others."""
    selected = [(c, count) for c, count in bill if isinstance(c, SelectiveGaussian)]
    rest = tuple((c, count) for c, count in bill if not isinstance(c, SelectiveGaussian))
    return selected, rest


def valid_accountants(bill: Bill, *, adaptive: bool) -> tuple[str, ...]:
    """The accountants that prove something about this bill, tightest first."""
    if adaptive:
        return ("filter",)
    selected, rest = _split(bill)
    if not selected:
        return ("pld", "rdp") if has_pld(bill) else ("rdp",)
    if not has_pld(rest):
        return (SELECTIVE_RDP,)
    # with two kinds of selection the recursion would have to know their order
    exact = (EXACT,) if len(selected) == 1 else ()
    return (*exact, SELECTIVE_PLD, SELECTIVE_RDP)


def state(
    bill: Bill,
    delta: float,
    accountant: str | None,
    *,
    adaptive: bool = False,
    filter_order: float | None = None,
) -> Statement:
    """ε of a bill by one accountant, or by the one that proves the smallest."""
    if accountant is not None:
        one_of("accountant", accountant, ACCOUNTANTS)
    if adaptive and accountant not in (None, "filter"):
        raise AccountingError(
            f"accountant = {accountant!r}: charges here depend on earlier releases, which only "
            "the filter at an order fixed beforehand covers; use accountant 'filter'"
        )
    if accountant == "filter" or adaptive:
        if filter_order is None:
            raise AccountingError(
                "accountant = 'filter': the ledger was opened without a filter_order"
            )
        order = filter_order
        # one share of δ for failures, fixed beforehand as the order is
        return _stated(bill, delta, "filter", lambda d: filter_epsilon(bill, d, order), (1e-3,))
    valid = valid_accountants(bill, adaptive=False)
    if accountant is not None:
        if any(name in _PLAIN for name in valid):
            accountant = _SELECTIVE.get(accountant, accountant)
        elif accountant.startswith("selective-") and bill:
            raise AccountingError(
                f"accountant = {accountant!r}: is for selected releases, of which there are none"
            )
        if accountant == EXACT and EXACT not in valid and bill:
            raise AccountingError(
                f"accountant = {EXACT!r}: needs one kind of selected release, and every other "
                f"charge to have a privacy-loss distribution; use {valid[0]!r}"
            )
        return _by(bill, delta, accountant)
    # Mostly the first is the tightest; where rounding or size leave it no proof, another is.
    statements = [_by(bill, delta, name) for name in valid]
    return min(statements, key=lambda statement: statement.epsilon)


def _by(bill: Bill, delta: float, accountant: str) -> Statement:
    plain = _PLAIN.get(accountant, accountant)
    if plain == "pld":
        return _stated(bill, delta, accountant, lambda d: pld_epsilon(bill, d))
    if plain == "rdp":
        return _stated(bill, delta, accountant, lambda d: rdp_epsilon(bill, d))
    selected, rest = _split(bill)
    if not selected:
        return Statement(0.0, delta, accountant)
    (charge, count) = selected[0]
    others = composed_pld(rest, delta) if rest else None
    lost = _rounding(rest)
    return _stated(
        bill, delta, accountant, lambda d: exact_epsilon(charge, count, others, d - lost)
    )


def _rounding(rest: Bill) -> float:
    """What the FFT that composes these charges may take from δ."""
    return FFT_ERROR_PER_RELEASE * sum(count for _, count in rest)


def _stated(
    bill: Bill,
    delta: float,
    accountant: str,
    epsilon_at: Callable[[float], float],
    shares: tuple[float, ...] = (1e-9, 1e-6, 1e-3, 0.5),
) -> Statement:
    left = delta - lost_at_the_end(bill, delta, adaptive=accountant == "filter")
    if left < delta and left <= 0:
        return Statement(math.inf, delta, accountant)
    return Statement(_after_failures(bill, left, epsilon_at, shares), delta, accountant)


def lost_at_the_end(bill: Bill, delta: float, *, adaptive: bool) -> float:
    """What the end of drawn noise takes from δ; nothing where it is less than a millionth.

    Charges that follow releases may not decide how δ is shared: there it is all or nothing.
    """
    lost = sum(count * charge.cut for charge, count in bill)
    if lost <= NEXT_TO_NOTHING * delta:
        return 0.0
    return delta if adaptive else min(lost, delta)


def _after_failures(
    bill: Bill, delta: float, epsilon_at: Callable[[float], float], shares: tuple[float, ...]
) -> float:
    """ε at what is left of δ when promises that may be broken are paid for.

    If each release keeps its promise but with probability p, the run of T of them is within T·p of
    one that always does, on either data set: δ grows by (1 + e^ε)·T·p.
    """
    failing = sum(count * charge.failure for charge, count in bill)
    if failing == 0:
        return epsilon_at(delta)
    for share in shares:
        epsilon = epsilon_at(delta * (1 - share))
        if (1 + math.exp(min(epsilon, 700.0))) * failing <= delta * share:
            return epsilon
    return math.inf


def fast_capacity(
    paid: Bill, bundle: Bill, epsilon: float, delta: float, accountant: str | None
) -> int | None:
    """How many more bundles fit, where one run of the recursion says it; None where not."""
    if accountant not in (None, EXACT) or len(bundle) != 1:
        return None
    (charge, count) = bundle[0]
    selected, rest = _split(paid)
    if count != 1 or not isinstance(charge, SelectiveGaussian) or not has_pld(rest):
        return None
    if selected and [c for c, _ in selected] != [charge]:
        return None
    before = selected[0][1] if selected else 0
    others = composed_pld(rest, delta) if rest else None
    room = exact_capacity(charge, before, others, epsilon, delta * (1 - 1e-9) - _rounding(rest))
    # the cap on trials takes its share of δ, which a search need not find out one by one
    if charge.failure:
        most = delta / ((1 + math.exp(min(epsilon, 700.0))) * charge.failure)
        room = min(room, int(min(most, 2.0**62)))
    low, high = 0, room + 1
    while high - low > 1:
        middle = high - 1 if high == room + 1 else (low + high) // 2
        bill = (*rest, (charge, before + middle))
        fits = state(bill, delta, EXACT).epsilon <= epsilon
        low, high = (middle, high) if fits else (low, middle)
    return low
