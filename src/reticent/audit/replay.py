"""Replay: the same coins on neighbouring data sets, and nothing may differ that was not paid for.

Two worlds hold the same records but for one, z, and share all coins. In the world with z, its own
coins are in the auditor's hand: z takes part in one draw and in no other. All noisy values are
those of the world without z. What a release leaves behind is a function of what was public before
and of these noisy values, if the method is what it says it is. So both worlds must agree, and the
following are each a leak, found without any statistics and without knowing the method:

- *chosen by z*: a rate, a multiplier, a sensitivity or a charge differs;
- *undrawn*: z took part in no draw, and a sum differs although everybody was to be sampled;
- *drawn twice*: z reaches one sum through several sampled draws, of which one was charged;
- *around the noise*: the noisy values are the same, and the state differs (a raw loss that is kept,
  a division by the number of records drawn);
- *unbounded*: z moves a sum by more than the sensitivity the sum states;
- *noise withheld*: whether there is noise depends on z (a skipped empty batch);
- *stopped*: whether there is a release at all depends on z;
- *noise taken off*: with the noisy values as they are and other noise, the state differs;
- *trials told*: had the same values been accepted in the first trial, the state would differ;
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

import torch
from torch import nn

from reticent import training
from reticent.audit.comparisons import TOLERANCE, Leak, moved, settings, shown, sums, withheld
from reticent.audit.records import neighbours
from reticent.audit.watching import Address, ForcedCoins, Kept, Notebook, World, differences
from reticent.coins import KEY_BYTES
from reticent.data.sampling import BLOCK
from reticent.errors import BudgetError, OptionError, ReticentError, between, whole
from reticent.gradients import clipped_sum
from reticent.gradients.batches import call
from reticent.gradients.modes import training_mode
from reticent.methods.base import Method

MOST_DRAWS = 8  # of one release, tried one by one
MOST_LONGER = 10  # times as many releases, until one rejects something


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
        record: z as (input, target) without a batch dimension; by default the first record with
            its input far away and another label, whichever has the longest gradient.
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
    between("records", whole("records", records, least=2), 2, BLOCK - 1)
    for option in ("coins", "device", "folder"):
        if option in options:
            raise OptionError(option, options[option], "a replay has its own; leave it out")
    double = training_mode(copy.deepcopy(model).double())
    loss_fn = options.get("loss_fn") or nn.CrossEntropyLoss()
    longest = MOST_LONGER * releases if method.restores else releases
    key = seed.to_bytes(KEY_BYTES, "little", signed=True)

    def norms(inputs: Any, targets: Any) -> torch.Tensor:
        try:
            return clipped_sum(double, loss_fn, inputs, targets, 1.0).norms
        except ReticentError:  # said again, and better, when the training begins
            return torch.zeros(1)

    def made(held: Any, coins: ForcedCoins, **more: Any) -> training.Training:
        own = {**options, **more}
        if own.get("ledger") is not None:
            own["ledger"] = copy.deepcopy(own["ledger"])
        return training.run(
            copy.deepcopy(double),
            held,
            method=copy.deepcopy(method),
            coins=coins,
            device="cpu",
            **own,
        )

    def world(held: Any, n: int, position: int | None) -> tuple[World, ForcedCoins]:
        coins = ForcedCoins(key, position)
        own: dict[str, Any] = {"n": options.get("n", n)}
        if random:  # a mask for each record, whoever else is there
            own["microbatch"] = 1
        if {"steps", "epochs"} & {name for name, given in options.items() if given is not None}:
            return World(made(held, coins, **own), position), coins
        try:
            return World(made(held, coins, **own, steps=longest), position), coins
        except BudgetError:  # as many as the method's own noise leaves
            return World(made(held, coins, **own), position), coins

    random = _draws_numbers(double, neighbours(data, 2)[0][0])
    found: list[ReplayReport] = []
    for first in (False,) if random else (False, True):
        without, with_it, n = neighbours(data, records, record, norms, first=first)
        pair = _Replay(*world(without, n, None), *world(with_it, n, 0 if first else n))
        found.append(pair.look(method.name, releases, longest, on_release))
    leaks = {(k.kind, k.release, k.what): k for report in reversed(found) for k in report.leaks}
    return ReplayReport(
        method.name,
        found[0].releases,
        sum(report.draws for report in found),
        found[0].rejected,
        tuple(sorted(leaks.values(), key=lambda leak: leak.release)),
    )


def _draws_numbers(model: nn.Module, inputs: Any) -> bool:
    """Whether the model is random in training: dropout and the like."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        before = torch.get_rng_state()
        try:
            call(model, inputs)
        except Exception:  # the training will say what is wrong
            return False
        return not torch.equal(before, torch.get_rng_state())


