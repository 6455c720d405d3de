"""Membership attacks on a trained model, or on the procedure that trains such models.

`attack_model` attacks one model as it is: its training records against held-out ones. Where these
two come from different sources, an attack tells the sources apart as well, and its scores are above
chance (or below) for a model that never saw either. `attack_procedure` has no such excuse: models
are trained on random halves of all records, some to be attacked and the others as shadow models.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from reticent.audit import attacks as known
from reticent.audit.attacks.base import POPULATION, SHADOW_POPULATION, SHADOWS, WHITEBOX
from reticent.audit.duplicates import Duplicates, near_duplicates
from reticent.audit.metrics import Leakage, Spread, combine
from reticent.audit.shadows import (
    Estimate,
    OneByOne,
    ShadowPlan,
    Shadows,
    estimate,
    in_out,
    train_shadows,
)
from reticent.audit.signals import Evidence, look_inside, query
from reticent.audit.splits import take
from reticent.data.records import TensorRecords, as_records
from reticent.errors import DataError, OptionError, whole

Build = Callable[[int], nn.Module]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Attacking:
    """Which attacks, on how many records, with how many shadow models.

    Attributes:
        attacks: Names of attacks.
        shadows: How many shadow models, an even number; each is trained on half of the records.
        records: How many members, and as many non-members, are audited at most.
        population: How many records are set aside for attacks that compare with a population.
        duplicates: What happens to non-members that are (nearly) members too: `exclude` them, or
            only `report` how many there are.
        confidence: Of the intervals.
        seed: Decides who is audited, and what shadow models are trained on.
    """

    attacks: tuple[str, ...] = known.NAMES
    shadows: int = 8
    records: int = 5000
    population: int = 2000
    duplicates: str = "exclude"
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.attacks:
            known.describe(name)  # refuses others
        if not self.attacks:
            raise OptionError("attacks", (), f"name at least one of {', '.join(known.NAMES)}")
        if whole("shadows", self.shadows, least=2) % 2:
            raise OptionError("shadows", self.shadows, "must be even: records are in half of them")
        whole("records", self.records, least=2)
        whole("population", self.population, least=2)
        if self.duplicates not in ("exclude", "report"):
            raise OptionError("duplicates", self.duplicates, "must be exclude or report")

    def needs(self, *kinds: str) -> bool:
        """Whether some attack needs one of these kinds of evidence."""
        return any(set(kinds) & set(known.describe(name).needs) for name in self.attacks)


@dataclass(frozen=True)
class MembershipReport:
    """What the attacks found. Computed from private records without noise: as private as these."""

    about: str
    results: dict[str, tuple[Leakage, ...]]
    shadows: int
    duplicates: dict[str, Any] | None
    notes: tuple[str, ...] = field(default=())

    def combined(self) -> dict[str, dict[str, Spread]]:
        """Of every attack, mean and spread over the targets."""
        return {name: combine(found) for name, found in self.results.items()}

    def curves(self) -> dict[str, list[tuple[tuple[float, float], ...]]]:
        """Of every attack, a ROC curve for each target, to be drawn."""
        return {name: [leakage.roc for leakage in found] for name, found in self.results.items()}

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "about": self.about,
            "shadows": self.shadows,
            "duplicates": self.duplicates,
            "notes": list(self.notes),
            "attacks": {
                name: [leakage.to_json() for leakage in found]
                for name, found in self.results.items()
            },
        }


def attack_model(
    model: nn.Module,
    train: Any,
    held_out: Any,
    *,
    build: Build,
    plan: ShadowPlan | OneByOne,
    attacking: Attacking | None = None,
    folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    on_estimate: Callable[[Estimate], None] | None = None,
) -> MembershipReport:
    """Attack a model: who of `train` and `held_out` was it trained on?

    Args:
        model: The target.
        train: The records it was trained on, (inputs, labels).
        held_out: Others; a third of them at most is the population.
        build: From a number to an untrained shadow model.
        plan: How shadow models are trained.
        attacking: Which attacks, and how thoroughly.
        folder: Where shadow models are kept, to go on with.
        device: Where models are asked and trained.
        progress: Of the shadow models: steps made, and steps in all.
        on_estimate: Told how long the shadow models will take, before they are trained; a few
            steps of them are made to find out. Not for plans of the user's own.
    """
    attacking = Attacking() if attacking is None else attacking
    members, others = _tensors(train), _tensors(held_out)
    found, notes = _duplicates(others, members, device)
    keep = torch.ones(others.n, dtype=torch.bool)
    if found is not None and attacking.duplicates == "exclude":
        keep = ~found.near_across
        if not int(keep.sum()):
            raise DataError("every held-out record is nearly a training record: nobody to compare")
    generator = torch.Generator().manual_seed(attacking.seed)
    rows = _shuffled(keep.nonzero()[:, 0], generator)
    population = rows[: min(attacking.population, len(rows) // 3)]
    outside = rows[len(population) :]
    each = min(attacking.records, len(outside), members.n)
    inside = _shuffled(torch.arange(members.n), generator)[:each]
    # the pool of the shadow models: all training records, then the audited others
    outside = outside[:each]
    inputs, labels = _joined(members, take((others.inputs, others.targets), outside))
    audited = torch.cat([inside, members.n + torch.arange(each)])
    shadows = None
    if attacking.needs(SHADOWS, SHADOW_POPULATION):
        design = in_out(len(labels), attacking.shadows, seed=attacking.seed)
        shadows = _trained(
            build, (inputs, labels), design, plan, folder, device, progress, on_estimate
        )
    notes += [] if shadows is None else list(shadows.notes)
    truth = torch.arange(2 * each) < each
    beside = take((others.inputs, others.targets), population)
    evidence = _evidence(model, take((inputs, labels), audited), truth, beside, attacking, device)
    if shadows is not None:
        evidence = _with_shadows(evidence, shadows, inputs, audited, beside[0])
    results, skipped = _judged(evidence, attacking)
    return MembershipReport(
        "this model: its training records against held-out ones",
        {name: (leakage,) for name, leakage in results.items()},
        0 if shadows is None else len(shadows.models),
        None if found is None else found.to_json(),
        (*notes, *skipped),
    )


def attack_procedure(
    data: Any,
    *,
    build: Build,
    plan: ShadowPlan | OneByOne,
    attacking: Attacking | None = None,
    targets: int = 1,
    folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    on_estimate: Callable[[Estimate], None] | None = None,
) -> MembershipReport:
    """Attack models that are trained by a procedure on random halves of the records.

    `targets` models are attacked, each trained on a random half of the records, with the same
    shadow models. Members and non-members come from one source, so a procedure that remembers
    nothing is at chance.

    Args:
        data: All records, (inputs, labels).
        build: From a number to an untrained model.
        plan: How models are trained, targets and shadows alike.
        attacking: Which attacks, and how thoroughly.
        targets: How many models are attacked.
        folder: Where models are kept, to go on with.
        device: Where models are asked and trained.
        progress: Steps made, and steps in all.
        on_estimate: As for `attack_model`.
    """
    attacking = Attacking() if attacking is None else attacking
    pool = _tensors(data)
    found, notes = _duplicates(pool, None, device)
    generator = torch.Generator().manual_seed(attacking.seed)
    rows = torch.arange(pool.n)
    if found is not None and attacking.duplicates == "exclude":
        rows = (~found.repeats).nonzero()[:, 0]  # one of each kind stays
    rows = _shuffled(rows, generator)
    population = rows[: min(attacking.population, len(rows) // 6)]
    rows = rows[len(population) :].sort().values
    if len(rows) < 4:
        raise DataError(f"{len(rows)} records are left to be audited: give more")
    records = take((pool.inputs, pool.targets), rows)
    beside = take((pool.inputs, pool.targets), population)
    members = _design(len(rows), whole("targets", targets), attacking)
    trained = _trained(build, records, members, plan, folder, device, progress, on_estimate)
    others = Shadows(trained.models[targets:], members[targets:], trained.device, 0)
    results: dict[str, list[Leakage]] = {}
    skipped: tuple[str, ...] = ()
    for target in range(targets):
        audited = _balanced(members[target], attacking.records, generator)
        evidence = _evidence(
            trained.models[target],
            take(records, audited),
            members[target][audited],
            beside,
            attacking,
            device,
        )
        if attacking.needs(SHADOWS, SHADOW_POPULATION):
            evidence = _with_shadows(evidence, others, records[0], audited, beside[0])
        judged, skipped = _judged(evidence, attacking)
        for name, leakage in judged.items():
            results.setdefault(name, []).append(leakage)
    return MembershipReport(
        "the procedure: models trained on random halves of the records",
        {name: tuple(found) for name, found in results.items()},
        attacking.shadows,
        None if found is None else found.to_json(),
        (*notes, *trained.notes, *skipped),
    )


def _design(n: int, targets: int, attacking: Attacking) -> Tensor:
    """Memberships of the targets, each a random half of its own, and then of the shadow models.

    A record is in exactly half of the shadow models, whatever targets it is in. Were it in half of
    all models, those with it would be one fewer for a member of the target, and an attack could
    count them.
    """
    generator = torch.Generator().manual_seed(attacking.seed)
    halves = torch.zeros((targets, n), dtype=torch.bool)
    for row in halves:
        row[torch.randperm(n, generator=generator)[: n // 2]] = True
    return torch.cat([halves, in_out(n, attacking.shadows, seed=attacking.seed)])


def _tensors(data: Any) -> TensorRecords:
    records = as_records(data)
    if not isinstance(records, TensorRecords):
        inputs, targets = records.fetch(torch.arange(records.n))
        records = TensorRecords(inputs, targets)
    if not isinstance(records.targets, Tensor) or records.targets.is_floating_point():
        raise DataError("membership attacks need whole numbers for labels, one for each record")
    return records


def _duplicates(
    mine: TensorRecords, others: TensorRecords | None, device: torch.device | str
) -> tuple[Duplicates | None, list[str]]:
    if not isinstance(mine.inputs, Tensor):
        return None, ["inputs of several parts were not searched for duplicates"]
    theirs = None if others is None else others.inputs
    found = near_duplicates(mine.inputs, theirs, within=others is None, device=device)
    return found, []


def _shuffled(rows: Tensor, generator: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=generator)]


def _balanced(members: Tensor, most: int, generator: torch.Generator) -> Tensor:
    """As many members as others, at random."""
    sides = [_shuffled(side.nonzero()[:, 0], generator) for side in (members, ~members)]
    each = min(most, *map(len, sides))
    return torch.cat([side[:each] for side in sides])


def _joined(records: TensorRecords, more: tuple[Any, Any]) -> tuple[Any, Any]:
    joined: tuple[Any, Any] = tree_map(
        lambda first, second: torch.cat([first, second]), (records.inputs, records.targets), more
    )
    return joined


def _trained(
    build: Build,
    pool: tuple[Any, Any],
    members: Tensor,
    plan: ShadowPlan | OneByOne,
    folder: str | Path | None,
    device: torch.device | str,
    progress: Progress | None,
    on_estimate: Callable[[Estimate], None] | None,
) -> Shadows:
    if on_estimate is not None and isinstance(plan, ShadowPlan):
        on_estimate(estimate(build, pool, members, plan, folder=folder, device=device))
    return train_shadows(
        build, pool, members, plan, folder=folder, device=device, progress=progress
    )


def _evidence(
    model: nn.Module,
    audited: tuple[Any, Any],
    members: Tensor,
    population: tuple[Any, Any],
    attacking: Attacking,
    device: torch.device | str,
) -> Evidence:
    return Evidence(
        query(model, *audited, device=device),
        members,
        population=query(model, *population, device=device)
        if attacking.needs(POPULATION, SHADOW_POPULATION) and len(population[1])
        else None,
        whitebox=look_inside(model, *audited, device=device) if attacking.needs(WHITEBOX) else None,
    )


def _with_shadows(
    evidence: Evidence, shadows: Shadows, inputs: Any, audited: Tensor, population: Any
) -> Evidence:
    return replace(
        evidence,
        shadow_logits=shadows.logits(take(inputs, audited)),
        shadow_members=shadows.members[:, audited],
        shadow_population=shadows.logits(population),
    )


def _judged(evidence: Evidence, attacking: Attacking) -> tuple[dict[str, Leakage], tuple[str, ...]]:
    results, skipped = {}, []
    for name in attacking.attacks:
        try:
            results[name] = known.build(name).measure(evidence, confidence=attacking.confidence)
        except DataError as error:
            skipped.append(f"{name}: {error}")
    return results, tuple(skipped)
