"""The attacks of a table: a target and shadow models for one job, and all its measures from them.

The pool is the training split, or as much of it as the table asks for; where it asks for more than
there is, records of the test split join, and a part of them stays outside. Accuracy is that of the
attacked model on the test records that are not in the pool.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reticent import training
from reticent.audit.membership import (
    Attacking,
    MembershipReport,
    attack_model,
    attack_procedure,
    attack_split,
)
from reticent.audit.metrics import Leakage
from reticent.audit.shadows import OneByOne, ShadowPlan
from reticent.cli.auditing import shadow_plan
from reticent.cli.building import budget_of, build_model, run_options
from reticent.cli.preparing import STATISTICS_FILE, Prepared, prepare
from reticent.cli.settings import Settings
from reticent.errors import OptionError, ReticentError
from reticent.files import read_json, to_json, write_atomically
from reticent.privacy import Ledger
from reticent.reproduction.claims import Planned, planned
from reticent.reproduction.jobs import Job, Value
from reticent.reproduction.measures import ACCURACY, BEST, REJECTED, Measure, parse
from reticent.training.planning import plan
from reticent.training.train import pick_device

Records = tuple[Tensor, Tensor]
Progress = Callable[[int, int], None]
POPULATION = 2000
HELD_BACK = 5000  # test records that no pool takes, or half of them
_TARGET = "target.json"


@dataclass(frozen=True)
class Attacked:
    """What was measured of a job with attacks."""

    values: dict[str, Value]
    intervals: dict[str, tuple[float, float]]
    planned: Planned
    sound_epsilon: float | None
    steps: int | None
    notes: tuple[str, ...]


def attack(job: Job, folder: Path, *, progress: Progress | None = None) -> Attacked:
    """Train the models of a job and attack the target; what is in `folder` is not trained again."""
    settings = job.settings
    budget = budget_of(settings)
    kept = (folder / STATISTICS_FILE).exists()
    prepared = prepare(settings, budget, job.coins(), folder, resume=kept, overwrite=True)
    if not kept:
        prepared.keep(folder)
    pool, outside = cut(job, prepared.splits.train, prepared.splits.test)
    n = members_of(job, len(pool[1]))
    procedure = _Procedure(job, planned(settings, job.variant, n), prepared, n, folder)
    report = procedure.attacked(pool, outside, progress)
    target = procedure.target
    if not all(bool(torch.isfinite(p).all()) for p in target.parameters()):
        raise ReticentError("diverged: weights of the attacked model are not finite")
    told = procedure.told()
    accuracy = training.evaluate(target, outside, device=procedure.device)["accuracy"]
    values: dict[str, Value] = {}
    intervals = {}
    for measure in map(parse, job.measures):
        if measure.name == ACCURACY:
            values[ACCURACY] = 100 * accuracy
        elif measure.name == REJECTED:
            values[REJECTED] = told["rejected"]
        else:
            value, ends = _found(report, measure, job)
            values[measure.name] = value
            if ends is not None:
                intervals[measure.name] = ends
    notes = (*report.notes, f"the attacked model had {n} records")
    return Attacked(values, intervals, procedure.planned, told["epsilon"], told["steps"], notes)


def members_of(job: Job, pool: int) -> int:
    """How many records of a pool the target is trained on."""
    if job.design == "model":
        return pool
    if job.design == "split":
        return pool // 3
    return (pool - min(POPULATION, pool // 6)) // 2


def cut(job: Job, train: Records, test: Records) -> tuple[Records, Records]:
    """The pool of target and shadow models, and the test records that are outside."""
    generator = torch.Generator().manual_seed(job.settings.seed)
    rows = torch.randperm(len(train[1]), generator=generator)
    spare = torch.randperm(len(test[1]), generator=generator)
    need = len(rows)
    if job.records is not None:
        both = 2 * job.records
        beside = min(POPULATION, -(-both // 5))  # the population is a sixth of a pool at most
        need = {"split": 3 * job.records, "halves": both + beside}.get(job.design, job.records)
    if need <= len(rows):
        return _take(train, rows[:need].sort().values), test
    most = 0 if job.design == "model" else len(spare) - min(HELD_BACK, len(spare) // 2)
    extra = min(need - len(rows), most)
    joined = spare[:extra].sort().values
    inputs = torch.cat([train[0], test[0][joined]])
    labels = torch.cat([train[1], test[1][joined]])
    return (inputs, labels), _take(test, spare[extra:].sort().values)


def _take(data: Records, rows: Tensor) -> Records:
    return data[0][rows], data[1][rows]


def _found(
    report: MembershipReport, measure: Measure, job: Job
) -> tuple[float | None, tuple[float, float] | None]:
    """A metric of one attack, or the largest of it over the job's attacks."""
    tried = job.attacks if measure.attack == BEST else (str(measure.attack),)
    found = [_metric(report.results[name][0], measure) for name in tried if name in report.results]
    present = [one for one in found if one is not None]
    if not present:
        return None, None
    best = max(present, key=lambda one: one[0])
    # the interval is of one attack that was chosen beforehand
    return best[0], None if measure.attack == BEST else best[1]


