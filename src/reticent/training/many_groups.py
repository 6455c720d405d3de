"""Which of many models are trained at once, and their trainings, prepared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from reticent.data.records import Records
from reticent.errors import ModelError, OptionError
from reticent.files import to_json
from reticent.gradients import Clipping, Flat, rounding, synthetic_like
from reticent.gradients.modes import training_mode
from reticent.methods import DPSGD, DPSUR, SGD, Method, NoiseDecay, Quantile, SignAdam, SignSGD
from reticent.methods.published import PublishedDPSUR
from reticent.training.besides import Beside
from reticent.training.evaluation import Evaluation
from reticent.training.ledgers import check_planned
from reticent.training.loop import Training
from reticent.training.memory import Piece
from reticent.training.probe import probe
from reticent.training.run import LossFn
from reticent.training.selective_stack import SelectiveStack, losses_differ
from reticent.training.side_by_side import Stack
from reticent.training.stacking import StackedGradients, StackedParameters
from reticent.training.together import bytes_per_example
from reticent.training.together_checks import against, check_optimizer
from reticent.training.train import assemble, run

# Models that are trained at once: more gain nothing, and their parameters, optimizers, sums and
# noise must fit, at 64 bytes for each parameter.
MOST_AT_ONCE = 64
HOST_BYTES, DEVICE_BYTES, BYTES_PER_PARAMETER = 2**30, 8 * 2**30, 64

#: methods whose releases can be made for several models at once
AT_ONCE: tuple[type[Method], ...] = (DPSGD, SignSGD, SignAdam, NoiseDecay, SGD, DPSUR)


@dataclass(frozen=True, eq=False)
class Job:
    """One model and its own options of `reticent.run`."""

    number: int
    model: nn.Module
    options: dict[str, Any]


def own_value(name: str, value: Any, number: int, count: int) -> Any:
    """A model's own value of an option: lists have one for each."""
    if not isinstance(value, (list, tuple)):
        if value is not None and name in ("coins", "ledger"):
            raise OptionError(name, value, "must be a list, one for each model")
        return value
    if len(value) != count:
        raise OptionError(name, len(value), f"must be one for each of {count} models")
    return value[number]


def check_jobs(jobs: Sequence[Job]) -> None:
    """Refuse options that no single training would find out about."""
    for job in jobs:
        try:
            to_json(job.options["config"] or {})
        except (TypeError, ValueError) as error:
            config = job.options["config"]
            raise OptionError("config", config, f"must be plain JSON data: {error}") from None
    given = [job.options["ledger"] for job in jobs if job.options["ledger"] is not None]
    if len(set(map(id, given))) < len(given):
        raise OptionError("ledger", len(given), "must be different ones: each model pays its own")
    for ledger in given:
        check_planned(ledger)


def _kind(job: Job) -> tuple[Any, ...] | str:
    """What trainings must have in common to be made at once, or why this one cannot be."""
    method: Method = job.options["method"]
    if type(method) not in (*AT_ONCE, PublishedDPSUR):
        known = ", ".join(kind.name for kind in AT_ONCE)
        name = getattr(method, "name", type(method).__name__)
        return f"method {name!r} is not one of those trained at once: {known}"
    if isinstance(method, SGD):
        return (SGD, method.batch)
    assert isinstance(method, DPSGD)
    style = method.clipping
    if isinstance(method.clip, Quantile) or style.grouped:
        moved = method.clip if isinstance(method.clip, Quantile) else style
        return f"clipping {type(moved).__name__!r} is done for one model at a time"
    kind = (method.batch, type(style), getattr(style, "gamma", None))
    if not isinstance(method, DPSUR):
        return (DPSGD, *kind)
    if method.pad is not None:
        return "padded trials are made for one model at a time"
    leaks = [getattr(method, name, False) for name in ("leaky_momentum", "stale_validation")]
    return (DPSUR, *kind, method.valid_batch, job.options["average"], *leaks)


def _unfit(job: Job) -> str:
    """Why this model's optimizer or schedule cannot be part of a common one."""
    if isinstance(job.options["scheduler"], LRScheduler):
        return "its scheduler belongs to an optimizer already"
    try:
        check_optimizer(job.options["optimizer"], job.model)
    except OptionError as error:
        return str(error)
    if isinstance(job.options["method"], DPSUR):
        made = job.options["optimizer"]([nn.Parameter(torch.zeros(1))])
        if type(made) is not torch.optim.SGD or made.param_groups[0]["dampening"]:
            return "models at different releases go together with SGD without dampening only"
        if job.options["scheduler"] is not None:
            return "models at different releases have no schedule in common"
    return ""


