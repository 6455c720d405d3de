"""What two worlds that differ in one record may disagree about, release by release."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from reticent.audit.watching import Address, Chosen, Notebook
from reticent.privacy import SampledGaussian, SampledPure

TOLERANCE = 1e-8  # relative, in double precision: sums over other batches round otherwise


@dataclass(frozen=True)
class Leak:
    """A release that differs although z took part in no charged computation of it."""

    kind: str
    release: int
    where: str
    what: str
    size: float

    def __str__(self) -> str:
        return f"release {self.release}: {self.kind}: {self.where}: {self.what}"


def shown(address: Address) -> str:
    """Where something was drawn, for people."""
    stream, _, trial = address
    return f"{stream} of trial {trial}"


def withheld(release: int, seen: Notebook, found: Notebook) -> list[Leak]:
    """Noise in one world only."""
    there, here = {*seen.noised, *seen.chosen}, {*found.noised, *found.chosen}
    return [
        Leak(
            "noise withheld",
            release,
            shown(address),
            f"noise only {'with' if address in here else 'without'} z",
            float("inf"),
        )
        for address in sorted(there ^ here | set(found.unexpected))
    ]


def settings(
    release: int, seen: Notebook, found: Notebook, paid: tuple[Any, Any]
) -> Iterator[Leak]:
    """Rates, multipliers, sensitivities and charges are public numbers: the same in both."""
    drawn = [[(draw.address, draw.rate) for draw in one.draws] for one in (seen, found)]
    pairs: list[tuple[str, Any, Any]] = [
        ("draws and rates", drawn[0], drawn[1]),
        ("charges", *paid),
    ]
    for address, mine in found.noised.items():
        theirs = seen.noised[address]
        where = shown(address)
        pairs.append((f"multiplier of {where}", theirs.multiplier, mine.multiplier))
        pairs.append((f"sensitivity of {where}", theirs.sensitivity, mine.sensitivity))
    for address, choice in found.chosen.items():
        before = seen.chosen[address]
        pairs.append((f"ε of {shown(address)}", before.epsilon, choice.epsilon))
        pairs.append((f"sensitivity of {shown(address)}", before.sensitivity, choice.sensitivity))
    for name, theirs, mine in pairs:
        if theirs != mine:
            yield Leak("chosen by z", release, name, "differs", float("inf"))


def unsampled(found: Notebook) -> Callable[[float], bool]:
    """Whether something with noise of this multiplier may have been charged unsampled."""
    charges = {charge for n in found.noised.values() for charge, _ in n.paid}
    full = [c for c in charges if getattr(c, "rate", None) == 1 or c.kind == "non-private"]
    sampled = [c for c in full if isinstance(c, SampledGaussian)]
    exact = {round(c.multiplier, 12) for c in sampled}

    def allowed(multiplier: float) -> bool:
        return any(c not in sampled for c in full) or round(multiplier, 12) in exact

    return allowed


def moved(seen: Notebook, found: Notebook) -> dict[Address, float]:
    """By how much z moved each value that gets noise; those that did not move are left out."""
    gaps: dict[Address, float] = {}
    for address, mine in found.noised.items():
        gap = float((mine.total - seen.noised[address].total).double().norm())
        scale = float(mine.total.double().norm()) + mine.sensitivity
        if not gap <= TOLERANCE * scale:
            gaps[address] = gap
    for address, choice in found.chosen.items():
        gap = float((choice.scores - seen.chosen[address].scores).double().abs().max())
        if not gap <= _slack(choice):
            gaps[address] = gap
    return gaps


def sums(release: int, seen: Notebook, found: Notebook) -> Iterator[Leak]:
    """Sums that z moved too far, or at all without having been drawn."""
    drawn, gaps, free = (
        any(draw.watched for draw in found.draws),
        moved(seen, found),
        unsampled(found),
    )
    for address, gap in gaps.items():
        where = shown(address)
        if address in found.noised:
            mine = found.noised[address]
            far = not gap <= mine.sensitivity * (1 + TOLERANCE) + TOLERANCE * gap
            allowed = free(mine.multiplier)
            bound = mine.sensitivity
        else:
            choice = found.chosen[address]
            by = (choice.scores - seen.chosen[address].scores).double()
            slack, bound = _slack(choice), choice.sensitivity
            far = not (float(by.min()) >= -slack and float(by.max()) <= bound + slack)
            allowed = any(isinstance(c, SampledPure) and c.rate == 1 for c, _ in choice.paid)
        if far:
            what = f"it moves by {gap:.4g}, its sensitivity is {bound:.4g}"
            yield Leak("unbounded", release, where, what, gap)
        elif not drawn and not allowed:
            what = f"it moves by {gap:.4g} although z was not drawn"
            yield Leak("undrawn", release, where, what, gap)


def _slack(choice: Chosen) -> float:
    return TOLERANCE * (float(choice.scores.double().abs().max()) + choice.sensitivity)
