"""Membership attacks on a trained model, or on the procedure that trains such models.

`attack_model` attacks one model as it is: its training records against held-out ones. Where these
two come from different sources, an attack tells the sources apart as well, and its scores are above
chance (or below) for a model that never saw either. `attack_procedure` has no such excuse: models
are trained on random halves of all records, some to be attacked and the others as shadow models.
`attack_split` does the same with the split of the papers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reticent.audit import attacks as known
from reticent.audit.attacks.base import SHADOW_POPULATION, SHADOWS, WHITEBOX
from reticent.audit.evidence import (
    Build,
    Progress,
    balanced,
    find_duplicates,
    gather,
    join,
    judge,
    shuffled,
    tensor_records,
    train_models,
    with_shadows,
)
from reticent.audit.metrics import Leakage, Spread, combine
from reticent.audit.shadows import Estimate, OneByOne, ShadowPlan, Shadows, in_out
from reticent.audit.splits import split, take
from reticent.errors import DataError, OptionError, whole


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
    members, others = tensor_records(train), tensor_records(held_out)
    found, notes = find_duplicates(others, members, device)
    keep = torch.ones(others.n, dtype=torch.bool)
    if found is not None and attacking.duplicates == "exclude":
        keep = ~found.near_across
        if not int(keep.sum()):
            raise DataError("every held-out record is nearly a training record: nobody to compare")
    generator = torch.Generator().manual_seed(attacking.seed)
    rows = shuffled(keep.nonzero()[:, 0], generator)
    population = rows[: min(attacking.population, len(rows) // 3)]
    outside = rows[len(population) :]
    if len(rows) < 6:
        raise DataError(
            f"{len(rows)} held-out records that are no training records: give 6 or more"
        )
    each = min(attacking.records, len(outside), members.n)
    inside = shuffled(torch.arange(members.n), generator)[:each]
    # the pool of the shadow models: all training records, then the audited others
    outside = outside[:each]
    inputs, labels = join(members, take((others.inputs, others.targets), outside))
    audited = torch.cat([inside, members.n + torch.arange(each)])
    shadows = None
    if attacking.needs(SHADOWS, SHADOW_POPULATION):
        design = in_out(len(labels), attacking.shadows, seed=attacking.seed)
        shadows = train_models(
            build, (inputs, labels), design, plan, folder, device, progress, on_estimate
        )
    notes += [] if shadows is None else list(shadows.notes)
    truth = torch.arange(2 * each) < each
    beside = take((others.inputs, others.targets), population)
    evidence = gather(
        model, take((inputs, labels), audited), truth, beside, attacking.needs(WHITEBOX), device
    )
    if shadows is not None:
        evidence = with_shadows(evidence, shadows, inputs, audited, beside[0])
    results, skipped = judge(evidence, attacking.attacks, attacking.confidence)
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
    pool = tensor_records(data)
    found, notes = find_duplicates(pool, None, device)
    generator = torch.Generator().manual_seed(attacking.seed)
    rows = torch.arange(pool.n)
    if found is not None and attacking.duplicates == "exclude":
        rows = (~found.repeats).nonzero()[:, 0]  # one of each kind stays
    rows = shuffled(rows, generator)
    population = rows[: min(attacking.population, len(rows) // 6)]
    rows = rows[len(population) :].sort().values
    if len(rows) < 4:
        raise DataError(f"{len(rows)} records are left to be audited: give more")
    records = take((pool.inputs, pool.targets), rows)
    beside = take((pool.inputs, pool.targets), population)
    members = _design(len(rows), whole("targets", targets), attacking)
    trained = train_models(build, records, members, plan, folder, device, progress, on_estimate)
    others = Shadows(trained.models[targets:], members[targets:], trained.device, 0)
    results: dict[str, list[Leakage]] = {}
    skipped: tuple[str, ...] = ()
    for target in range(targets):
        audited = balanced(members[target], attacking.records, generator)
        evidence = gather(
            trained.models[target],
            take(records, audited),
            members[target][audited],
            beside,
            attacking.needs(WHITEBOX),
            device,
        )
        if attacking.needs(SHADOWS, SHADOW_POPULATION):
            evidence = with_shadows(evidence, others, records[0], audited, beside[0])
        judged, skipped = judge(evidence, attacking.attacks, attacking.confidence)
        for name, leakage in judged.items():
            results.setdefault(name, []).append(leakage)
    return MembershipReport(
        "the procedure: models trained on random halves of the records",
        {name: tuple(found) for name, found in results.items()},
        attacking.shadows,
        None if found is None else found.to_json(),
        (*notes, *trained.notes, *skipped),
    )


def attack_split(
    data: Any,
    *,
    build: Build,
    plan: ShadowPlan | OneByOne,
    attacking: Attacking | None = None,
    folder: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
    on_estimate: Callable[[Estimate], None] | None = None,
) -> MembershipReport:
    """Attack as the papers do: the records cut 2:1:2:1 for target and shadow models (`splits`).

    The target is trained on the first part and judged on it and the second; shadow models are
    trained on as many records of the other two parts, and no attack needs a shadow model that saw
    an audited record: LiRA and RMIA are offline here. These two parts are the population too.

    Args:
        data: All records, (inputs, labels).
        build: From a number to an untrained model.
        plan: How models are trained, target and shadows alike.
        attacking: Which attacks, and how thoroughly.
        folder: Where models are kept, to go on with.
        device: Where models are asked and trained.
        progress: Steps made, and steps in all.
        on_estimate: As for `attack_model`.
    """
    attacking = Attacking() if attacking is None else attacking
    pool = tensor_records(data)
    found, notes = find_duplicates(pool, None, device)
    rows = torch.arange(pool.n)
    if found is not None and attacking.duplicates == "exclude":
        rows = (~found.repeats).nonzero()[:, 0]
    records = take((pool.inputs, pool.targets), rows)
    parts = split(len(rows), labels=records[1], seed=attacking.seed)
    shadowed = parts.shadow_memberships(attacking.shadows, seed=attacking.seed)
    members = torch.cat([parts.mask("target_train")[None], shadowed])
    trained = train_models(build, records, members, plan, folder, device, progress, on_estimate)
    audited, truth = parts.audited(attacking.records, seed=attacking.seed)
    own = torch.cat([parts.shadow_train, parts.shadow_test])
    own = shuffled(own, torch.Generator().manual_seed(attacking.seed))[: attacking.population]
    beside = take(records, own)
    evidence = gather(
        trained.models[0], take(records, audited), truth, beside, attacking.needs(WHITEBOX), device
    )
    others = Shadows(trained.models[1:], shadowed, trained.device, 0)
    evidence = with_shadows(evidence, others, records[0], audited, beside[0])
    evidence = replace(evidence, shadow_population_members=shadowed[:, own])
    results, skipped = judge(evidence, attacking.attacks, attacking.confidence, online=False)
    return MembershipReport(
        "the procedure: records cut 2:1:2:1 for target and shadow models",
        {name: (leakage,) for name, leakage in results.items()},
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
