"""What models must have in common to be trained together, and whether they can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_map

from reticent import gradients
from reticent.data.records import Records
from reticent.errors import DataError, ModelError, OptionError, whole
from reticent.gradients import Flat
from reticent.gradients.batches import slots, trainable, unwrapped
from reticent.gradients.clipping import slack_for
from reticent.gradients.isolating import plain_settings
from reticent.methods import DPSGD
from reticent.training.optimizers import ELEMENTWISE, OptimizerFactory
from reticent.training.stacking import StackedGradients
from reticent.training.state import SchedulerFactory

# Beyond so many parameters, writing out clipped gradients takes a CPU longer than the library's
# own way of summing them, one model after the other (measured on multilayer perceptrons and CNNs).
MOST_CLIPPED_ON_CPU = 8192


def subset_rows(subsets: Tensor | Sequence[Tensor] | None, count: int, n: int) -> list[Tensor]:
    """The positions of each model's records, from masks or positions."""
    if subsets is None:
        return [torch.arange(n)] * count
    if len(subsets) != count:
        raise OptionError("subsets", len(subsets), f"must be one for each of {count} models")
    rows = []
    for k, given in enumerate(subsets):
        name = f"subsets[{k}]"
        subset = torch.as_tensor(given).detach().cpu()
        if subset.dim() != 1 or subset.is_floating_point() or subset.is_complex():
            raise OptionError(
                name, tuple(subset.shape), "must be a vector of positions, or a mask of booleans"
            )
        if subset.dtype == torch.bool:
            if len(subset) != n:
                raise OptionError(name, len(subset), f"as a mask must be as long as the pool, {n}")
            subset = subset.nonzero()[:, 0]
        if not len(subset):
            raise DataError(f"{name} is empty: model {k} needs at least one record")
        subset = subset.long()
        low, high = int(subset.min()), int(subset.max())
        if low < 0 or high >= n:
            wrong = low if low < 0 else high
            raise OptionError(name, wrong, f"positions must lie in 0..{n - 1}")
        if len(subset.unique()) != len(subset):
            raise OptionError(name, "with repetitions", "must name every record at most once")
        rows.append(subset)
    return rows


def checked_models(models: Sequence[nn.Module]) -> list[nn.Module]:
    """Refuse models that are not of one architecture, or not of their own."""
    models = list(models)
    if not models:
        raise OptionError("models", 0, "must be at least one")
    own = [(set(map(id, slots(unwrapped(m)).values())), m) for m in models]
    if len(set(map(id, models))) != len(models) or any(
        a & {id(p) for p in trainable(unwrapped(b)).values()}
        for i, (a, _) in enumerate(own)
        for j, (_, b) in enumerate(own)
        if i != j
    ):
        raise OptionError(
            "models", len(models), "must be different modules that share no parameter"
        )
    first = _shape_of(models[0])
    for k, model in enumerate(models):
        if _shape_of(model) != first:
            raise OptionError(
                f"models[{k}]", type(model).__name__, "is of another architecture than models[0]"
            )
    return models


def _shape_of(model: nn.Module) -> Any:
    inner = unwrapped(model)
    named = {p: name for name, p in trainable(inner).items()}
    tensors = {slot: (tuple(t.shape), t.dtype, named.get(t)) for slot, t in slots(inner).items()}
    settings = [(name, held[name]) for held, name in plain_settings(inner)]
    return type(inner), repr(inner).replace("(training)", ""), tensors, settings


def checked_method(method: DPSGD) -> Flat:
    """Refuse what cannot be done for all models at once; the clipping."""
    if type(method) is not DPSGD:
        raise OptionError("method", getattr(method, "name", method), "only DPSGD trains together")
    if method.noise is None:
        raise OptionError("noise", None, "must be set: no budget is kept here; 0 for none")
    if not isinstance(method.clip, (int, float, Flat)):
        raise OptionError(
            "clip", type(method.clip).__name__, "only flat clipping at one bound trains together"
        )
    clip = method.clipping
    assert isinstance(clip, Flat)
    return clip


def rate_of(method: DPSGD, n: int | None, row: Tensor, k: int) -> float:
    """The probability that a record of model k takes part in a step."""
    nominal = len(row) if n is None else whole("n", n)
    if method.batch > nominal:
        raise OptionError(
            "batch", method.batch, f"exceeds the nominal number of records of model {k}, {nominal}"
        )
    return method.batch / nominal