def _metric(leakage: Leakage, measure: Measure) -> tuple[float, tuple[float, float]] | None:
    if measure.metric == "tpr":
        found = leakage.tpr_at(measure.level or 0.0).tpr
    else:
        found = getattr(leakage, measure.metric)
    return None if found is None else (found.value, (found.low, found.high))


class _Procedure:
    """How models of a job are trained, on `n` records each."""

    def __init__(
        self, job: Job, planned: Planned, prepared: Prepared, n: int, folder: Path
    ) -> None:
        self.job, self.planned, self.prepared = job, planned, prepared
        self.n, self.folder = n, folder
        self.device = pick_device(job.settings.device)
        self.target: nn.Module
        batch = getattr(planned.method, "batch", 1)
        if batch > n:  # the whole data set has more records than the target's part
            self.method = replace(planned.method, batch=n)  # type: ignore[call-arg]
        else:
            self.method = planned.method

    @property
    def settings(self) -> Settings:
        """Those of the variant."""
        return self.planned.settings

    def ledger(self) -> Ledger:
        """A ledger of its own with what was paid for statistics of the records."""
        own, paid = Ledger(budget_of(self.settings)), self.prepared.ledger
        for entry in () if paid is None else paid.entries:  # the variant may have another budget
            own.charge(entry.charge, entry.purpose, count=entry.count)
        return own

    def fresh(self, number: int) -> nn.Module:
        """The untrained model; model 0 is the target."""
        model = build_model(self.settings, self.prepared.splits)
        if number == 0:
            self.target = model
        return model

    def attacked(
        self, pool: Records, outside: Records, progress: Progress | None
    ) -> MembershipReport:
        """Train and attack as the design says."""
        job = self.job
        attacking = Attacking(
            attacks=job.attacks,
            shadows=job.shadows,
            records=job.audited,
            population=POPULATION,
            seed=job.settings.seed,
        )
        common: dict[str, Any] = {
            "attacking": attacking,
            "build": self.fresh,
            "plan": self.plan(),
            "folder": self.folder / "shadows",
            "device": self.device,
            "progress": progress,
        }
        if job.design == "split":
            return attack_split(pool, **common)
        if job.design == "halves":
            return attack_procedure(pool, targets=1, **common)
        target = self.train(self.fresh(0), pool, 0)
        common |= {"build": lambda number: build_model(self.settings, self.prepared.splits)}
        report = attack_model(target, pool, outside, **common)
        self.target = target
        return report

    def plan(self) -> ShadowPlan | OneByOne:
        """Several at once where that is the same; else one after the other."""
        settings = self.settings
        ledger = self.ledger()
        settled, steps = plan(
            self.method, budget_of(settings), self.n, settings.steps, settings.epochs, ledger
        )
        facts = {"key": self.job.key, "n": self.n}
        shadows = shadow_plan(settings, settled, steps, self.n, settings.seed)
        if shadows is None or self.job.design == "model" or REJECTED in self.job.measures:
            return OneByOne(self.train, facts)
        epsilon = None
        if budget_of(settings) is not None:
            for charge, purpose in settled.price(self.n):
                ledger.charge(charge, purpose, count=steps)
            epsilon = ledger.epsilon(settings.delta)
        self._tell(epsilon, steps, None)
        return shadows

    def train(self, model: nn.Module, data: Any, number: int) -> nn.Module:
        """Train model `number`; what is known of the target is written down."""
        rejecting = number == 0 and REJECTED in self.job.measures
        trained = training.run(
            model,
            data,
            method=self.method,
            budget=budget_of(self.settings),
            ledger=self.ledger(),
            n=self.n,
            device=self.device,
            coins=self.job.coins(number + 1),
            private_diagnostics=rejecting,
            **run_options(self.settings, self.n),
        )
        result = trained.finish()
        if number == 0:
            private = result.guarantee == "differential-privacy" and result.budget is not None
            rejected = rejected_share(trained) if rejecting else None
            self._tell(result.epsilon if private else None, result.steps, rejected)
        return result.model

    def _tell(self, epsilon: float | None, steps: int, rejected: float | None) -> None:
        told = {"epsilon": epsilon, "steps": steps, "rejected": rejected}
        write_atomically(self.folder / _TARGET, to_json(told), mode=0o600)

    def told(self) -> dict[str, Any]:
        """What is known of the target, in this sitting or an earlier one."""
        return dict(read_json(self.folder / _TARGET))


def rejected_share(trained: training.Training) -> float:
    """Rejected candidates in percent, from private diagnostics."""
    lines = trained.run.diagnostics or []
    if lines and all("trials" in line for line in lines):  # until one is accepted
        made = sum(line["trials"] for line in lines)
        return 100 * (made - len(lines)) / made
    if lines and all("accepted" in line for line in lines):
        return 100 * (1 - sum(line["accepted"] for line in lines) / len(lines))
    raise OptionError("measures", REJECTED, f"{trained.method.name} rejects nothing")