class _Replay:
    """The two worlds, release by release."""

    def __init__(
        self, plain: World, plain_coins: ForcedCoins, other: World, other_coins: ForcedCoins
    ) -> None:
        self.plain, self.plain_coins = plain, plain_coins
        self.other, self.other_coins = other, other_coins
        self.leaks: list[Leak] = []
        self.draws = self.rejected = 0
        self._ways: dict[Address, set[Address]] = {}  # sampled draws by which z reached a sum

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
            self._noise_again(release, before, seen, public)
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
        if found is None:
            leaks = [Leak("stopped", release, "the training", "ends with z", float("inf"))]
            self._add(leaks)
            return False
        leaks = withheld(release, seen, found)
        if not leaks:
            paid = tuple(w.run.ledger.to_json()["entries"] for w in (self.plain, self.other))
            leaks += settings(release, seen, found, (paid[0], paid[1]))
            leaks += sums(release, seen, found)
            leaks += self._state(release, public, found)
            leaks += self._twice(release, seen, found)
        if remembered is not None:
            where = f"z was in {shown(remembered)}, and in nothing since"
            leaks = [Leak("remembered", release, where, k.what, k.size) for k in leaks]
        self._add(leaks)
        return not leaks

    def _twice(self, release: int, seen: Notebook, found: Notebook) -> list[Leak]:
        """A sum that z reaches by several draws is sampled more often than any one of them."""
        by = {d.address for d in found.draws if d.watched and d.rate is not None and d.rate < 1}
        leaks = []
        for address in moved(seen, found) if len(by) == 1 else ():
            ways = self._ways.setdefault(address, set())
            ways |= by
            if len(ways) > 1:
                names = ", ".join(sorted(shown(way) for way in ways))
                leaks.append(Leak("drawn twice", release, shown(address), f"by {names}", 2.0))
        return leaks

    def _state(self, release: int, public: dict[str, Any], found: Notebook) -> list[Leak]:
        drawn = [shown(draw.address) for draw in found.draws if draw.watched]
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
        reaching, what = [trials[-1]], self._reach(before, seen, public, set(trials[:-1]))
        if what:  # not the last one only
            each = {trial: self._reach(before, seen, public, {trial}) for trial in _some(trials)}
            reaching = [trial for trial, gaps in each.items() if gaps]
        if len(reaching) > 1:
            where = f"trials {', '.join(map(str, reaching))} of {len(trials)} reach the state"
            self._add(
                [Leak("unpaid trials", release, where, f"{k} moves", v) for k, v in what.items()]
            )
        elif reaching and reaching[0] != 0:
            self._told(release, before, seen.moved(reaching[0], 0), public)

    def _told(self, release: int, before: Kept, first: Notebook, public: dict[str, Any]) -> None:
        """The same values accepted at once: how many trials it took is not for the state."""
        self.plain.back_to(before)
        self.plain.release(pinned=first)
        gaps = differences(public, self.plain.public(), TOLERANCE)
        where = "accepted in the first trial"
        self._add([Leak("trials told", release, where, f"{k} differs", v) for k, v in gaps.items()])

    def _noise_again(
        self, release: int, before: Kept, seen: Notebook, public: dict[str, Any]
    ) -> None:
        """Other noise under the same noisy values must make no difference."""
        self.plain.back_to(before)
        self.plain_coins.salt = "other "
        try:
            self.plain.release(pinned=seen)
        finally:
            self.plain_coins.salt = ""
        gaps = differences(public, self.plain.public(), TOLERANCE)
        where = "same noisy values, other noise"
        self._add(
            [Leak("noise taken off", release, where, f"{k} differs", v) for k, v in gaps.items()]
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