def check_optimizer(optimizer: OptimizerFactory, model: nn.Module) -> None:
    """Refuse an optimizer that one tensor of all models' parameters would change."""
    if isinstance(optimizer, Optimizer):
        raise OptionError(
            "optimizer", type(optimizer).__name__, "must be a function from parameters to one"
        )
    own: Any = list(trainable(unwrapped(model)).values())
    made: Any = optimizer(own)
    if type(made) not in ELEMENTWISE or len(made.param_groups) != 1:
        known = ", ".join(kind.__name__ for kind in ELEMENTWISE)
        raise OptionError(
            "optimizer",
            type(made).__name__,
            f"must treat every coordinate alone, with one group of parameters: one of {known}",
        )


def scheduler_of(scheduler: SchedulerFactory | None, optimizer: Optimizer) -> LRScheduler | None:
    """The schedule of all models, which make the same number of steps."""
    if scheduler is None:
        return None
    if isinstance(scheduler, LRScheduler):
        raise OptionError(
            "scheduler", type(scheduler).__name__, "must be a function from the optimizer to one"
        )
    made = scheduler(optimizer)
    if isinstance(made, ReduceLROnPlateau) or made.optimizer is not optimizer:
        raise OptionError(
            "scheduler", type(made).__name__, "must count the steps of the optimizer it is given"
        )
    return made


def against(
    how: str,
    sums: StackedGradients,
    models: list[nn.Module],
    records: Records,
    *,
    light: bool,
) -> str:
    """Why the models cannot, or shall not, be trained at once; nothing if they can.

    `light`: nothing needs single examples' gradients.
    """
    if how == "apart":
        return "as asked for"
    size = sums.parameters.values.shape[1]
    on_cpu = sums.parameters.values.device.type == "cpu"
    if how == "auto" and on_cpu and not light and size > MOST_CLIPPED_ON_CPU:
        return (
            f"on the CPU, clipped gradients of {size} parameters (more than {MOST_CLIPPED_ON_CPU}) "
            "are quicker one model after the other"
        )
    reason = _recurrent(models[0]) or _tried(sums, models, records)
    if reason and how == "together":
        raise ModelError(f"how = 'together': {reason}; how = 'auto' trains one after the other")
    return reason


def _recurrent(model: nn.Module) -> str:
    """Mapped, recurrent layers either fail or go one by one anyway, with a warning for each."""
    found = next((m for m in model.modules() if isinstance(m, nn.RNNBase)), None)
    return "" if found is None else f"{type(found).__name__} layers cannot be mapped over models"


def _tried(sums: StackedGradients, models: list[nn.Module], records: Records) -> str:
    """Compare mapped gradients with the library's own, by rules and, if these fail, without."""
    reason = _compared(sums, models, records)
    if reason and sums.rules is not None:
        sums.rules = None
        reason = _compared(sums, models, records)
    return reason


def _compared(sums: StackedGradients, models: list[nn.Module], records: Records) -> str:
    """What is wrong with the mapped gradients of the first or last model.

    On made-up records, like every probe.
    """
    inputs, targets = gradients.synthetic_like(*records.one(), n=5)
    values = sums.parameters.values
    name = type(sums.models.base).__name__

    def repeated(leaf: Any) -> Any:
        return leaf.unsqueeze(0).expand(len(values), *leaf.shape)

    try:
        batch = (tree_map(repeated, inputs), tree_map(repeated, targets))
        valid = torch.ones((len(values), 5), dtype=torch.bool, device=values.device)
        ways = [(sums.clipped(batch, valid, 3), sums.clip)]
        if sums.clip.sensitivity == torch.inf:
            ways.append((sums.plain(batch, valid, 3), sums.clip))
    except Exception as error:
        said = str(error).split("\n")[0]
        return f"{name} cannot be mapped over models ({type(error).__name__}: {said})"
    tolerance = 20 * slack_for(values.dtype, values.device)
    for found, clip in ways:
        for k in {0, len(models) - 1}:
            alone = gradients.clipped_sum(models[k], sums.loss_fn, inputs, targets, clip)
            expected = alone.flat().double()
            if not float((found[k] - expected).norm()) <= tolerance * float(expected.norm()):
                return f"{name} computes something else when it is mapped over models"
    return ""


def unclipped(method: DPSGD) -> bool:
    """Whether nothing needs single examples' gradients: no noise, and no bound."""
    return method.noise == 0 and method.clipping.sensitivity == torch.inf
