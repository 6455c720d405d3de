"""Many models of one architecture trained at once, each with its own ledger.

A table of several seeds and settings is many small trainings, which leave a device idle one by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from reticent.coins import Coins
from reticent.data.records import as_records
from reticent.errors import AccountingError, one_of
from reticent.gradients.rounding import check_precision
from reticent.methods import Method
from reticent.privacy import Budget, Ledger
from reticent.training.evaluation import Evaluation
from reticent.training.loop import Training
from reticent.training.many_groups import Group, Job, Together, check_jobs, own_value
from reticent.training.optimizers import OptimizerFactory
from reticent.training.result import Result
from reticent.training.run import LossFn
from reticent.training.state import SchedulerFactory
from reticent.training.together import HOW, StepProgress, room_for
from reticent.training.together_checks import checked_models
from reticent.training.train import pick_device


class Results(list[Result]):
    """The results, in the order of the models.

    Attributes:
        apart: Which models were trained by themselves, and why.
    """

    def __init__(self, results: Sequence[Result], apart: dict[int, str]) -> None:
        super().__init__(results)
        self.apart = apart

    @property
    def diverged(self) -> tuple[int, ...]:
        """Which models are of no use; `Result.diverged` says why."""
        return tuple(k for k, result in enumerate(self) if result.diverged is not None)


def train_many(
    models: Sequence[nn.Module],
    data: Any,
    *,
    method: Method | Sequence[Method],
    optimizer: OptimizerFactory | Sequence[OptimizerFactory],
    budget: Budget | Sequence[Budget | None] | None = None,
    steps: int | Sequence[int | None] | None = None,
    epochs: float | Sequence[float | None] | None = None,
    scheduler: SchedulerFactory | Sequence[SchedulerFactory | None] | None = None,
    average: float | Sequence[float | None] | None = None,
    every: int | Sequence[int | None] | None = None,
    ledger: Sequence[Ledger | None] | None = None,
    config: dict[str, Any] | Sequence[dict[str, Any] | None] | None = None,
    coins: Sequence[Coins] | None = None,
    evaluation: Evaluation | None = None,
    n: int | None = None,
    loss_fn: LossFn | None = None,
    device: str | torch.device = "auto",
    data_on: str = "auto",
    precision: str | None = None,
    how: str = "auto",
    memory: float | None = None,
    on_step: StepProgress | None = None,
) -> Results:
    """Train K models of one architecture on the same records at once, each with its own ledger.

    Result k is what `reticent.train` gives for model k with its options and coins, up to rounding:
    the same charges before the same releases, the same statement, the same `run.json` when saved
    (but for the time taken, and pieces, which were not chosen for one model alone). A model whose
    steps or budget end leaves; the others go on. One that diverges does so alone, and is named by
    `Results.diverged`.

    Each ε is for that one model. Whoever publishes several of them, or numbers such as a mean over
    seeds, has released them all: see `together_epsilon`.

    Args:
        models: Different modules of one architecture; trained in place.
        data: As for `reticent.train`.
        method: One for all, or one for each. `DPSGD`, `SignSGD`, `SignAdam`, `NoiseDecay`, `SGD`
            and `DPSUR` are trained at once where batch, kind and clipping style are the same;
            whatever else may differ (for `DPSUR` with SGD, no schedule and one `average`). Other
            methods, and models that cannot be mapped, go one after the other.
        optimizer: A function from parameters to an optimizer, or one for each model.
        budget: What each model may spend, or one for each.
        steps: As for `reticent.train`, or one for each.
        epochs: The same.
        scheduler: The same.
        average: The same.
        every: The same.
        ledger: For each model the charges that were paid before, or None.
        config: Public facts to be kept in `run.json`, or those of each.
        coins: Randomness of each model; fresh by default.
        evaluation: As for `reticent.train`. `HeldOut`, and `functools.partial(evaluate, data=...)`,
            are computed for all models at once.
        n: As for `reticent.train`.
        loss_fn: The same.
        device: The same.
        data_on: The same.
        precision: The same.
        how: `together` refuses what cannot be trained at once, `apart` trains one after the other,
            `auto` chooses; which were trained apart, and why, is in `Results.apart`.
        memory: Bytes that one pass over a batch may take; no influence on the result but rounding.
        on_step: Called with the number of releases made and planned, of all models.

    Example:
        >>> import torch, reticent as rt
        >>> data = (torch.randn(64, 4), torch.randint(0, 2, (64,)))
        >>> results = train_many([torch.nn.Linear(4, 2) for _ in range(2)], data,
        ...                      method=rt.DPSGD(batch=16, clip=1.0), steps=5,
        ...                      budget=[rt.Budget(epsilon, 1e-3) for epsilon in (1, 3)],
        ...                      optimizer=lambda params: torch.optim.SGD(params, lr=0.5))
        >>> [result.epsilon <= limit for result, limit in zip(results, (1, 3))]
        [True, True]
        >>> results[0].method["noise"] > results[1].method["noise"]
        True
        >>> together_epsilon(results, delta=1e-3) > results[1].epsilon
        True
    """
    chosen = pick_device(device)
    check_precision(precision, chosen)
    one_of("how", how, HOW)
    models = checked_models(models)
    loss_fn = nn.CrossEntropyLoss() if loss_fn is None else loss_fn
    if isinstance(loss_fn, nn.Module):
        loss_fn = loss_fn.to(chosen)
    shared = Together(
        records=as_records(data, chosen, data_on),
        loss_fn=loss_fn,
        evaluation=evaluation,
        n=n,
        device=chosen,
        precision=precision,
        how=how,
        room=room_for(memory, chosen),
    )
    own = {
        "method": method,
        "optimizer": optimizer,
        "budget": budget,
        "steps": steps,
        "epochs": epochs,
        "scheduler": scheduler,
        "average": average,
        "every": every,
        "ledger": ledger,
        "config": config,
        "coins": coins,
    }
    jobs = [
        Job(k, model, {name: own_value(name, value, k, len(models)) for name, value in own.items()})
        for k, model in enumerate(models)
    ]
    check_jobs(jobs)
    modes = [model.training for model in models]
    try:
        groups, alone = shared.prepare(jobs)
    except BaseException:
        for model, mode in zip(models, modes, strict=True):
            model.train(mode)
        raise
    return _finish(groups, alone, on_step)


def together_epsilon(
    results: Sequence[Result], delta: float, *, planned: bool | None = None
) -> float:
    """An upper bound on ε at `delta` of publishing all these models, trained on the same records.

    It holds for runs with coins of their own: two runs with the same seed share their noise. What
    several ledgers hold for one earlier release, such as private statistics of the inputs, is
    counted for each.

    Args:
        results: Of `train_many` or `reticent.train`.
        delta: The δ of the statement.
        planned: Whether the settings of all were fixed before any was trained. Then their charges
            are composed as one bill. Else a later one may have followed from what an earlier one
            gave, and each is stated at a share of δ, the k-th at δ/(k(k+1)), and their ε are added:
            that holds however they were chosen (Rogers, Roth, Ullman, Vadhan 2016). By default
            True for what one call of `train_many` returned, and False for any other list.
    """
    planned = isinstance(results, Results) if planned is None else planned
    bills = _bills(results)
    if bills is None:
        return math.inf
    if not planned and len(bills) > 1:
        shares = (delta / (k * (k + 1)) for k in range(1, len(bills) + 1))
        return sum(bill.epsilon(share) for bill, share in zip(bills, shares, strict=True))
    joint = Ledger()
    for bill in bills:
        for entry in bill.entries:
            joint.charge(entry.charge, entry.purpose, count=entry.count)
    return joint.epsilon(delta)


def _bills(results: Sequence[Result]) -> list[Ledger] | None:
    """What each run has paid, as accountants count it; None where one has no ε."""
    bills = []
    for number, result in enumerate(results):
        if result.ledger.adaptive:
            raise AccountingError(
                f"results[{number}]: its charges depend on earlier releases, so they do not add up "
                "with those of other runs; state the runs one by one"
            )
        if result.guarantee != "differential-privacy":
            return None
        bill = Ledger()
        for entry in result.ledger.entries:
            bill.charge(entry.accounted, entry.purpose, count=entry.count)
        bills.append(bill)
    return bills


def _finish(
    groups: list[Group], alone: list[tuple[Job, Training, str]], on_step: StepProgress | None
) -> Results:
    planned = sum(training.steps for group in groups for training in group.trainings)
    planned += sum(training.steps for _, training, _ in alone)
    results: dict[int, Result] = {}
    made = 0

    def tell(more: int) -> None:
        nonlocal made
        made += more
        if on_step is not None:
            on_step(made, planned)

    for group in groups:
        stack = group.stack()
        while True:
            results.update(stack.leave())
            if not stack.trainings:
                break
            stack.release()
            stack.evaluate()
            tell(len(stack.moved))
        del stack
    for job, training, _ in alone:
        results[job.number] = training.finish(lambda _: tell(1))
    apart = {job.number: reason for job, _, reason in alone}
    return Results([results[number] for number in sorted(results)], apart)
