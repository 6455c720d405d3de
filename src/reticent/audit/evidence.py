"""From records and models to the evidence that attacks look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from reticent.audit import attacks as known
from reticent.audit.duplicates import Duplicates, near_duplicates
from reticent.audit.metrics import Leakage
from reticent.audit.shadows import Estimate, OneByOne, ShadowPlan, Shadows, estimate, train_shadows
from reticent.audit.signals import Evidence, WhiteBox, look_inside, query
from reticent.audit.splits import take
from reticent.data.records import TensorRecords, as_records
from reticent.errors import DataError, ModelError, OptionError

Build = Callable[[int], nn.Module]
Progress = Callable[[int, int], None]


def tensor_records(data: Any) -> TensorRecords:
    """The records as tensors; their labels must be whole numbers."""
    records = as_records(data)
    if not isinstance(records, TensorRecords):
        inputs, targets = records.fetch(torch.arange(records.n))
        records = TensorRecords(inputs, targets)
    if not isinstance(records.targets, Tensor) or records.targets.is_floating_point():
        raise DataError("membership attacks need whole numbers for labels, one for each record")
    return records


def find_duplicates(
    mine: TensorRecords, others: TensorRecords | None, device: torch.device | str
) -> tuple[Duplicates | None, list[str]]:
    """Repeated records, and what could not be searched for them."""
    if not isinstance(mine.inputs, Tensor):
        return None, ["inputs of several parts were not searched for duplicates"]
    theirs = None if others is None else others.inputs
    found = near_duplicates(mine.inputs, theirs, within=others is None, device=device)
    return found, []


def shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    """The same in random order."""
    return rows[torch.randperm(len(rows), generator=generator)]


def balanced(members: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """As many members as others, at random."""
    sides = [shuffled(side.nonzero()[:, 0], generator) for side in (members, ~members)]
    each = min(most, *map(len, sides))
    return torch.cat([side[:each] for side in sides])


def join(records: TensorRecords, more: tuple[Any, Any]) -> tuple[Any, Any]:
    """The records, then more of them."""
    both: tuple[Any, Any] = tree_map(
        lambda first, second: torch.cat([first, second]), (records.inputs, records.targets), more
    )
    return both


def train_models(
    build: Build,
    pool: tuple[Any, Any],
    members: Tensor,
    plan: ShadowPlan | OneByOne,
    folder: str | Path | None,
    device: torch.device | str,
    progress: Progress | None,
    on_estimate: Callable[[Estimate], None] | None,
) -> Shadows:
    """Train the models of a design; says first how long it will take, if asked to."""
    if on_estimate is not None and isinstance(plan, ShadowPlan):
        on_estimate(estimate(build, pool, members, plan, folder=folder, device=device))
    return train_shadows(
        build, pool, members, plan, folder=folder, device=device, progress=progress
    )


def gather(
    model: nn.Module,
    audited: tuple[Any, Any],
    members: Tensor,
    population: tuple[Any, Any],
    whitebox: bool,
    device: torch.device | str,
) -> Evidence:
    """What the target says of the audited records and of the population."""
    return Evidence(
        query(model, *audited, device=device),
        members,
        population=query(model, *population, device=device) if len(population[1]) else None,
        whitebox=_inside(model, audited, device) if whitebox else None,
    )


def _inside(
    model: nn.Module, audited: tuple[Any, Any], device: torch.device | str
) -> WhiteBox | None:
    """None for a model without a last linear layer: the attack then says that it lacks this."""
    try:
        return look_inside(model, *audited, device=device)
    except (ModelError, OptionError):
        return None


def with_shadows(
    evidence: Evidence, shadows: Shadows, inputs: Any, audited: Tensor, population: Any
) -> Evidence:
    """The same, with what shadow models say."""
    return replace(
        evidence,
        shadow_logits=shadows.logits(take(inputs, audited)),
        shadow_members=shadows.members[:, audited],
        shadow_population=shadows.logits(population),
    )


def judge(
    evidence: Evidence, names: Sequence[str], confidence: float, *, online: bool = True
) -> tuple[dict[str, Leakage], tuple[str, ...]]:
    """What each attack finds, and why some could not be made."""
    results, skipped = {}, []
    for name in names:
        offline = not online and "online" in known.describe(name).options
        try:
            attack = known.build(name, **({"online": False} if offline else {}))
            results[name] = attack.measure(evidence, confidence=confidence)
        except DataError as error:
            skipped.append(f"{name}: {error}")
    return results, tuple(skipped)
