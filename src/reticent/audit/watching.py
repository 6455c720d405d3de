"""Watching a method from outside: what it draws, what gets noise, and what is left afterwards.

A method reaches records and noise only through `Run` and its coins. `WatchedRun` is the same run
with a notebook: it sees every draw and every noisy value of any method, and can be told to hand out
the noisy values of another run instead of its own. `ForcedCoins` are the coins of a run with one
record's luck decided by the auditor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from reticent.coins import Coins
from reticent.data.sampling import BLOCK
from reticent.gradients.isolating import reseed
from reticent.methods.base import Method
from reticent.privacy import Charge, Ledger, Sensitive
from reticent.training import Training
from reticent.training.run import Run
from reticent.training.state import Snapshot

# (stream, release, trial)
Address = tuple[str, int, int]
NEVER = 1 - 2.0**-53  # the largest coin: below no rate but 1


class ForcedCoins(Coins):
    """Coins like others, but for the records: one is drawn where the auditor says so.

    Attributes:
        position: Which record is forced: the last one, or 0, when all others have moved by one and
            keep their coins. None: nobody.
        chosen: The draws it takes part in; in all others it does not, unless their rate is 1.
        alone: Whether everybody else stays out of all draws.
        salt: Changes all noise, and nothing else.
    """

    def __init__(self, key: bytes, position: int | None = None) -> None:
        super().__init__(key, seeded=True)
        self.position = position
        self.chosen: Callable[[Address], bool] = lambda address: False
        self.alone = False
        self.salt = ""

    def normal(
        self,
        shape: tuple[int, ...],
        stream: str,
        *counters: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """As the base class says, from other coins where salted."""
        return super().normal(shape, self.salt + stream, *counters, device=device, dtype=dtype)

    def uniform_into(self, out: torch.Tensor, stream: str, *counters: int) -> None:
        """As the base class says, with the forced records' coins written over."""
        super().uniform_into(out, stream, *counters)
        if len(counters) != 3:  # only the records' coins come in blocks
            return
        release, trial, block = counters
        if self.alone:
            out.fill_(NEVER)
        if self.position is None or self.position // BLOCK != block:
            return
        offset = self.position % BLOCK
        if offset >= len(out):
            return
        if self.position == 0:
            out[1:] = out[:-1].clone()
        out[offset] = 0.0 if self.chosen((stream, release, trial)) else NEVER


@dataclass(frozen=True)
class Draw:
    """Records were drawn; a rate of None: with a probability for each."""

    address: Address
    rate: float | None
    size: int
    watched: bool  # whether the forced record is among them
    drawn: torch.Tensor


@dataclass(frozen=True)
class Noised:
    """A value got noise: before, after, and what the method said about it."""

    address: Address
    total: torch.Tensor
    sensitivity: float
    multiplier: float
    value: torch.Tensor
    paid: tuple[tuple[Charge, int], ...]  # what the ledger held at that moment

    @property
    def noise(self) -> torch.Tensor:
        """The noise alone, in units of what it should be."""
        scale = self.multiplier * self.sensitivity
        return (self.value - self.total) / scale if scale else self.value - self.total


@dataclass(frozen=True)
class Chosen:
    """A noisy choice among candidates."""

    address: Address
    scores: torch.Tensor
    sensitivity: float
    epsilon: float
    value: int
    paid: tuple[tuple[Charge, int], ...]


@dataclass
class Notebook:
    """What a watched run did since it was opened."""

    draws: list[Draw] = field(default_factory=list)
    noised: dict[Address, Noised] = field(default_factory=dict)
    chosen: dict[Address, Chosen] = field(default_factory=dict)
    #: noise was asked for where the pinned run had none
    unexpected: list[Address] = field(default_factory=list)

    @property
    def trials(self) -> list[int]:
        """The trials in which something got noise, in order."""
        return sorted({trial for _, _, trial in (*self.noised, *self.chosen)})

    def moved(self, trial: int, to: int) -> Notebook:
        """The same, with one trial's values in the place of another's."""

        def put(found: dict[Address, Any]) -> dict[Address, Any]:
            return {
                **found,
                **{(at[0], at[1], to): value for at, value in found.items() if at[2] == trial},
            }

        return Notebook(self.draws, put(self.noised), put(self.chosen))


