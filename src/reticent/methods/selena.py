"""SELENA: learn every record from models that never saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from reticent.errors import OptionError, between, not_negative, single, whole
from reticent.methods.base import Method, Price, Stage
from reticent.methods.passes import class_count, gradient
from reticent.methods.plain import no_budget
from reticent.methods.submodels import can_be_mapped, mean_gradients, row_posteriors
from reticent.privacy import Budget, Ledger, NonPrivate

if TYPE_CHECKING:
    from reticent.training.run import Run


@dataclass(frozen=True)
class Selena(Method):
    """Train K sub-models, each without some records; distil what they say of the others.

    Tang et al. 2022. Every record is left out of L sub-models, drawn by secret coins (Split-AI).
    The first releases train the sub-models and leave the model as it is. Then each record gets a
    soft label, the mean posterior of the L sub-models that were not trained on it, and the other
    releases train the model on these labels alone (self-distillation), by the cross-entropy
    −Σ_c soft_c·log p_c, which is the Kullback-Leibler divergence up to a constant.

    Formal guarantee: none.

    Args:
        batch: How many records enter a step, of the model and of each sub-model.
        models: K, how many sub-models.
        excluded: L, how many of them do not see a given record.
        share: The share of the releases that train the sub-models.
        split_steps: Their number instead.
        split_lr: The sub-models' learning rate.
        split_momentum: The sub-models' momentum.

    Example:
        >>> Selena(batch=64, share=0.25).split(steps=400)
        100
    """

    batch: int
    models: int = 25
    excluded: int = 10
    share: float = 0.5
    split_steps: int | None = None
    split_lr: float = 0.1
    split_momentum: float = 0.9

    name: ClassVar[str] = "selena"
    title: ClassVar[str] = "Self-distillation through an ensemble that never saw the record"
    paper: ClassVar[str] = (
        "Tang et al., Mitigating membership inference attacks by self-distillation through a novel "
        "ensemble architecture, USENIX Security 2022"
    )
    guarantee: ClassVar[str] = "empirical"

    def __post_init__(self) -> None:
        whole("batch", self.batch)
        whole("models", self.models, least=2)
        whole("excluded", self.excluded)
        if self.excluded >= self.models:
            raise OptionError(
                "excluded", self.excluded, f"must be less than the number of models {self.models}"
            )
        between("share", self.share, 0, 1, open_low=True)
        if self.share == 1:
            raise OptionError("share", self.share, "leaves no release for the model; below 1")
        if self.split_steps is not None:
            whole("split_steps", self.split_steps)
        single("split_lr", self.split_lr)
        not_negative("split_momentum", self.split_momentum)
        if self.split_momentum >= 1:
            raise OptionError("split_momentum", self.split_momentum, "must be less than 1")

    def split(self, steps: int) -> int:
        """How many of `steps` releases train the sub-models."""
        if steps < 2:
            raise OptionError("steps", steps, "must be 2 or more: some for each of the two phases")
        if self.split_steps is None:
            return min(max(round(self.share * steps), 1), steps - 1)
        if self.split_steps >= steps:
            raise OptionError(
                "split_steps", self.split_steps, f"leaves none of {steps} steps for the model"
            )
        return self.split_steps

    def price(self, n: int) -> Price:
        """As the base class says."""
        seen = n * (self.models - self.excluded) // self.models
        if self.batch > seen:
            raise OptionError(
                "batch",
                self.batch,
                f"exceeds the {seen} of {n} records that a sub-model sees, on average",
            )
        return ((NonPrivate("self-distillation adds no noise"), "training"),)

    def stages(self, n: int, steps: int) -> tuple[Stage, ...]:
        """As the base class says."""
        if steps:
            self.split(steps)  # a plan that cannot work is refused before it begins
        return super().stages(n, steps)

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> Selena:
        """Refused: there is nothing to calibrate."""
        raise no_budget(self, budget)

    def release(self, run: Run) -> None:
        """As the base class says."""
        assert run.releases is not None
        if run.release < self.split(run.releases):
            self._train_submodels(run)
            run.state.hold()
            return
        soft = self._soft_labels(run)

        def losses(outputs: Tensor, _: Any, indices: Tensor) -> Tensor:
            wanted = soft[indices.to(soft.device)]
            return F.cross_entropy(outputs.float(), wanted, reduction="none")

        run.step(gradient(run, run.subset(self.batch, "batch"), losses))

    def _begin(self, run: Run) -> None:
        """Who sees what is drawn once; all sub-models begin where the model does."""
        self.price(run.records.n)  # the real number may be another than the nominal one
        class_count(run, self.name)
        flips = torch.stack([run.flips(f"excluded from {k}") for k in range(self.models)])
        excluded = torch.zeros_like(flips, dtype=torch.bool)
        excluded.scatter_(0, flips.argsort(0)[: self.excluded], True)
        if not bool((~excluded).any(1).all()):
            raise OptionError(
                "models",
                self.models,
                f"too many for {run.records.n} records: one of them sees none",
            )
        rows = run.state.parameters.values.repeat(self.models, 1)
        run.private["excluded"] = excluded
        run.private["mapped"] = torch.tensor(can_be_mapped(run, rows))
        run.private["submodels"] = rows
        run.private["submodels' momentum"] = torch.zeros_like(rows)

    def _train_submodels(self, run: Run) -> None:
        """One step of SGD with momentum for each."""
        if "submodels" not in run.private:
            self._begin(run)
        rows, momentum = run.private["submodels"], run.private["submodels' momentum"]
        mapped = bool(run.private["mapped"])
        found = mean_gradients(run, rows, self._batches(run), mapped=mapped)
        momentum.mul_(self.split_momentum).add_(found)
        rows.sub_(momentum, alpha=self.split_lr)

    def _batches(self, run: Run) -> Tensor:
        """Random records of its own for each sub-model [K, B]; all of them if they are fewer.

        One order of all records, which every sub-model reads from another place, past the records
        that it must not see: each batch is a uniform draw, and few records are in several.
        """
        seen = ~run.private["excluded"]
        size = min(self.batch, int(seen.sum(1).min()))
        order = run.permutation("batch").to(run.device)
        found = []
        for k in range(self.models):
            own = order.roll(-(k * len(order) // self.models))
            found.append(own[torch.nonzero_static(seen[k, own], size=size)[:, 0]])
        return torch.stack(found)

    def _soft_labels(self, run: Run) -> Tensor:
        """[n, classes]: what the sub-models that never saw a record say of it, on average."""
        if "soft labels" not in run.private:
            rows, excluded = run.private.pop("submodels"), run.private.pop("excluded")
            del run.private["submodels' momentum"], run.private["mapped"]
            classes = class_count(run, self.name)
            soft = torch.zeros((run.records.n, classes), device=run.device)
            for k, row in enumerate(rows):
                others = excluded[k].nonzero()[:, 0]
                soft[others] += row_posteriors(run, row, others, classes, f"soft labels {k}")
            run.private["soft labels"] = soft.div_(self.excluded)
        return run.private["soft labels"]

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return {
            "batch": self.batch,
            "models": self.models,
            "excluded": self.excluded,
            "share": self.share,
            "split_steps": self.split_steps,
            "split_lr": self.split_lr,
            "split_momentum": self.split_momentum,
        }
