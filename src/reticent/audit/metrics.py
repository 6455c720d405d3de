"""How well scores tell members from non-members, with how sure one can be.

Records are judged members if their score reaches a threshold. TPR is the share of members judged
members, FPR the share of non-members judged members; both depend on the threshold only through the
order of the scores, so any increasing transformation of the scores changes nothing here.

Intervals are about other records drawn in the same way, for this one model and this one attack.
They say nothing about other models or stronger attacks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reticent.audit import intervals
from reticent.audit.intervals import Estimate
from reticent.errors import DataError, OptionError, finite

LEVELS = (1e-3, 1e-4)
"""False-positive rates at which the true-positive rate is reported."""

EXACT_BELOW = 1e-3  # corners of the ROC curve at such small rates are all kept
REST = 200  # and about this many of the others

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LowFalse:
    """How many members are found while at most a share `level` of non-members is accused.

    `tpr` is that of the lowest threshold whose FPR on these records is at most `level`. The
    threshold depends on the non-members alone, so the interval (Clopper-Pearson) is exact for it.
    `resolved` is False where fewer than 1/level non-members were scored: the threshold then lies
    above all of them (0 false positives), and the true FPR may well exceed `level`.
    """

    level: float
    tpr: Estimate
    fpr: float
    false_positives: int
    resolved: bool

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {**vars(self), "tpr": self.tpr.to_json()}


@dataclass(frozen=True)
class Leakage:
    """What an attack's scores reveal about membership.

    Attributes:
        n_members: Members that were scored.
        n_nonmembers: Non-members that were scored.
        confidence: The level of every interval here (each by itself).
        auc: Chance that a member scores above a non-member, ties counting half; 0.5 is guessing.
        auc_interval: How its interval was made, see `intervals.area`.
        advantage: max over thresholds of TPR − FPR. Optimistic, as `accuracy` is.
        accuracy: Balanced accuracy ½(TPR + 1 − FPR) at the best threshold. The threshold is chosen
            on the very records it is measured on, which is what papers report and is optimistic:
            random scores reach more than 0.5. Its interval allows for the choice
            (`intervals.supremum`) and is wide for it.
        held_accuracy: The same with the threshold chosen on one random half of the records and
            measured on the other: free of that optimism. None with fewer than 2 records of a kind.
        low_false: TPR at small FPR, for each of `LEVELS`.
        roc: (FPR, TPR) corners of the curve, from (0, 0) to (1, 1): all with FPR ≤ 0.001, and about
            200 of the others, evenly in log FPR. Judging by a random mixture of two thresholds
            reaches the straight line between their points.
    """

    n_members: int
    n_nonmembers: int
    confidence: float
    auc: Estimate
    auc_interval: str
    advantage: Estimate
    accuracy: Estimate
    held_accuracy: Estimate | None
    low_false: tuple[LowFalse, ...]
    roc: tuple[tuple[float, float], ...]

    @property
    def chance(self) -> bool:
        """Whether the AUC's interval holds 0.5: this attack cannot be told from guessing."""
        return 0.5 in self.auc

    def tpr_at(self, level: float) -> LowFalse:
        """The entry of `low_false` for this FPR."""
        for found in self.low_false:
            if found.level == level:
                return found
        raise OptionError("level", level, f"must be one of {', '.join(map(str, LEVELS))}")

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            **vars(self),
            "chance": self.chance,
            "auc": self.auc.to_json(),
            "advantage": self.advantage.to_json(),
            "accuracy": self.accuracy.to_json(),
            "held_accuracy": self.held_accuracy.to_json() if self.held_accuracy else None,
            "low_false": [found.to_json() for found in self.low_false],
            "roc": [list(point) for point in self.roc],
        }


@dataclass(frozen=True)
class Spread:
    """One number over several runs; `std` is the sample standard deviation, 0 for one run."""

    mean: float
    std: float
    low: float
    high: float
    count: int

    def to_json(self) -> dict[str, float]:
        """The numbers by name."""
        return dict(vars(self))


def measure(
    scores: Tensor | Sequence[float],
    members: Tensor | Sequence[bool],
    *,
    confidence: float = 0.95,
    seed: int = 0,
) -> Leakage:
    """Measure how well `scores` tell members from non-members.

    >>> found = measure([0.9, 0.8, 0.3, 0.1], [True, False, True, False])
    >>> found.auc.value, found.advantage.value, found.chance
    (0.75, 0.5, True)

    Args:
        scores: [n]; the higher, the more likely a member. Finite.
        members: [n] bool, the truth.
        confidence: Level of the intervals.
        seed: Of the split behind `held_accuracy`.
    """
    level = finite("confidence", confidence)
    if not 0 < level < 1:
        raise OptionError("confidence", confidence, "must lie between 0 and 1, such as 0.95")
    ins, outs = _sides(scores, members)
    m, n = len(ins), len(outs)
    auc, how = intervals.area(_wins(ins, outs), 1 - _wins(outs, ins), level)
    fpr, tpr = _corners(ins, outs)
    advantage = intervals.supremum(float((tpr - fpr).max()), m, n, level)
    return Leakage(
        n_members=m,
        n_nonmembers=n,
        confidence=level,
        auc=auc,
        auc_interval=how,
        advantage=advantage,
        accuracy=Estimate(*((1 + x) / 2 for x in vars(advantage).values())),
        held_accuracy=_held(ins, outs, level, seed),
        low_false=tuple(_low_false(ins, outs, rate, level) for rate in LEVELS),
        roc=_thinned(fpr, tpr),
    )