class WatchedRun(Run):
    """A run with a notebook; made from a run, whose place it takes."""

    notebook: Notebook
    position: int | None
    pinned: Notebook | None
    nudged: Callable[[Address], bool]

    @classmethod
    def over(cls, run: Run, position: int | None = None) -> WatchedRun:
        """The same run, watched; `position` is the record to look for in draws."""
        watched = cls.__new__(cls)
        watched.__dict__ = run.__dict__  # one state, seen under two names
        watched.notebook = Notebook()
        watched.position = position
        watched.pinned = None
        watched.nudged = lambda address: False
        return watched

    def _at(self, stream: str, later: int = 0) -> Address:
        return stream, self.release, self.trial + later

    def _paid(self) -> tuple[tuple[Charge, int], ...]:
        return tuple((entry.charge, entry.count) for entry in self.ledger.entries)

    def _note(self, stream: str, rate: float | None, drawn: torch.Tensor, later: int = 0) -> None:
        watched = self.position is not None and bool((drawn == self.position).any())
        draw = Draw(self._at(stream, later), rate, len(drawn), watched, drawn.detach().cpu())
        self.notebook.draws.append(draw)

    def samples(self, rate: float, stream: str, count: int) -> list[torch.Tensor]:
        """As the base class says."""
        found = super().samples(rate, stream, count)
        for later, drawn in enumerate(found):
            self._note(stream, rate, drawn, later)
        return found

    def sample_each(self, probabilities: torch.Tensor, stream: str = "sampling") -> torch.Tensor:
        """As the base class says."""
        drawn = super().sample_each(probabilities, stream)
        self._note(stream, None, drawn)
        return drawn

    def noisy(self, total: Any, multiplier: float, stream: str = "noise") -> torch.Tensor:
        """As the base class says, or what the pinned run had here."""
        value, where, paid = (
            super().noisy(total, multiplier, stream),
            self._at(stream),
            self._paid(),
        )
        before = total.flat.detach().clone()
        if self.pinned is not None:
            there = self.pinned.noised.get(where)
            if there is None or there.value.shape != value.shape:
                self.notebook.unexpected.append(where)
            else:
                value = there.value.clone()
        if self.nudged(where):
            value = value + self._nudge(value, multiplier * total.sensitivity)
        kept = value.detach().clone()
        self.notebook.noised[where] = Noised(
            where, before, total.sensitivity, multiplier, kept, paid
        )
        return value

    @staticmethod
    def _nudge(value: torch.Tensor, scale: float) -> torch.Tensor:
        """A tenth of the noise; next to nothing for a single number, which may be a decision."""
        by = torch.ones_like(value) * (scale or 1.0)
        return by * (0.1 if value.numel() > 1 else 1e-9)

    def noisy_min(self, scores: Sensitive, epsilon: float, stream: str) -> int:
        """As the base class says, or what the pinned run chose here."""
        value, where = super().noisy_min(scores, epsilon, stream), self._at(stream)
        if self.pinned is not None:
            there = self.pinned.chosen.get(where)
            if there is None:
                self.notebook.unexpected.append(where)
            else:
                value = there.value
        kept = scores.flat.detach().clone()
        self.notebook.chosen[where] = Chosen(
            where, kept, scores.sensitivity, epsilon, value, self._paid()
        )
        return value


@dataclass(frozen=True)
class Kept:
    """All that a world must have back to make the same release again."""

    snapshot: Snapshot
    private: dict[str, torch.Tensor]
    ledger: dict[str, Any]
    method: Method
    buffers: dict[str, torch.Tensor]
    optimizer: dict[str, Any]  # plain attributes, such as a counter


