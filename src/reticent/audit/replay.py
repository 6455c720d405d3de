"""Replay: the same coins on neighbouring data sets, and nothing may differ that was not paid for.

Two worlds hold the same records but for one, z, and share all coins. In the world with z, its own
coins are in the auditor's hand: z takes part in one draw and in no other. All noisy values are
those of the world without z. What a release leaves behind is a function of what was public before
and of these noisy values, if the method is what it says it is. So both worlds must agree, and the
following are each a leak, found without any statistics and without knowing the method:

- *undrawn*: z took part in no draw, and a sum differs although everybody was to be sampled;
- *around the noise*: the noisy values are the same, and the state differs (a raw loss that is kept,
  a division by the number of records drawn);
- *unbounded*: z moves a sum by more than the sensitivity the sum states;
- *noise withheld*: whether there is noise depends on z (a skipped empty batch);
- *remembered*: one release later, with z in nothing and the public state as without it, something
  differs;
- *unpaid trials*: noisy values of more than one trial of a release reach its state (a momentum that
  survives rejections). A charge for a selected release pays for the trial that was selected.

What it cannot see: noise that is too small (`conduct` looks at that), and what leaves the process
by other ways than the run's public state.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from reticent import training
from reticent.audit.records import neighbours
from reticent.audit.watching import (
    Address,
    ForcedCoins,
    Kept,
    Notebook,
    World,
    differences,
)
from reticent.coins import KEY_BYTES
from reticent.errors import OptionError, whole
from reticent.methods.base import Method
from reticent.privacy import SampledGaussian, SampledPure

TOLERANCE = 1e-8  # relative, in double precision: sums over other batches round otherwise
MOST_DRAWS = 8  # of one release, tried one by one
MOST_LONGER = 10  # times as many releases, until one rejects something


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


@dataclass(frozen=True)
class ReplayReport:
    """What a replay found."""

    method: str
    releases: int
    draws: int
    rejected: int
    leaks: tuple[Leak, ...]

    @property
    def passed(self) -> bool:
        """Whether nothing was found."""
        return not self.leaks

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        leaks = [
            {**asdict(leak), "size": leak.size if leak.size < float("inf") else None}
            for leak in self.leaks
        ]
        return {
            "method": self.method,
            "releases": self.releases,
            "draws_tried": self.draws,
            "rejected_trials": self.rejected,
            "passed": self.passed,
            "leaks": leaks,
        }


def replay(
    model: nn.Module,
    data: Any,
    *,
    method: Method,
    record: Any = None,
    releases: int = 3,
    records: int = 256,
    seed: int = 0,
    on_release: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ReplayReport:
    """Look for what a method releases besides what it pays for.

    Args:
        model: The model to train; a copy in double precision is used.
        data: The records, as for `reticent.run`; the first `records` of them are used.
        method: Any method.
        record: z as (input, target) without a batch dimension; by default the first record, its
            input a hundred times as large and its label another one, so that clipping matters.
        releases: How many releases to compare. Each is made again for up to 8 of its draws. A
            method that can reject is followed up to ten times as long, until it has rejected.
        records: How many records at most.
        seed: Of the coins.
        on_release: Called with (release, releases) after each.
        **options: As for `reticent.run`: optimizer, budget, steps, n, ...; the nominal `n` is the
            number of records by default, and the device is always the CPU.

    Example:
        >>> import torch, reticent as rt
        >>> data = (torch.randn(40, 3), torch.randint(0, 2, (40,)))
        >>> report = replay(torch.nn.Linear(3, 2), data, method=rt.DPSGD(batch=8, noise=1.0),
        ...                 optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        ...                 budget=rt.Budget(10, 1e-3), steps=3)
        >>> report.passed
        True
    """
    whole("releases", releases)
    if "coins" in options or "device" in options or "folder" in options:
        raise OptionError("coins, device, folder", "given", "a replay has its own; leave them out")
    without, with_it, n = neighbours(data, whole("records", records, least=2), record)
    longest = MOST_LONGER * releases if method.restores else releases
    options = {"n": n, "steps": longest, **options}
    key = seed.to_bytes(KEY_BYTES, "little", signed=True)

    def world(held: Any, position: int | None) -> tuple[World, ForcedCoins]:
        coins = ForcedCoins(key, position)
        made = training.run(
            copy.deepcopy(model).double(),
            held,
            method=copy.deepcopy(method),
            coins=coins,
            device="cpu",
            **options,
        )
        return World(made, position), coins

    pair = _Replay(*world(without, None), *world(with_it, n))
    return pair.look(method.name, releases, longest, on_release)


class _Replay:
    """The two worlds, release by release."""

    def __init__(
        self, plain: World, plain_coins: ForcedCoins, other: World, other_coins: ForcedCoins
    ) -> None:
        self.plain, self.plain_coins = plain, plain_coins
        self.other, self.other_coins = other, other_coins
        self.leaks: list[Leak] = []
        self.draws = self.rejected = 0

    def look(
        self,
        name: str,
        releases: int,
        longest: int,
        on_release: Callable[[int, int], None] | None,
    ) -> ReplayReport:
        pending: list[tuple[Address, Kept]] = []
        made = 0
        for release in range(longest):
            if release >= releases and self.rejected:
                break
            before, before_other = self.plain.keep(), self.other.keep()
            seen = self.plain.release()
            if seen is None:
                break
            made += 1
            self.rejected += len(seen.trials) - 1
            public, after = self.plain.public(), self.plain.keep()
            for address, kept in pending:
                self._one(release, kept, seen, public, _nowhere, remembered=address)
            pending = self._each_draw(release, before_other, seen, public)
            self._trials(release, before, seen, public)
            if release == 0:
                self._nobody(before, before_other)
            self.plain.back_to(after)
            # the chain that goes on: z was in nothing
            self._one(release, before_other, seen, public, _nowhere)
            if on_release is not None:
                on_release(release + 1, max(releases, release + 1))
        return ReplayReport(name, made, self.draws, self.rejected, tuple(self.leaks))

    def _each_draw(
        self, release: int, before: Kept, seen: Notebook, public: dict[str, Any]
    ) -> list[tuple[Address, Kept]]:
        """Put z in one draw after the other; what each leaves, to be looked at a release later."""
        left = []
        for address in _some([draw.address for draw in seen.draws]):
            self.draws += 1
            if self._one(release, before, seen, public, _only(address)):
                left.append((address, self.other.keep()))
        return left

    def _one(
        self,
        release: int,
        before: Kept,
        seen: Notebook,
        public: dict[str, Any],
        chosen: Callable[[Address], bool],
        remembered: Address | None = None,
    ) -> bool:
        """One release of the world with z, noisy values pinned; True if nothing was found."""
        self.other.back_to(before)
        self.other_coins.chosen = chosen
        found = self.other.release(pinned=seen)
        assert found is not None
        leaks = list(_withheld(release, seen, found))
        if not leaks:
            leaks += _sums(release, seen, found, self._rates(found))
            leaks += self._state(release, public, found)
        if remembered is not None:
            where = f"z was in {_shown(remembered)}, and in nothing since"
            leaks = [Leak("remembered", release, where, k.what, k.size) for k in leaks]
        self._add(leaks)
        return not leaks

    def _rates(self, found: Notebook) -> Callable[[float], bool]:
        """Whether something with noise of this multiplier may have been charged unsampled."""
        charges = {charge for n in found.noised.values() for charge, _ in n.paid}
        full = [c for c in charges if getattr(c, "rate", None) == 1 or c.kind == "non-private"]
        sampled = [c for c in full if isinstance(c, SampledGaussian)]
        exact = {round(c.multiplier, 12) for c in sampled}

        def allowed(multiplier: float) -> bool:
            return any(c not in sampled for c in full) or round(multiplier, 12) in exact

        return allowed

    def _state(self, release: int, public: dict[str, Any], found: Notebook) -> list[Leak]:
        drawn = [_shown(draw.address) for draw in found.draws if draw.watched]
        where = f"z was in {', '.join(drawn) or 'no draw'}, noisy values are the same"
        gaps = differences(public, self.other.public(), TOLERANCE)
        return [
            Leak("around the noise", release, where, f"{name} differs", size)
            for name, size in gaps.items()
        ]

    def _trials(self, release: int, before: Kept, seen: Notebook, public: dict[str, Any]) -> None:
        """Which trials' noisy values reach the state; a release pays for one."""
        trials = seen.trials
        if len(trials) < 2:
            return
        if not self._reach(before, seen, public, set(trials[:-1])):
            return  # only the last one can
        reaching: list[int] = []
        what: dict[str, float] = {}
        for trial in _some(trials):
            moved = self._reach(before, seen, public, {trial})
            if moved:
                reaching.append(trial)
                what = moved if len(reaching) == 1 else what
        if len(reaching) > 1:
            where = f"trials {', '.join(map(str, reaching))} of {len(trials)} reach the state"
            self._add(
                [Leak("unpaid trials", release, where, f"{k} moves", v) for k, v in what.items()]
            )

    def _reach(
        self, before: Kept, seen: Notebook, public: dict[str, Any], trials: set[int]
    ) -> dict[str, float]:
        """What moves in the state when the noisy values of these trials do."""
        self.plain.back_to(before)
        self.plain.release(pinned=seen, nudged=lambda at: at[2] in trials)
        return differences(public, self.plain.public(), TOLERANCE)

    def _nobody(self, before: Kept, before_other: Kept) -> None:
        """Nobody but z is drawn: a release on no records is a release like all others."""
        self.plain_coins.alone = self.other_coins.alone = True
        try:
            self.plain.back_to(before)
            seen = self.plain.release()
            assert seen is not None
            public = self.plain.public()
            for address in _some([draw.address for draw in seen.draws]):
                self._one(0, before_other, seen, public, _only(address))
        finally:
            self.plain_coins.alone = self.other_coins.alone = False

    def _add(self, leaks: list[Leak]) -> None:
        known = {(leak.kind, leak.release, leak.what) for leak in self.leaks}
        self.leaks += [k for k in leaks if (k.kind, k.release, k.what) not in known]