def combine(results: Sequence[Leakage]) -> dict[str, Spread]:
    """Mean and spread of every number over several runs, such as seeds.

    The spread over seeds has the randomness of training in it, which the intervals of one result
    have not.
    """
    if not results:
        raise DataError("results holds nothing to combine: give one Leakage or more")
    columns = {
        "auc": [found.auc.value for found in results],
        "advantage": [found.advantage.value for found in results],
        "accuracy": [found.accuracy.value for found in results],
    }
    held = [found.held_accuracy.value for found in results if found.held_accuracy is not None]
    if len(held) == len(results):
        columns["held_accuracy"] = held
    for level in LEVELS:
        columns[f"tpr@{level:g}"] = [found.tpr_at(level).tpr.value for found in results]
    return {name: _spread(values) for name, values in columns.items()}


def _spread(values: list[float]) -> Spread:
    std = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return Spread(float(np.mean(values)), std, min(values), max(values), len(values))


def _sides(
    scores: Tensor | Sequence[float], members: Tensor | Sequence[bool]
) -> tuple[Floats, Floats]:
    """Sorted scores of members and of non-members."""
    values = torch.as_tensor(scores).detach().cpu().double().numpy()
    truth = torch.as_tensor(members).detach().cpu()
    if truth.dtype != torch.bool:
        raise DataError(f"members has dtype {truth.dtype}: give booleans, True for a member")
    if values.ndim != 1 or truth.ndim != 1 or len(values) != len(truth):
        raise DataError(
            f"scores and members have shapes {values.shape} and {tuple(truth.shape)}: give one "
            "score and one truth per record; an attack that judges a part of the records says "
            "which, and `Scores.measure` picks their truth"
        )
    bad = int((~np.isfinite(values)).sum())
    if bad:
        raise DataError(f"scores holds {bad} values that are NaN or infinite: give finite scores")
    inside = truth.numpy()
    m, n = int(inside.sum()), int((~inside).sum())
    if not m or not n:
        raise DataError(f"members has {m} members and {n} non-members: at least one of each needed")
    return np.sort(values[inside]), np.sort(values[~inside])


def _wins(ours: Floats, theirs: Floats) -> Floats:
    """For each of `ours` the share of `theirs` below it, ties counting half; both sorted."""
    below = np.searchsorted(theirs, ours, side="left")
    upto = np.searchsorted(theirs, ours, side="right")
    return (below + upto) / (2.0 * len(theirs))


def _corners(ins: Floats, outs: Floats) -> tuple[Floats, Floats]:
    """FPR and TPR at every threshold that matters, from (0, 0) to (1, 1); sorted scores."""
    thresholds = np.unique(np.concatenate([ins, outs]))[::-1]
    tp = np.concatenate([[0], len(ins) - np.searchsorted(ins, thresholds, side="left")])
    fp = np.concatenate([[0], len(outs) - np.searchsorted(outs, thresholds, side="left")])
    # a point on the straight line between its neighbours is no corner; whole numbers, so exactly
    rise, run = np.diff(tp), np.diff(fp)
    keep = np.ones(len(tp), dtype=bool)
    keep[1:-1] = rise[:-1] * run[1:] != rise[1:] * run[:-1]
    return fp[keep] / len(outs), tp[keep] / len(ins)


def _thinned(fpr: Floats, tpr: Floats) -> tuple[tuple[float, float], ...]:
    exact = np.flatnonzero(fpr <= EXACT_BELOW)
    rest = np.flatnonzero(fpr > EXACT_BELOW)
    if len(rest) > REST:
        wanted = np.geomspace(fpr[rest[0]], 1.0, REST)
        found = np.searchsorted(fpr, wanted, side="right") - 1
        rest = np.unique(np.append(found[found >= rest[0]], len(fpr) - 1))
    kept = np.concatenate([exact, rest])
    return tuple((float(x), float(y)) for x, y in zip(fpr[kept], tpr[kept], strict=True))


def _low_false(ins: Floats, outs: Floats, level: float, confidence: float) -> LowFalse:
    allowed = math.floor(level * len(outs) + 1e-9)  # 0.001 * 1000 must be 1 whatever it rounds to
    # score > bar: the best of all thresholds that accuse at most `allowed` non-members
    bar = outs[len(outs) - 1 - allowed]
    hits = len(ins) - int(np.searchsorted(ins, bar, side="right"))
    false = len(outs) - int(np.searchsorted(outs, bar, side="right"))
    return LowFalse(
        level=level,
        tpr=intervals.clopper_pearson(hits, len(ins), confidence),
        fpr=false / len(outs),
        false_positives=false,
        resolved=allowed >= 1,
    )


def _held(ins: Floats, outs: Floats, confidence: float, seed: int) -> Estimate | None:
    """Balanced accuracy on one half of the records, the threshold chosen on the other."""
    if min(len(ins), len(outs)) < 2:
        return None
    generator = np.random.default_rng(seed)
    (seen_in, new_in), (seen_out, new_out) = (_halves(x, generator) for x in (ins, outs))
    thresholds = np.unique(np.concatenate([seen_in, seen_out]))
    tpr = 1 - np.searchsorted(seen_in, thresholds, side="left") / len(seen_in)
    fpr = 1 - np.searchsorted(seen_out, thresholds, side="left") / len(seen_out)
    best = thresholds[int(np.argmax(tpr - fpr))]
    right_in, right_out = int((new_in >= best).sum()), int((new_out < best).sum())
    return intervals.mean_of_two((right_in, len(new_in)), (right_out, len(new_out)), confidence)


def _halves(values: Floats, generator: np.random.Generator) -> tuple[Floats, Floats]:
    order = generator.permutation(len(values))
    cut = len(values) // 2
    return np.sort(values[order[:cut]]), values[order[cut:]]
