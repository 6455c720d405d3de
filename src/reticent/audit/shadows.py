"""Shadow models: trained like the target on records whose membership is known.

They are computed from private records without a promise, and are as private as these: nothing here
may be released. Files are readable by their owner alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from reticent.audit import shadow_files
from reticent.audit.shadow_plans import OneByOne, ShadowPlan, shadow_coins
from reticent.audit.splits import in_out, out_only, take
from reticent.data.records import Records, TensorRecords, as_records, fingerprint
from reticent.errors import DataError, ModelError, OptionError, whole
from reticent.gradients.batches import batch_size, call, part
from reticent.training.optimizers import by_name
from reticent.training.run import LossFn
from reticent.training.stacking import PartRecords, StackedModels, StackedParameters
from reticent.training.together import train_together
from reticent.training.train import pick_device

# How many models at once by default: more gain nothing on a CPU, little on a device.
MOST_ON_HOST, MOST_ON_DEVICE = 16, 64
# What a group's parameters, optimizer, sums and noise may take, at 64 bytes for each parameter.
HOST_BYTES, DEVICE_BYTES, BYTES_PER_PARAMETER = 2**30, 8 * 2**30, 64

__all__ = [
    "Estimate",
    "OneByOne",
    "ShadowPlan",
    "Shadows",
    "estimate",
    "in_out",
    "out_only",
    "train_shadows",
]

Build = Callable[[int], nn.Module]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, eq=False)
class Shadows:
    """Trained shadow models. As private as the records they were trained on.

    Attributes:
        models: The modules.
        members: [K, N] booleans: which records of the pool each was trained on.
        device: Where they are.
        trained: How many were trained now; the others were found in the folder.
        notes: What a reader should know: damaged files, models trained one after the other.
    """

    models: list[nn.Module]
    members: Tensor
    device: torch.device
    trained: int
    notes: tuple[str, ...] = field(default=())

    def logits(self, inputs: Any, *, batch: int = 4096) -> Tensor:
        """What all models say of the same inputs: [K, n, classes], on the CPU, dropout off.

        Args:
            inputs: A tensor, or a tuple or dict of tensors.
            batch: How many outputs are computed at once, of all models together.
        """
        whole("batch", batch)
        modes = [(m, m.training) for model in self.models for m in model.modules()]
        groups = _groups(list(range(len(self.models))), self._at_once())
        try:
            for model in self.models:
                model.eval()
            with torch.no_grad():
                return torch.cat(
                    [
                        _logits([self.models[k] for k in g], inputs, batch, self.device)
                        for g in groups
                    ]
                )
        finally:
            for module, mode in modes:
                module.training = mode

    def _at_once(self) -> int:
        return group_size(self.models[0], len(self.models), self.device)


def _logits(models: Sequence[nn.Module], inputs: Any, batch: int, device: torch.device) -> Tensor:
    """Outputs [K, n, ...] of some models, mapped over them where that gives the same."""

    def piece(start: int, stop: int) -> Any:
        return tree_map(lambda leaf: leaf.to(device), part(inputs, start, stop))

    count, batch = batch_size(inputs, ()), max(batch // len(models), 1)
    starts = range(0, count, batch) if count else (0,)
    some = piece(0, 5)
    plain = [call(model, some) for model in (models[0], models[-1])]
    if not isinstance(plain[0], Tensor):
        raise ModelError(f"the models return {type(plain[0]).__name__}: must be a tensor of scores")
    try:
        recurrent = any(isinstance(m, nn.RNNBase) for m in models[0].modules())
        if recurrent or len({repr(model) for model in models}) > 1:
            raise ModelError("recurrent models, or models of different architectures")
        stacked, rows = StackedModels(models), StackedParameters(models)
        trained = rows.by_name(rows.values)
        mapped = torch.vmap(stacked.call, (0, stacked.fixed_dims, None), randomness="error")
        with sdpa_kernel(SDPBackend.MATH):
            found = mapped(trained, stacked.fixed, some)
            for alone, together in zip(plain, (found[0], found[-1]), strict=True):
                torch.testing.assert_close(together, alone, rtol=1e-2, atol=1e-3)
            outputs = [mapped(trained, stacked.fixed, piece(s, s + batch)).cpu() for s in starts]
        return torch.cat(outputs, 1)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # recurrent layers on a device, control flow: one model after the other
        pass
    return torch.stack(
        [torch.cat([call(model, piece(s, s + batch)).cpu() for s in starts]) for model in models]
    )


def train_shadows(
    build: Build,
    data: Any,
    memberships: Tensor,
    plan: ShadowPlan | OneByOne,
    *,
    folder: str | Path | None = None,
    device: str | torch.device = "auto",
    together: int | None = None,
    loss_fn: LossFn | None = None,
    progress: Progress | None = None,
) -> Shadows:
    """Train one model on each row of `memberships`; those found in `folder` are not trained again.

    Args:
        build: From a number k to the untrained model k, the same whenever it is asked.
        data: The pool of N records, as for `reticent.train`.
        memberships: [K, N] booleans: which records model k is trained on.
        plan: How.
        folder: Where trained models are kept, readable by their owner alone. A file is used only if
            plan, architecture, initial weights, memberships and records are the same.
        device: `auto`, `cpu`, `cuda`, ...
        together: How many models are trained at once; no influence but rounding. By default what
            pays off. A killed process loses at most so many.
        loss_fn: As for `reticent.train`; of a `ShadowPlan`.
        progress: Called with steps made and to make in all (models, for `OneByOne`).

    Example:
        >>> pool = (torch.randn(40, 3), torch.randint(0, 2, (40,)))
        >>> shadows = train_shadows(lambda k: torch.nn.Linear(3, 2), pool, in_out(40, 4),
        ...                         ShadowPlan(batch=8, steps=3), device="cpu")
        >>> shadows.logits(pool[0]).shape
        torch.Size([4, 40, 2])
    """
    job = _Job(build, data, memberships, plan, device, together, loss_fn)
    kept = None if folder is None else shadow_files.open_folder(folder)
    missing, notes = job.find(kept)
    weight = 1 if isinstance(plan, OneByOne) else job.steps
    done = weight * (job.count - len(missing))
    if progress is not None and done:
        progress(done, weight * job.count)

    def tell(made: int, _: int) -> None:
        if progress is not None:
            progress(done + made, weight * job.count)

    for group in _groups(missing, job.at_once):
        reason = job.train(group, tell)
        if reason and reason not in notes:
            notes.append(reason)
        if kept is not None:
            for k in group:
                shadow_files.write(kept, *job.keys[k], job.models[k])
        done += weight * len(group)
    return Shadows(job.models, job.members, job.device, len(missing), tuple(notes))


@dataclass(frozen=True)
class Estimate:
    """How long shadow models will take.

    Attributes:
        seconds: For all that are missing.
        models: How many these are.
        steps: How many steps each makes.
    """

    seconds: float
    models: int
    steps: int


def estimate(
    build: Build,
    data: Any,
    memberships: Tensor,
    plan: ShadowPlan,
    *,
    folder: str | Path | None = None,
    device: str | torch.device = "auto",
    together: int | None = None,
    loss_fn: LossFn | None = None,
    trial_steps: int = 6,
) -> Estimate:
    """Measure a few steps of one group, and say how long `train_shadows` would take.

    Nothing is kept. The arguments are those of `train_shadows`.
    """
    job = _Job(build, data, memberships, plan, device, together, loss_fn)
    here = None if folder is None or not Path(folder).is_dir() else Path(folder)
    missing, _ = job.find(here)
    if not missing:
        return Estimate(0.0, 0, job.steps)
    groups = _groups(missing, job.at_once)
    total, trial = job.steps, whole("trial_steps", trial_steps, least=2)

    def seconds(steps: int) -> float:
        for k in groups[0]:
            job.models[k] = build(k)
        job.steps = steps
        start = time.perf_counter()
        job.train(groups[0], None)
        if job.device.type == "cuda":
            torch.cuda.synchronize(job.device)
        return time.perf_counter() - start

    seconds(1)  # what is made ready once
    short, long = seconds(1), seconds(1 + trial)
    each = max(long - short, 0.0) / trial
    one_group = max(short - each, 0.0) + total * each
    shares = sum(len(group) / len(groups[0]) for group in groups)
    return Estimate(one_group * shares, len(missing), total)


class _Job:
    """Checked arguments, the models and their keys."""

    def __init__(
        self,
        build: Build,
        data: Any,
        memberships: Tensor,
        plan: ShadowPlan | OneByOne,
        device: str | torch.device,
        together: int | None,
        loss_fn: LossFn | None,
    ) -> None:
        self.device = pick_device(device)
        self.plan, self.loss_fn = plan, loss_fn
        self.records: Records = as_records(data, self.device)
        self.members = _checked(memberships, self.records.n)
        self.count = len(self.members)
        self.steps = plan.steps_for(self.members) if isinstance(plan, ShadowPlan) else 0
        self.models = [build(k) for k in range(self.count)]
        if len(set(map(id, self.models))) != self.count:
            raise OptionError("build", build, "must make a new model for every number")
        if isinstance(plan, ShadowPlan):
            self.at_once = group_size(self.models[0], self.count, self.device)
        else:
            self.at_once = 1
        if together is not None:
            self.at_once = min(whole("together", together), self.count)
        self.keys: list[tuple[str, str]] = []  # a file's name, and what it must hold

    def find(self, folder: Path | None) -> tuple[list[int], list[str]]:
        """Load what lies in the folder: which models are missing, and what is odd about files."""
        if folder is None:
            return list(range(self.count)), []
        records = self.records.fingerprint()
        missing, notes = [], []
        for k, model in enumerate(self.models):
            facts = {
                "plan": self.plan.to_json(),
                "steps": self.steps,
                "loss": _described(self.loss_fn),
                "number": k,
                "device": self.device.type,  # coins differ between kinds
                "members": fingerprint([self.members[k]]),
            }
            name = shadow_files.content_key(facts, model)
            key = shadow_files.content_key({**facts, "records": records}, model)
            self.keys.append((name, key))
            problem = shadow_files.read(folder, name, key, model)
            if problem is not None:
                missing.append(k)
            else:
                model.to(self.device)
            if problem:
                notes.append(f"{problem}: model {k} was trained anew")
        return missing, notes

    def train(self, group: list[int], tell: Progress | None) -> str:
        """Train these models; why one after the other, if so."""
        plan = self.plan
        if isinstance(plan, OneByOne):
            for made, k in enumerate(group, 1):
                trained = plan.train(self.models[k], self._part(k), k)
                if not isinstance(trained, nn.Module):
                    raise OptionError("train", type(trained).__name__, "must return the model")
                self.models[k] = trained.to(self.device)
                if tell is not None:
                    tell(made, len(group))
            return ""
        done = train_together(
            [self.models[k] for k in group],
            self.records,
            method=plan.method(),
            optimizer=by_name(
                plan.optimizer,
                lr=plan.lr,
                momentum=plan.momentum,
                weight_decay=plan.weight_decay,
            ),
            steps=self.steps,
            subsets=self.members[group],
            coins=[shadow_coins(plan.seed, k) for k in group],
            n=plan.n,
            loss_fn=self.loss_fn,
            scheduler=plan.scheduler(self.steps),
            average=plan.average,
            device=self.device,
            on_step=tell,
        )
        return f"trained one after the other: {done.reason}" if done.reason else ""

    def _part(self, k: int) -> Any:
        rows = self.members[k].nonzero()[:, 0]
        if isinstance(self.records, TensorRecords):
            return take((self.records.inputs, self.records.targets), rows)
        return PartRecords(self.records, rows)


def group_size(model: nn.Module, count: int, device: torch.device) -> int:
    """How many models are worked on at once by default."""
    host = device.type == "cpu"
    taken = BYTES_PER_PARAMETER * max(sum(p.numel() for p in model.parameters()), 1)
    fitting = (HOST_BYTES if host else DEVICE_BYTES) // taken
    return max(min(count, fitting, MOST_ON_HOST if host else MOST_ON_DEVICE), 1)


def _checked(memberships: Tensor, n: int) -> Tensor:
    if memberships.dtype != torch.bool or memberships.dim() != 2 or memberships.shape[1] != n:
        raise OptionError(
            "memberships",
            f"{tuple(memberships.shape)} {memberships.dtype}",
            f"must be booleans of shape (models, {n}), a column for each record",
        )
    if not len(memberships):
        raise OptionError("memberships", tuple(memberships.shape), "must have at least one row")
    members = memberships.detach().cpu().clone()
    empty = (~members.any(1)).nonzero()
    if len(empty):
        raise DataError(f"memberships: model {int(empty[0])} has no record to be trained on")
    return members


def _described(loss_fn: LossFn | None) -> str:
    if isinstance(loss_fn, nn.Module):
        return f"{loss_fn!r} {sorted((k, str(v)) for k, v in vars(loss_fn).items() if k[0] != '_')}"
    return str(getattr(loss_fn, "__qualname__", loss_fn))


def _groups(numbers: list[int], size: int) -> list[list[int]]:
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
