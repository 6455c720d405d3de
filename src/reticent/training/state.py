"""Everything a release may change, as one thing that can be kept and put back.

All of it is public: a function of earlier releases only. A method that rejects a candidate restores
the snapshot it took before, and nothing of the candidate is left: not in the parameters, not in the
optimizer, not in schedules, averages or counters.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from reticent.errors import CheckpointError, between
from reticent.training.parameters import FlatParameters

SchedulerFactory = Callable[[Optimizer], LRScheduler]


class WeightAverage:
    """An exponential moving average of the released parameters: post-processing, free of charge.

    Early on the decay is (1 + t) / (10 + t), so that the start is forgotten quickly.
    """

    def __init__(self, decay: float, values: torch.Tensor) -> None:
        self.decay = between("average", decay, 0, 1, open_low=True)
        self.values = values.clone()
        self.count = 0

    def update(self, values: torch.Tensor) -> None:
        """Take in the parameters of one more release."""
        self.count += 1
        decay = min(self.decay, (1 + self.count) / (10 + self.count))
        self.values.lerp_(values, 1 - decay)


@dataclass(frozen=True)
class Snapshot:
    """A copy of a state at one moment."""

    values: torch.Tensor
    optimizer_state: dict[Any, Any]
    optimizer_groups: list[dict[str, Any]]
    scheduler: dict[str, Any] | None
    average: tuple[torch.Tensor, int] | None
    public: dict[str, Any]
    step: int


class State:
    """Parameters, optimizer, scheduler, averages, the method's public numbers, the step counter."""

    def __init__(
        self,
        parameters: FlatParameters,
        optimizer: Optimizer,
        scheduler: LRScheduler | None = None,
        average: WeightAverage | None = None,
    ) -> None:
        self.parameters = parameters
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.average = average
        self.public: dict[str, Any] = {}
        self.step = 0

    def advance(self, gradient: torch.Tensor) -> None:
        """One optimizer step with a released gradient, and all that follows from it."""
        self.parameters.set_gradient(gradient)
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        if self.average is not None:
            self.average.update(self.parameters.values)
        self.step += 1

    def hold(self) -> None:
        """End a release that moves nothing: only the counter of releases goes on."""
        self.step += 1

    def snapshot(self) -> Snapshot:
        """A copy to come back to."""
        return Snapshot(
            values=self.parameters.values.clone(),
            optimizer_state={
                parameter: _copied(values) for parameter, values in self.optimizer.state.items()
            },
            optimizer_groups=[
                {k: _copied(v) for k, v in group.items() if k != "params"}
                for group in self.optimizer.param_groups
            ],
            scheduler=None if self.scheduler is None else _copied(self.scheduler.state_dict()),
            average=(
                None if self.average is None else (self.average.values.clone(), self.average.count)
            ),
            public=_copied(self.public),
            step=self.step,
        )

    def restore(self, snapshot: Snapshot) -> None:
        """Put everything back, bit for bit; the snapshot stays usable."""
        self.parameters.values.copy_(snapshot.values)
        self.parameters.forget_gradient()
        state = self.optimizer.state
        for parameter in [p for p in state if p not in snapshot.optimizer_state]:
            del state[parameter]
        for parameter, values in snapshot.optimizer_state.items():
            state[parameter] = _put_back(state.get(parameter), values)
        for group, saved in zip(
            self.optimizer.param_groups, snapshot.optimizer_groups, strict=True
        ):
            for key in [key for key in group if key != "params" and key not in saved]:
                del group[key]
            group.update(_copied(saved))
        if self.scheduler is not None and snapshot.scheduler is not None:
            self.scheduler.load_state_dict(_copied(snapshot.scheduler))
        if self.average is not None and snapshot.average is not None:
            self.average.values.copy_(snapshot.average[0])
            self.average.count = snapshot.average[1]
        self.public = _copied(snapshot.public)
        self.step = snapshot.step

    # -- checkpoints --------------------------------------------------------------------------

    def to_checkpoint(self) -> dict[str, Any]:
        """The state as tensors and plain values."""
        return {
            "values": self.parameters.values,
            "names": {name: (s.start, s.stop) for name, s in self.parameters.spans.items()},
            "optimizer": self.optimizer.state_dict(),
            "scheduler": None if self.scheduler is None else self.scheduler.state_dict(),
            "average": (
                None if self.average is None else (self.average.values, self.average.count)
            ),
            "public": self.public,
            "step": self.step,
        }

    def from_checkpoint(self, saved: dict[str, Any]) -> None:
        """Continue where `to_checkpoint` was called."""
        spans = {name: (s.start, s.stop) for name, s in self.parameters.spans.items()}
        if {name: tuple(span) for name, span in saved["names"].items()} != spans:
            raise CheckpointError("the checkpoint's parameters are not those of this model")
        if (saved["average"] is None) != (self.average is None):
            raise CheckpointError("weight averaging is on in one of checkpoint and run only")
        if (saved["scheduler"] is None) != (self.scheduler is None):
            raise CheckpointError("a scheduler is set in one of checkpoint and run only")
        self.parameters.values.copy_(saved["values"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(saved["scheduler"])
        if self.average is not None:
            self.average.values.copy_(saved["average"][0])
            self.average.count = int(saved["average"][1])
        self.public = dict(saved["public"])
        self.step = int(saved["step"])


def _put_back(current: Any, saved: Any) -> Any:
    """A copy of what was saved, in the current tensors' own memory where they fit."""
    if isinstance(saved, dict) and isinstance(current, dict):
        return {key: _put_back(current.get(key), item) for key, item in saved.items()}
    if (
        isinstance(saved, torch.Tensor)
        and isinstance(current, torch.Tensor)
        and current.shape == saved.shape
        and current.dtype == saved.dtype
        and current.device == saved.device
    ):
        return current.copy_(saved)
    return _copied(saved)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_copied(item) for item in value)
    return copy.deepcopy(value)
