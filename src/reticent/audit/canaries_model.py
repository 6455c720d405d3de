"""Canaries: records whose traces are looked for, and how they are put among the others.

**In gradient space** a canary is a record with a parameter of its own. `WithCanaries` adds one
vector v of m numbers to a model, which returns v[i] besides for a record of id i; ordinary records
have id 0 and no gradient there. `CanaryLoss` gives canary i the gradient `scale` at v[i] and 0
everywhere else. With a scale far above the clipping bound that is the worst case of the analysis, a
gradient as long as it may be in a direction that nobody shares; and it goes through the same
per-example gradients, clipping, sampling, noise and optimizer as any record's.

The *value* of a canary's loss is 0 whatever v[i] is: scale·(v[i] − v[i]), the second term without a
gradient. A loss that followed v[i] at that scale would drown all others where a method compares
losses (DPSUR's test, DP-AGD's choice of a step), and a bounded one would lose its gradient. So such
methods run as they would without canaries, and what their tests of losses leak is not looked for.

**In input space** a canary is an ordinary record with a wrong label, or any that the caller gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from reticent.coins import Coins
from reticent.data.records import TensorRecords, as_records
from reticent.errors import DataError, OptionError, whole
from reticent.gradients.batches import call

# A canary's gradient; its square must stay far from the largest float32.
SCALE = 1e6


class WithCanaries(nn.Module):
    """A model with one number more for each canary; called with (inputs, ids).

    Args:
        inner: The model; it is held, not copied.
        canaries: How many.

    Example:
        >>> model = WithCanaries(nn.Linear(2, 3), canaries=5)
        >>> outputs, traces = model(torch.zeros(4, 2), torch.tensor([0, 1, 5, 0]))
        >>> outputs.shape, traces.tolist()
        (torch.Size([4, 3]), [0.0, 0.0, 0.0, 0.0])
    """

    def __init__(self, inner: nn.Module, canaries: int) -> None:
        super().__init__()
        self.inner = inner
        self.traces = nn.Embedding(whole("canaries", canaries) + 1, 1, padding_idx=0)
        nn.init.zeros_(self.traces.weight)

    def forward(self, inputs: Any, ids: Tensor) -> tuple[Any, Tensor]:
        """(what the model says, v[id])."""
        return call(self.inner, inputs), self.traces(ids.unsqueeze(1)).flatten(1).squeeze(1)


class CanaryLoss(nn.Module):
    """The model's own loss for ordinary records; for a canary 0, with a gradient of `scale`."""

    def __init__(self, inner: Any, scale: float = SCALE) -> None:
        super().__init__()
        self.inner, self.scale = inner, scale

    def forward(self, outputs: tuple[Any, Tensor], targets: tuple[Any, Tensor]) -> Tensor:
        """The loss of a batch that holds one record, which is all that the library asks for."""
        (said, traces), (wanted, ids) = outputs, targets
        flat = self.scale * (traces - traces.detach())
        return torch.where(ids == 0, self.inner(said, wanted).sum(), flat).sum()


@dataclass(frozen=True)
class Planted:
    """Records with the included canaries among them, and all canaries, to be scored.

    Attributes:
        model: What is trained.
        loss_fn: Its loss.
        data: (inputs, targets) of the run: ordinary records, then the canaries that are in.
        canaries: (inputs, targets) of all canaries, included or not.
        included: Which of them are in, [m] bool.
    """

    model: nn.Module
    loss_fn: Any
    data: tuple[Any, Any]
    canaries: tuple[Any, Any]
    included: Tensor


def fair_coins(canaries: int, coins: Coins) -> Tensor:
    """Which canaries are in: independent fair coins of the auditor's, not of the run's."""
    return coins.uniform((canaries,), "canaries included") < 0.5


def plant_gradients(
    model: nn.Module, loss_fn: Any, records: TensorRecords, included: Tensor
) -> Planted:
    """Give every canary a parameter of its own.

    Besides their ids, canaries are copies of the first record, of which nothing counts: something
    must be there that the model can take.
    """
    ids = torch.arange(1, len(included) + 1)

    def repeated(column: Tensor) -> Tensor:
        return column[:1].expand(len(ids), *column.shape[1:])

    everyone = (tree_map(repeated, records.inputs), ids), (tree_map(repeated, records.targets), ids)
    nobody = torch.zeros(records.n, dtype=torch.long)
    ordinary = (records.inputs, nobody), (records.targets, nobody)
    return Planted(
        WithCanaries(model, len(ids)),
        CanaryLoss(loss_fn),
        _joined(ordinary, _picked(everyone, included)),
        everyone,
        included,
    )


def plant_inputs(
    model: nn.Module,
    loss_fn: Any,
    records: TensorRecords,
    included: Tensor,
    canaries: tuple[Any, Any],
) -> Planted:
    """Put the caller's canaries among the records."""
    given = TensorRecords(*canaries)
    if given.n != len(included):
        raise DataError(f"{given.n} canaries are given, {len(included)} are asked for")
    everyone = given.inputs, given.targets
    ordinary = records.inputs, records.targets
    return Planted(
        model, loss_fn, _joined(ordinary, _picked(everyone, included)), everyone, included
    )


def mislabelled(
    model: nn.Module, records: TensorRecords, canaries: int, coins: Coins
) -> tuple[TensorRecords, tuple[Any, Any]]:
    """Take some records out and give them another label, any of the others by equal chances."""
    if canaries >= records.n:
        raise OptionError(
            "canaries", canaries, f"are taken out of the {records.n} records; ask for fewer"
        )
    labels = records.targets
    if not isinstance(labels, Tensor) or labels.is_floating_point() or labels.dim() != 1:
        raise DataError("wrong labels need one whole-number label a record; give the canaries")
    with torch.no_grad():
        said = call(model.eval(), _picked(records.inputs, torch.tensor([0])))
    if not isinstance(said, Tensor) or said.dim() != 2 or said.shape[1] < 2:
        raise DataError("wrong labels need a model with one output per class; give the canaries")
    order = coins.uniform((records.n,), "canaries taken").argsort()
    taken, kept = order[:canaries], order[canaries:].sort().values
    shift = 1 + coins.uniform((canaries,), "wrong labels").mul(said.shape[1] - 1).long()
    wrong = (labels[taken] + shift) % said.shape[1]
    left = TensorRecords(_picked(records.inputs, kept), _picked(labels, kept))
    return left, (_picked(records.inputs, taken), wrong)


def tensor_records(data: Any) -> TensorRecords:
    """The records on the CPU as tensors, whatever form they came in."""
    records = as_records(data)
    if isinstance(records, TensorRecords):
        return TensorRecords(records.inputs, records.targets)
    return TensorRecords(*records.fetch(torch.arange(records.n)))


def _picked(tree: Any, which: Tensor) -> Any:
    return tree_map(lambda column: column[which], tree)


def _joined(first: Any, second: Any) -> Any:
    return tree_map(lambda a, b: torch.cat([a, b]), first, second)