def _some(items: list[Any]) -> list[Any]:
    """All of a few; of many, the first ones and the last ones."""
    half = MOST_DRAWS // 2
    return items if len(items) <= MOST_DRAWS else [*items[:half], *items[-half:]]


def _nowhere(address: Address) -> bool:
    return False


def _only(one: Address) -> Callable[[Address], bool]:
    return lambda address: address == one


def _shown(address: Address) -> str:
    stream, _, trial = address
    return f"{stream} of trial {trial}"


def _withheld(release: int, seen: Notebook, found: Notebook) -> list[Leak]:
    """Noise in one world only."""
    there, here = {*seen.noised, *seen.chosen}, {*found.noised, *found.chosen}
    return [
        Leak(
            "noise withheld",
            release,
            _shown(address),
            f"noise only {'with' if address in here else 'without'} z",
            float("inf"),
        )
        for address in sorted(there ^ here | set(found.unexpected))
    ]


def _sums(
    release: int, seen: Notebook, found: Notebook, unsampled: Callable[[float], bool]
) -> list[Leak]:
    """Sums that z moved too far, or at all without having been drawn."""
    leaks = []
    drawn = any(draw.watched for draw in found.draws)
    for address, mine in found.noised.items():
        gap = float((mine.total - seen.noised[address].total).double().norm())
        scale = float(mine.total.double().norm()) + mine.sensitivity
        if not gap <= mine.sensitivity * (1 + TOLERANCE) + TOLERANCE * scale:
            what = f"the sum moves by {gap:.4g}, its sensitivity is {mine.sensitivity:.4g}"
            leaks.append(Leak("unbounded", release, _shown(address), what, gap))
        elif gap > TOLERANCE * scale and not drawn and not unsampled(mine.multiplier):
            what = f"the sum moves by {gap:.4g} although z was not drawn"
            leaks.append(Leak("undrawn", release, _shown(address), what, gap))
    for address, choice in found.chosen.items():
        moved = (choice.scores - seen.chosen[address].scores).double()
        slack = TOLERANCE * (float(choice.scores.double().abs().max()) + choice.sensitivity)
        if not (moved.min() >= -slack and moved.max() <= choice.sensitivity + slack):
            what = f"scores move by {float(moved.min()):.4g} to {float(moved.max()):.4g}"
            leaks.append(
                Leak("unbounded", release, _shown(address), what, float(moved.abs().max()))
            )
        elif float(moved.abs().max()) > slack and not drawn and not _full_choice(choice):
            what = "scores move although z was not drawn"
            leaks.append(Leak("undrawn", release, _shown(address), what, float(moved.abs().max())))
    return leaks


def _full_choice(choice: Any) -> bool:
    return any(isinstance(c, SampledPure) and c.rate == 1 for c, _ in choice.paid)
