"""Models that an optimizer moves as one: rows of one tensor under the same settings.

All optimizers used here treat every coordinate alone, and so do the methods' directions, so one
step on the rows [K, P] of K models is one step of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor, nn

from reticent.methods import DPSGD, Method
from reticent.training.loop import Training
from reticent.training.optimizers import OptimizerFactory
from reticent.training.parameters import FlatParameters
from reticent.training.run import Run
from reticent.training.state import SchedulerFactory, State, WeightAverage
from reticent.training.together_checks import scheduler_of

_MOVING = ("last_epoch", "_step_count", "_last_lr", "optimizer")  # of a scheduler, as it goes


class Rows(FlatParameters):
    """Some rows of a tensor of parameters, as what an optimizer is given."""

    def __init__(self, rows: Tensor) -> None:
        self.named, self.spans = {}, {}
        self.flat = nn.Parameter(rows)
        self.flat.grad = torch.zeros_like(rows)

    def set_gradient(self, gradient: Tensor) -> None:
        """Give the optimizer this gradient."""
        assert self.flat.grad is not None
        self.flat.grad.copy_(gradient)


def _plain(values: dict[str, Any]) -> tuple[Any, ...] | None:
    """Settings that can be compared; None if some cannot."""

    def comparable(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return all(comparable(item) for item in value)
        return value is None or isinstance(value, (str, int, float, bool))

    if not all(comparable(value) for value in values.values()):
        return None
    return tuple(sorted((name, repr(value)) for name, value in values.items()))


def key_of(
    training: Training, optimizer: OptimizerFactory, scheduler: SchedulerFactory | None
) -> tuple[Any, ...]:
    """Equal for trainings whose optimizer, schedule, average and direction are the same."""
    state, method = training.run.state, training.method
    group = {k: v for k, v in state.optimizer.param_groups[0].items() if k != "params"}
    settings = _plain(group)
    schedule: Any = None
    if state.scheduler is not None:
        own = {k: v for k, v in vars(state.scheduler).items() if k not in _MOVING}
        plain = _plain(own)
        schedule = (type(state.scheduler), id(scheduler) if plain is None else plain)
    return (
        type(state.optimizer),
        id(optimizer) if settings is None else settings,
        schedule,
        None if state.average is None else state.average.decay,
        _direction(method),
    )


def _direction(method: Method) -> tuple[Any, ...]:
    """What the way from a noisy sum to a gradient depends on."""
    if not isinstance(method, DPSGD):
        return (type(method),)
    if type(method).direction is DPSGD.direction:
        return (DPSGD, method.batch)
    own = {k: v for k, v in method.options().items() if k not in ("noise", "clip")}
    return (type(method), repr(sorted(own.items())))


class Pack:
    """Consecutive rows that share optimizer, schedule, average and the method's direction.

    Args:
        rows: [K, P], written to.
        training: One of the trainings, which are all alike in this.
        optimizer: A function from parameters to an optimizer.
        scheduler: A function from the optimizer to a scheduler.
    """

    def __init__(
        self,
        rows: Tensor,
        training: Training,
        optimizer: OptimizerFactory,
        scheduler: SchedulerFactory | None,
    ) -> None:
        parameters = Rows(rows)
        made = optimizer([parameters.flat])
        average = training.run.state.average
        self.method = training.method
        self.state = State(
            parameters,
            made,
            scheduler_of(scheduler, made),
            None if average is None else WeightAverage(average.decay, rows),
        )

    def __len__(self) -> int:
        return len(self.state.parameters.values)

    @property
    def released(self) -> Tensor:
        """The parameters [K, P] that results would carry now: averaged ones where there are any."""
        average = self.state.average
        if average is None or not average.count:
            return self.state.parameters.values
        return average.values

    def advance(self, released: Tensor) -> None:
        """One step of all models along what was released of each, [K, P]."""
        if isinstance(self.method, DPSGD):
            # a direction reads and keeps public numbers, which have a row for each model here
            released = self.method.direction(cast(Run, SimpleNamespace(state=self.state)), released)
        self.state.advance(released)

    def keep(self, rows: Tensor, values: Tensor) -> None:
        """Let go of all but these rows, which lie in `values` from now on."""
        state, shape = self.state, self.state.parameters.values.shape

        def kept(value: Any) -> Any:
            whole = isinstance(value, Tensor) and value.shape == shape
            return value[rows] if whole else value

        old, state.parameters = state.parameters.flat, Rows(values)
        held = state.optimizer.state.pop(old, {})
        new = state.parameters.flat
        state.optimizer.state[new] = {name: kept(value) for name, value in held.items()}
        state.optimizer.param_groups[0]["params"] = [new]
        state.public = {name: kept(value) for name, value in state.public.items()}
        if state.average is not None:
            state.average.values = kept(state.average.values)


def spans(keys: Sequence[Any]) -> list[slice]:
    """Runs of equal keys."""
    found: list[slice] = []
    for place, key in enumerate(keys):
        if found and keys[found[-1].start] == key:
            found[-1] = slice(found[-1].start, place + 1)
        else:
            found.append(slice(place, place + 1))
    return found
