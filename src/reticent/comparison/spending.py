"""What all models of a comparison cost together, where the records are somebody's own.

Models that were planned in one go are composed in one ledger. A call that asks for more was written
by somebody who may have seen the results so far, so its ε is added to what was spent before: basic
composition holds however later trainings were chosen (Rogers, Roth, Ullman, Vadhan 2016), a joint
ledger only for charges that were fixed beforehand.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reticent.privacy import Budget, Ledger


@dataclass(frozen=True)
class Spent:
    """One model that was begun.

    Attributes:
        method: Its method.
        budget: What it may spend; None for a method without an ε.
        ledger: What it has paid, if it is finished.
    """

    method: str
    budget: Budget | None
    ledger: dict[str, Any] | None = None


@dataclass(frozen=True)
class Group:
    """Models that were planned in one go.

    Attributes:
        spent: Those that were begun.
        whole: Whether these are all.
    """

    spent: tuple[Spent, ...]
    whole: bool = True


@dataclass(frozen=True)
class Total:
    """What holds for somebody who sees all the models, and what follows from them.

    Attributes:
        epsilon: Of the models that have an ε, an upper bound.
        delta: At this δ.
        models: How many of them there are.
        added: The sum of their single ε, which one would state without a ledger.
        unfinished: How many of them count with their whole budget, since they have no result.
        unbounded: Methods of models without an ε: if there are any, all together have none.
    """

    epsilon: float
    delta: float
    models: int
    added: float
    unfinished: int = 0
    unbounded: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data; no ε where some model has none."""
        bounded = math.isfinite(self.epsilon)
        return {
            "epsilon": None if self.unbounded or not bounded else self.epsilon,
            "epsilon_of_private_models": self.epsilon if bounded else None,
            "delta": self.delta,
            "models": self.models,
            "added": self.added if math.isfinite(self.added) else None,
            "unfinished": self.unfinished,
            "unbounded": list(self.unbounded),
        }


def total(groups: Sequence[Group]) -> Total:
    """Everything that was begun, composed.

    Example:
        >>> from reticent.privacy import SampledGaussian
        >>> ledger = Ledger(Budget(1, 1e-5))
        >>> ledger.charge(SampledGaussian(rate=0.01, multiplier=2.0), "training", count=100)
        >>> one = Spent("dpsgd", Budget(1, 1e-5), ledger.to_json())
        >>> both = total([Group((one, one))])
        >>> ledger.epsilon(1e-5) < both.epsilon < both.added
        True
    """
    everyone = [spent for group in groups for spent in group.spent]
    private = [spent for spent in everyone if spent.budget is not None]
    parts = [_of_group(group) for group in groups]
    return Total(
        epsilon=math.fsum(epsilon for epsilon, _ in parts),
        delta=math.fsum(delta for _, delta in parts),
        models=len(private),
        added=math.fsum(_single(spent)[0] for spent in private),
        unfinished=sum(spent.ledger is None for spent in private),
        unbounded=tuple(dict.fromkeys(s.method for s in everyone if s.budget is None)),
    )


def _single(spent: Spent) -> tuple[float, float]:
    """ε and δ of one model by itself; its budget where nothing smaller is known."""
    assert spent.budget is not None
    budget = spent.budget
    if spent.ledger is None:
        return budget.epsilon, budget.delta
    return Ledger.from_json(spent.ledger).epsilon(budget.delta), budget.delta


def _of_group(group: Group) -> tuple[float, float]:
    """(ε, δ) of the models of one plan.

    Where some were given up, who knows why: what was seen may have decided it, so they are added.
    What a filter paid was not fixed beforehand, and counts as its pledge.
    """
    private = [spent for spent in group.spent if spent.budget is not None]
    fixed: list[Spent] = []
    pairs: list[tuple[float, float]] = []
    joint = Ledger()
    for spent in private:
        ledger = None if spent.ledger is None else Ledger.from_json(spent.ledger)
        if not group.whole or ledger is None or ledger.adaptive:
            pairs.append(_single(spent))
            continue
        fixed.append(spent)
        for entry in ledger.entries:
            joint.charge(entry.accounted, entry.purpose, count=entry.count)
    if fixed:
        delta = max(spent.budget.delta for spent in fixed if spent.budget is not None)
        composed = joint.epsilon(delta)
        singles = [_single(spent) for spent in fixed]
        if composed <= math.fsum(epsilon for epsilon, _ in singles):
            pairs.append((composed, delta))
        else:  # rounding of many unequal charges
            pairs += singles
    return math.fsum(e for e, _ in pairs), math.fsum(d for _, d in pairs)
