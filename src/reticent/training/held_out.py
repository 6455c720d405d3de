"""Records that were held out, as an evaluation that many models can share."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from reticent.data.records import as_records
from reticent.gradients.modes import evaluated
from reticent.training.evaluation import CHUNK, Evaluation, Metrics, evaluate
from reticent.training.run import LossFn
from reticent.training.stacking import StackedModels, StackedParameters


@dataclass(frozen=True, eq=False)
class HeldOut:
    """`reticent.evaluate` on these records; of models trained together, on all of them at once.

    Args:
        data: Held-out records, as for `reticent.train`.
        loss_fn: Cross-entropy by default.
        device: Where the models are.

    Example:
        >>> data = (torch.randn(64, 4), torch.randint(0, 2, (64,)))
        >>> sorted(HeldOut(data)(torch.nn.Linear(4, 2)))
        ['accuracy', 'loss']
    """

    data: Any
    loss_fn: LossFn | None = None
    device: torch.device | str = "cpu"

    def __call__(self, model: nn.Module) -> Metrics:
        """Loss and accuracy of one model."""
        return evaluate(model, self.data, self.loss_fn, device=self.device)


def as_held_out(evaluation: Evaluation | None) -> HeldOut | None:
    """An evaluation that is known to be `evaluate` on some records; None for any other."""
    if isinstance(evaluation, HeldOut):
        return evaluation
    if isinstance(evaluation, functools.partial) and evaluation.func is evaluate:
        return None if evaluation.args else HeldOut(**evaluation.keywords)
    return None


class MappedEvaluation:
    """What `evaluate` would say of each of several models, from passes over all of them.

    Args:
        held_out: On which records.
        models: The models; parameters are given with each call.
        parameters: How these lie in a row.
        most: How many outputs may be computed at once, of all models together.
    """

    def __init__(
        self, held_out: HeldOut, models: StackedModels, parameters: StackedParameters, most: int
    ) -> None:
        self.models, self.parameters, self.most = models, parameters, most
        self.records = as_records(held_out.data, held_out.device)
        self.loss_fn: LossFn = (
            nn.CrossEntropyLoss() if held_out.loss_fn is None else held_out.loss_fn
        )

    @torch.no_grad()
    def __call__(self, values: Tensor, rows: list[int]) -> list[Metrics]:
        """The metrics of some rows of the parameters [K, P], with one wait for a device."""
        some = max(self.most // CHUNK, 1)
        with evaluated(self.models.base):
            found = [self._some(values, rows[i : i + some]) for i in range(0, len(rows), some)]
        n, metrics = self.records.n, []
        for loss, right in torch.cat(found).tolist():
            accuracy = {} if math.isnan(right) else {"accuracy": right / n}
            metrics.append({**accuracy, "loss": loss / n})
        return metrics

    def _some(self, values: Tensor, rows: list[int]) -> Tensor:
        """Sums of losses and right answers [R, 2]; NaN for the latter where there are no scores."""
        chosen = torch.tensor(rows, device=values.device)
        trained = self.parameters.by_name(values[chosen])
        dims = self.models.fixed_dims
        fixed = {
            slot: held if dims[slot] is None else held[chosen]
            for slot, held in self.models.fixed.items()
        }
        mapped = torch.vmap(self.models.call, (0, dims, None), randomness="error")
        losses = torch.vmap(self.loss_fn, (0, None), randomness="error")
        total = torch.zeros((len(rows), 2), dtype=torch.float64, device=values.device)
        for indices in torch.arange(self.records.n).split(CHUNK):
            inputs, targets = self.records.fetch(indices)
            with sdpa_kernel(SDPBackend.MATH):
                outputs = mapped(trained, fixed, inputs)
            loss = losses(outputs, targets)
            # as `evaluate` reads a loss: a mean, a sum, or a number for each example
            mean = loss.dim() == 1 and getattr(self.loss_fn, "reduction", "mean") == "mean"
            each = loss.double().reshape(len(rows), -1).sum(1)
            total[:, 0] += each * len(indices) if mean else each
            scores = outputs.dim() == 3 and targets.dim() == 1
            if scores and not targets.is_floating_point():
                total[:, 1] += (outputs.argmax(2) == targets).sum(1)
            else:
                total[:, 1] = torch.nan
        return total