class World:
    """A watched training that can be set back: one of the two neighbours of a replay."""

    def __init__(self, training: Training, position: int | None = None) -> None:
        self.training = training
        self.run = WatchedRun.over(training.run, position)
        training.run = self.run

    def keep(self) -> Kept:
        """Everything as it is now."""
        run = self.run
        return Kept(
            run.state.snapshot(),
            {name: value.clone() for name, value in run.private.items()},
            run.ledger.to_json(),
            copy.deepcopy(self.training.method),
            {name: value.clone() for name, value in run.model.named_buffers()},
            {
                k: v
                for k, v in vars(run.state.optimizer).items()
                if isinstance(v, (int, float, str))
            },
        )

    def back_to(self, kept: Kept) -> None:
        """Be as it was then."""
        run = self.run
        run.state.restore(kept.snapshot)
        run.private = {name: value.clone() for name, value in kept.private.items()}
        run.ledger = Ledger.from_json(kept.ledger)
        self.training.method = copy.deepcopy(kept.method)
        for name, value in run.model.named_buffers():
            value.copy_(kept.buffers[name])
        own = vars(run.state.optimizer)
        for name in _plain(run.state.optimizer):
            if name not in kept.optimizer:
                del own[name]
        own.update(kept.optimizer)

    def release(
        self,
        pinned: Notebook | None = None,
        nudged: Callable[[Address], bool] | None = None,
    ) -> Notebook | None:
        """Make one release through the training's own loop; None if nothing is left to release."""
        run = self.run
        run.notebook = notebook = Notebook()
        run.pinned = pinned
        run.nudged = nudged or (lambda address: False)
        with torch.random.fork_rng(devices=[]):
            reseed(run.state.step)  # public randomness is the same in every world
            for _ in self.training:
                return notebook
        return None

    def public(self) -> dict[str, Any]:
        """Every number that the run counts as public, by name."""
        found: dict[str, Any] = {}
        run, state = self.run, self.run.state
        _flatten("parameters", state.parameters.values, found)
        names = {id(p): name for name, p in state.parameters.named.items()}
        for parameter, kept in state.optimizer.state.items():
            name = names.get(id(parameter), "all parameters")
            _flatten(f"optimizer state of {name}", kept, found)
        for number, group in enumerate(state.optimizer.param_groups):
            options = {key: value for key, value in group.items() if key != "params"}
            _flatten(f"optimizer options {number}", options, found)
        if state.scheduler is not None:
            _flatten("scheduler", state.scheduler.state_dict(), found)
        if state.average is not None:
            _flatten("weight average", state.average.values, found)
        _flatten("public numbers", state.public, found)
        _flatten("step", state.step, found)
        for name, buffer in run.model.named_buffers():
            _flatten(f"buffer {name}", buffer, found)
        return found


def _plain(thing: Any) -> dict[str, Any]:
    """Its own numbers and words."""
    return {k: v for k, v in vars(thing).items() if isinstance(v, (int, float, str))}


def _flatten(name: str, value: Any, into: dict[str, Any]) -> None:
    """Numbers and tensors of a nested structure, by name; copies."""
    if isinstance(value, torch.Tensor):
        into[name] = value.detach().double().clone()
    elif isinstance(value, (bool, int, float)):
        into[name] = torch.tensor(float(value), dtype=torch.float64)
    elif isinstance(value, dict):
        for key, item in value.items():
            _flatten(f"{name}: {key}", item, into)
    elif isinstance(value, (list, tuple)):
        into[f"{name}: length"] = torch.tensor(float(len(value)), dtype=torch.float64)
        for number, item in enumerate(value):
            _flatten(f"{name}: {number}", item, into)
    elif value is not None:
        into[name] = repr(value)


def differences(one: dict[str, Any], other: dict[str, Any], tolerance: float) -> dict[str, float]:
    """Names under which two worlds disagree, with the largest relative difference."""
    found: dict[str, float] = {}
    for name in {**one, **other}:
        a, b = one.get(name), other.get(name)
        if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
            if type(a) is not type(b) or a != b:
                found[name] = float("inf")
        elif a.shape != b.shape:
            found[name] = float("inf")
        elif a.numel():
            scale = float(torch.maximum(a.abs().max(), b.abs().max()))
            gap = float((a - b).abs().max())
            if not gap <= tolerance * scale:  # NaN counts as a difference
                found[name] = gap / scale if scale else float("inf")
    return found
