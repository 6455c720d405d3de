"""An audit of a whole training by one run of it, with canaries among its records.

The training is `reticent.run` itself with the method as it is: the same sampling, per-example
gradients, clipping, noise, optimizer and ledger. Canaries are included by fair coins of the
auditor's; from what the run released the auditor guesses which were in. Too many right guesses
refute what the ledger states (docs/canaries.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from reticent.audit.bounds import (
    LowerBound,
    Outcome,
    approximate_bound,
    level_of,
    lower_bound,
    refutes,
)
from reticent.audit.canaries_model import (
    Planted,
    WithCanaries,
    fair_coins,
    mislabelled,
    plant_gradients,
    plant_inputs,
    tensor_records,
)
from reticent.audit.scores import (
    AlignmentWatch,
    Charges,
    TraceWatch,
    checked_guesses,
    final_traces,
    losses_of,
    outcomes,
    separation,
)
from reticent.audit.trade_offs import Family, Gaussian, PureApproximate, ScaledLedger
from reticent.coins import Coins
from reticent.errors import AccountingError, OptionError, one_of, positive, whole
from reticent.methods.base import Method
from reticent.privacy import Budget, Ledger, Statement
from reticent.training.loop import Release
from reticent.training.result import Result
from reticent.training.train import run

KINDS = ("gradient", "input")
VIEWS = ("white-box", "black-box")
# What the audit decides itself.
_OWN = ("coins", "folder", "resume", "overwrite", "optimizer", "scheduler", "average", "ledger")


@dataclass(frozen=True)
class CanaryReport:
    """What one audited run showed. It tells which canaries were in: for the auditor's eyes.

    Attributes:
        kind: Of canaries: `gradient` or `input`.
        view: What the auditor saw: every release (`white-box`) or the last model (`black-box`).
        method: The method with its options.
        releases: How many were made.
        n: The nominal number of records.
        included: How many canaries were in.
        outcomes: How many guesses were right, for each number of guesses.
        upper: What the ledger states.
        bounds: Lower bounds on ε at the same δ; each holds at `confidence` by itself, if what it
            assumes does.
        refuted: Whether the ledger's statement is refuted at `confidence`; no assumption.
        tested: What `refuted` is about: the `ledger`'s own trade-off function, or, where it has
            none, its ε and δ (`approximate`).
        confidence: Each bound, and the refutation, is wrong with probability 1 − this at most.
        scores: The area under the ROC curve of the scores, and their means.
    """

    kind: str
    view: str
    method: dict[str, Any]
    releases: int
    n: int
    included: int
    outcomes: tuple[Outcome, ...]
    upper: Statement
    bounds: tuple[LowerBound, ...]
    refuted: bool
    tested: str
    confidence: float
    scores: dict[str, float | None]

    @property
    def canaries(self) -> int:
        """How many canaries there were, included or not."""
        return self.outcomes[0].canaries

    def bound(self, family: str) -> LowerBound:
        """The lower bound by one family."""
        names = [bound.family for bound in self.bounds]
        return self.bounds[names.index(one_of("family", family, names))]

    def to_json(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return {
            **vars(self),
            "canaries": self.canaries,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
            "upper": self.upper.to_json(),
            "bounds": [bound.to_json() for bound in self.bounds],
        }


def audit_canaries(
    model: nn.Module,
    data: Any,
    *,
    method: Method,
    budget: Budget,
    steps: int | None = None,
    canaries: int = 2000,
    kind: str = "gradient",
    view: str = "white-box",
    records: tuple[Any, Any] | None = None,
    guesses: int | Sequence[int] | None = None,
    confidence: float = 0.95,
    lr: float = 1.0,
    n: int | None = None,
    loss_fn: Any = None,
    seed: int | None = None,
    device: str | torch.device = "auto",
    on_release: Callable[[Release], None] | None = None,
    **options: Any,
) -> CanaryReport:
    """Train once with canaries among the records, and see what the run tells about them.

    Args:
        model: As for `reticent.run`; it is copied, and stays as it is.
        data: The other records.
        method: What is audited.
        budget: What it may spend; its δ is where ε is stated.
        steps: How many releases.
        canaries: How many, of which about half are included.
        kind: `gradient`: each with a parameter of its own, the worst case. `input`: records with
            wrong labels, taken out of `data`, or those given as `records`.
        view: `white-box`: every release is seen. `black-box`: the final model's answers are.
        records: (inputs, targets) of input-space canaries.
        guesses: How many guesses to make, or several numbers that share the error probability;
            even, and fixed before anything is seen. By default see `scores.checked_guesses`.
        confidence: The bounds hold with this probability at least.
        lr: The learning rate of plain SGD, which the audit uses.
        n: The nominal number of records; by default all that there could be, canaries included.
        loss_fn: As for `reticent.run`; a loss per example.
        seed: Of the auditor's coins and, at another address, of the run's; fresh ones by default.
        device: As for `reticent.run`.
        on_release: Called after every release.
        options: More of `reticent.run`: `microbatch`, `path`, `precision`, `data_on`.

    Example:
        >>> import reticent as rt
        >>> data = (torch.randn(50, 4), torch.randint(0, 2, (50,)))
        >>> report = audit_canaries(nn.Linear(4, 2), data, method=rt.DPSGD(batch=150), steps=1,
        ...                         budget=rt.Budget(8, 1e-5), canaries=250, seed=1, device="cpu")
        >>> report.refuted, report.bound("gaussian").epsilon < report.upper.epsilon <= 8
        (False, True)
    """
    one_of("kind", kind, KINDS)
    one_of("view", view, VIEWS)
    numbers = checked_guesses(guesses, whole("canaries", canaries, least=2))
    level_of(numbers, confidence)
    positive("lr", lr)
    if not isinstance(budget, Budget):
        raise OptionError("budget", budget, "must be a Budget: what is not bounded is not audited")
    for option in _OWN:
        if option in options:
            raise OptionError(option, options[option], "is what the audit sets itself")
    if records is not None and kind != "input":
        raise OptionError("records", "given", "are input-space canaries; use kind 'input'")
    own = Coins.fresh() if seed is None else Coins.from_seed(seed)
    planted, ordinary = _planted(model, data, loss_fn, kind, canaries, records, own)
    nominal = ordinary + canaries if n is None else whole("n", n)
    scores, log_odds, result = _scored(
        planted,
        view,
        on_release,
        method=method,
        budget=budget,
        steps=steps,
        n=nominal,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=lr),
        coins=Coins.fresh() if seed is None else Coins.from_seed(own.seed("the audited run")),
        device=device,
        **options,
    )
    found = outcomes(scores, planted.included, numbers, own, log_odds=log_odds)
    upper = result.statement
    bounds, refuted, tested = _judged(found, result.ledger, upper, confidence)
    return CanaryReport(
        kind=kind,
        view=view,
        method=result.method,
        releases=result.steps,
        n=nominal,
        included=int(planted.included.sum()),
        outcomes=found,
        upper=upper,
        bounds=bounds,
        refuted=refuted,
        tested=tested,
        confidence=float(confidence),
        scores=separation(scores, planted.included),
    )


def _planted(
    model: nn.Module,
    data: Any,
    loss_fn: Any,
    kind: str,
    canaries: int,
    given: tuple[Any, Any] | None,
    coins: Coins,
) -> tuple[Planted, int]:
    """The records with canaries, and how many others there are."""
    loss_fn = nn.CrossEntropyLoss() if loss_fn is None else loss_fn
    inner, others = copy.deepcopy(model).cpu(), tensor_records(data)
    included = fair_coins(canaries, coins)
    if kind == "gradient":
        return plant_gradients(inner, loss_fn, others, included), others.n
    if given is None:
        others, given = mislabelled(inner, others, canaries, coins)
    return plant_inputs(inner, loss_fn, others, included, given), others.n


def _scored(
    planted: Planted, view: str, on_release: Callable[[Release], None] | None, **options: Any
) -> tuple[Tensor, bool, Result]:
    """Run the training, and score every canary by what is seen of it; whether by log odds."""
    model, loss_fn, canaries = planted.model, planted.loss_fn, planted.canaries
    training = run(model, planted.data, loss_fn=loss_fn, **options)
    traces = model.traces if isinstance(model, WithCanaries) else None
    if view == "black-box":
        start = None if traces is not None else losses_of(model, loss_fn, canaries)
        result = training.finish(on_release)
        if traces is not None:
            return final_traces(traces), False, result
        assert start is not None
        return start - losses_of(result.model, loss_fn, canaries), False, result
    watch: TraceWatch | AlignmentWatch
    if traces is not None:
        watch = TraceWatch(traces)
    else:
        watch = AlignmentWatch(model, loss_fn, canaries)
    charges = Charges(training.run.ledger)

    def watched(release: Release) -> None:
        watch.release(charges.since(training.run.ledger))
        if on_release is not None:
            on_release(release)

    result = training.finish(watched)
    return watch.scores, watch.log_odds, result


def _judged(
    found: Sequence[Outcome], ledger: Ledger, upper: Statement, confidence: float
) -> tuple[tuple[LowerBound, ...], bool, str]:
    """Lower bounds, whether the ledger is refuted, and by what."""
    delta = upper.delta
    general = PureApproximate(delta)
    families: list[Family] = [general, Gaussian()]
    # one test, chosen before anything is seen: several would each claim the whole confidence
    stated, tested = general.at(upper.epsilon), general.name
    try:
        own = ScaledLedger.of(ledger)
    except AccountingError:
        pass
    else:
        families.append(own)
        stated, tested = own.at(1.0), own.name
    bounds = [lower_bound(family, found, delta, confidence=confidence) for family in families]
    bounds.insert(0, approximate_bound(found, delta, confidence=confidence))
    level = level_of(found, confidence)
    refuted = any(refutes(stated, outcome, level) for outcome in found)
    return tuple(bounds), refuted, tested