@dataclass(frozen=True, eq=False)
class Together:
    """What all trainings have in common."""

    records: Records
    loss_fn: LossFn
    evaluation: Evaluation | None
    n: int | None
    device: torch.device
    precision: str | None
    how: str
    room: int

    def prepare(self, jobs: list[Job]) -> tuple[list[Group], list[tuple[Job, Training, str]]]:
        """All trainings, before the first of them spends anything."""
        for job in jobs:
            training_mode(job.model.to(self.device))
        restores = any(job.options["method"].restores for job in jobs)
        probe(
            jobs[0].model,
            self.loss_fn,
            self.records,
            evaluated=restores,
            precision=self.precision,
        )
        StackedParameters([job.model for job in jobs])  # names the model where one is not finite
        groups, reasons = self._groups(jobs)
        made = [
            self._group(some, ruled=ruled) for group, ruled in groups for some in self._split(group)
        ]
        alone = [
            (job, run(job.model, self.records, **job.options, **self._common), reasons[job.number])
            for job in jobs
            if job.number in reasons
        ]
        return made, alone

    def _groups(self, jobs: list[Job]) -> tuple[list[tuple[list[Job], bool]], dict[int, str]]:
        """Which models are trained at once, and why the others are not."""
        reasons: dict[int, str] = {}
        kinds: dict[tuple[Any, ...], list[Job]] = {}
        for job in jobs:
            kind = "as asked for" if self.how == "apart" else _kind(job)
            reason = kind if isinstance(kind, str) else _unfit(job)
            if reason and self.how == "together":
                raise ModelError(f"how = 'together': model {job.number}: {reason}")
            if reason or isinstance(kind, str):
                reasons[job.number] = reason
            else:
                kinds.setdefault(kind, []).append(job)
        groups = []
        for kind, group in kinds.items():
            reason, ruled = self._against(group, light=kind[0] is SGD)
            if reason:
                reasons.update({job.number: reason for job in group})
            else:
                groups.append((group, ruled))
        return groups, reasons

    def _against(self, group: list[Job], *, light: bool) -> tuple[str, bool]:
        """Why these models are not trained at once; and whether by the layers' rules."""
        if len(group) == 1 and self.how == "auto":
            return "no other model goes with it", False
        models = [job.model for job in group]
        example = synthetic_like(*self.records.one(), n=1)
        clip = _clip_of(group)
        with rounding.precision(self.precision, self.device):  # it decides what rounding is left
            sums = StackedGradients(models, StackedParameters(models), self.loss_fn, clip, example)
            reason = against(self.how, sums, models, self.records, light=light)
            if not reason and isinstance(group[0].options["method"], DPSUR):
                reason = losses_differ(sums, models, self.records)
        return reason, sums.rules is not None

    def _split(self, group: list[Job]) -> list[list[Job]]:
        """As many models at once as pay off, and as there is room for."""
        size = sum(p.numel() for p in group[0].model.parameters())
        room = DEVICE_BYTES if self.device.type == "cuda" else HOST_BYTES
        most = max(min(room // (BYTES_PER_PARAMETER * max(size, 1)), MOST_AT_ONCE), 1)
        parts = -(-len(group) // most)
        return [group[part::parts] for part in range(parts)]

    def _group(self, jobs: list[Job], *, ruled: bool) -> Group:
        trainings = []
        for job in jobs:
            made = assemble(
                Beside,
                job.model,
                self.records,
                piece_for=lambda _: Piece(1),
                **job.options,
                **self._common,
            )
            made.number = job.number
            made.optimizer, made.scheduler = job.options["optimizer"], job.options["scheduler"]
            trainings.append(made)
        return Group(trainings, self, ruled)

    @property
    def _common(self) -> dict[str, Any]:
        return {
            "n": self.n,
            "loss_fn": self.loss_fn,
            "evaluation": self.evaluation,
            "device": self.device,
            "precision": self.precision,
        }


@dataclass(frozen=True, eq=False)
class Group:
    """Trainings that go on side by side; nothing is stacked before it is their turn."""

    trainings: list[Beside]
    shared: Together
    ruled: bool

    def stack(self) -> Stack:
        """The models as one."""
        shared, first = self.shared, self.trainings[0]
        kind = SelectiveStack if isinstance(first.method, DPSUR) else Stack
        return kind(
            self.trainings,
            shared.records,
            shared.loss_fn,
            shared.evaluation,
            room=shared.room,
            bytes_each=bytes_per_example(first.run.model, shared.loss_fn, shared.records),
            ruled=self.ruled,
        )


def _clip_of(group: Sequence[Job]) -> Clipping:
    method = group[0].options["method"]
    return method.clipping if isinstance(method, DPSGD) else Flat(math.inf)
