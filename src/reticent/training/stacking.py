"""Several models of one architecture as one: parameters in rows, gradients mapped over the models.

`together.py` trains with these; the models themselves are only read here, until `hand_back`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map

from reticent.data.records import Batch, Records
from reticent.errors import ModelError
from reticent.gradients import Clipping
from reticent.gradients.batches import arguments, as_one, slots, trainable, unwrapped
from reticent.gradients.engine import bounds_of
from reticent.gradients.kernels import MOST_EXAMPLES
from reticent.gradients.losses import LossFn, per_example_losses
from reticent.gradients.plans import added_up
from reticent.gradients.rules.base import NoFastPathError
from reticent.training.parameters import FlatParameters
from reticent.training.ruled_sums import RuledSums, ruled

# Squares of greater numbers leave single precision: gradients that long are looked at one by one.
TAME = 1e18


class StackedParameters(FlatParameters):
    """The trainable parameters of K models as one tensor [K, P], a row for each.

    Rows are laid out like the vector of a separate run. They are copies: a training that fails
    leaves the models as they were.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        own = trainable(unwrapped(models[0]))
        if not own:
            raise ModelError("the models have no trainable parameters (requires_grad is off)")
        kinds = {p.dtype for p in own.values()}
        if len(kinds) > 1:
            raise ModelError(f"trainable parameters differ in dtype: {', '.join(map(str, kinds))}")
        rows = []
        for k, model in enumerate(models):
            for name, parameter in trainable(unwrapped(model)).items():
                if not bool(torch.isfinite(parameter).all()):
                    raise ModelError(
                        f"parameter {name!r} of model {k} holds NaN or infinite values before "
                        "training"
                    )
            tensors = trainable(unwrapped(model)).values()
            rows.append(torch.cat([p.detach().reshape(-1) for p in tensors]))
        self.shapes = {name: tuple(p.shape) for name, p in own.items()}
        self.spans = {}
        end = 0
        for name, shape in self.shapes.items():
            self.spans[name] = slice(end, end + math.prod(shape))
            end += math.prod(shape)
        self.named = {}
        self.flat = nn.Parameter(torch.stack(rows))
        self.flat.grad = torch.zeros_like(self.flat)

    def by_name(self, values: Tensor) -> dict[str, Tensor]:
        """Rows [K, P] as {name: [K, *shape]}, views."""
        return {
            name: values[:, self.spans[name]].view(len(values), *shape)
            for name, shape in self.shapes.items()
        }

    def replace(self, values: Tensor) -> None:
        """Other rows from now on, for optimizers that are given parts of them: no gradient."""
        self.flat = nn.Parameter(values)

    def set_gradient(self, gradient: Tensor) -> None:
        """Give the optimizer this gradient."""
        assert self.flat.grad is not None
        self.flat.grad.copy_(gradient)

    @torch.no_grad()
    def hand_back(self, models: Sequence[nn.Module], values: Tensor) -> None:
        """Write the rows into the models' own parameters."""
        for k, model in enumerate(models):
            for name, parameter in trainable(unwrapped(model)).items():
                parameter.copy_(values[k, self.spans[name]].view(parameter.shape))
                parameter.grad = None


class StackedModels:
    """K models that are called as one, each with its own parameters and buffers."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.base = unwrapped(models[0])
        named = {p: name for name, p in trainable(self.base).items()}
        places = slots(self.base)
        # where each tensor of the model comes from: a trainable parameter by name, or a constant
        self.sources = {slot: named.get(tensor) for slot, tensor in places.items()}
        self.fixed: dict[str, Tensor] = {}
        self.fixed_dims: dict[str, int | None] = {}
        every = [slots(unwrapped(model)) for model in models]
        for slot in (slot for slot, name in self.sources.items() if name is None):
            each = [found[slot].detach() for found in every]
            # what is the same everywhere, such as a frozen table, is held once
            same = all(other is each[0] or torch.equal(other, each[0]) for other in each[1:])
            self.fixed[slot] = each[0].clone() if same else torch.stack(each)
            self.fixed_dims[slot] = None if same else 0
        self._versions = {slot: tensor._version for slot, tensor in self.fixed.items()}

    def keep(self, rows: Tensor) -> None:
        """Let go of all models but these."""
        for slot, dim in self.fixed_dims.items():
            if dim is not None:
                self.fixed[slot] = self.fixed[slot][rows]
                self._versions[slot] = self.fixed[slot]._version

    def check_unchanged(self) -> None:
        """What is not trained must not learn: no noise reaches it."""
        for slot, tensor in self.fixed.items():
            if tensor._version != self._versions[slot]:
                raise ModelError(
                    f"{slot!r}, a buffer or frozen parameter, was written to during a release: "
                    "what it took up from the records would be published without noise"
                )

    def call(self, trained: dict[str, Tensor], fixed: dict[str, Tensor], inputs: Any) -> Any:
        """One of the models on a batch; for use under `vmap`."""
        placed = {
            slot: fixed[slot] if name is None else trained[name]
            for slot, name in self.sources.items()
        }
        args, kwargs = arguments(inputs)
        return functional_call(self.base, placed, args, kwargs, tie_weights=False)


class StackedGradients:
    """Sums of the models' gradients, each over a batch of its own.

    Args:
        models: K modules of one architecture.
        parameters: Theirs.
        loss_fn: As for `reticent.train`.
        clip: The clipping style, of whole gradients.
        example: A batch of one made-up example. With it, clipped sums are had by the layers' rules
            where all layers have one; else every example's gradient is written out.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        parameters: StackedParameters,
        loss_fn: LossFn,
        clip: Clipping,
        example: Batch | None = None,
    ) -> None:
        self.models = StackedModels(models)
        self.parameters, self.loss_fn, self.clip = parameters, loss_fn, clip
        bounds, self.dtype = bounds_of(clip, trainable(self.models.base))
        self.bound = bounds[0]
        fixed = self.models.fixed_dims
        self._plain = torch.vmap(grad(self._weighted), (0, fixed, 0, 0, 0), randomness="error")
        each = torch.vmap(grad_and_value(self._one), (None, None, 0, 0), randomness="error")
        self._each = torch.vmap(each, (0, fixed, 0, 0), randomness="error")
        self.rules: RuledSums | None = None
        if example is not None:
            spans = parameters.spans
            self.rules = ruled(self.models, spans, loss_fn, clip, self.dtype, example)

    def piece(self, room: int, bytes_each: int, *, clipped: bool) -> int:
        """How many examples of each model fit into a pass of `room` bytes.

        A gradient that is written out is there twice while it is scaled; rules keep copies of what
        the pass left behind.
        """
        count, size = self.parameters.values.shape
        if clipped:
            bytes_each = 4 * bytes_each if self.rules is not None else bytes_each + 2 * 4 * size
        return max(min(room // max(bytes_each, 1), MOST_EXAMPLES) // count, 1)

    def keep(self, rows: Tensor) -> None:
        """Let go of all models but these; the parameters have been replaced."""
        self.models.keep(rows)
        if self.rules is not None:
            self.rules.moved()

    def _weighted(
        self, trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Any, y: Any, weights: Tensor
    ) -> Tensor:
        losses = per_example_losses(self.loss_fn, self.models.call(trained, fixed, x), y)
        return (losses * weights).sum()

    def _one(self, trained: dict[str, Tensor], fixed: dict[str, Tensor], x: Any, y: Any) -> Tensor:
        outputs = self.models.call(trained, fixed, as_one(x))
        return self.loss_fn(outputs, as_one(y)).sum()

    def plain(self, batch: Batch, valid: Tensor, piece: int) -> Tensor:
        """Unclipped sums [K, P] in double precision, one backward pass and no example's gradient.

        Args:
            batch: Inputs and targets [K, M, ...].
            valid: [K, M], False for padding.
            piece: How many examples of each model at once.
        """
        total = torch.zeros_like(self.parameters.values, dtype=torch.float64)
        trained = self.parameters.by_name(self.parameters.values)
        for x, y, counted in pieces_of(batch, valid, piece):
            with sdpa_kernel(SDPBackend.MATH):
                grads = self._plain(trained, self.models.fixed, x, y, counted.to(self.dtype))
            for name, values in grads.items():
                total[:, self.parameters.spans[name]] += values.reshape(len(total), -1)
        return total

    def clipped(
        self, batch: Batch, valid: Tensor, piece: int, bounds: Tensor | None = None
    ) -> Tensor:
        """The same of clipped gradients; an example that is not finite contributes nothing.

        `bounds` [K, 1], with room for rounding, where the models differ in theirs.
        """
        total = torch.zeros_like(self.parameters.values, dtype=torch.float64)
        trained = self.parameters.by_name(self.parameters.values)
        if bounds is None:
            bounds = torch.full((len(total), 1), self.bound, dtype=self.dtype, device=total.device)
        for x, y, counted in pieces_of(batch, valid, piece):
            if self.rules is not None:
                try:
                    total += self.rules(trained, x, y, counted, bounds)
                    continue
                except NoFastPathError:
                    self.rules = None
            self._add_written(total, trained, x, y, counted, bounds)
        return total

    def _add_written(
        self,
        total: Tensor,
        trained: dict[str, Tensor],
        x: Any,
        y: Any,
        counted: Tensor,
        bounds: Tensor,
    ) -> None:
        """One piece, by writing every example's gradient out."""
        with sdpa_kernel(SDPBackend.MATH):  # fused attention has no batching rule
            grads, losses = self._each(trained, self.models.fixed, x, y)
        # what layers may be rounded to, norms and sums must not be
        with torch.autocast(total.device.type, enabled=False):
            self._add(total, grads, losses, counted, bounds)

    def _add(
        self,
        total: Tensor,
        grads: dict[str, Tensor],
        losses: Tensor,
        counted: Tensor,
        bounds: Tensor,
    ) -> None:
        wide = {name: grads.pop(name).to(self.dtype).flatten(2) for name in list(grads)}
        squared = torch.stack([g.square().sum(2) for g in wide.values()]).sum(0)
        finite = squared.isfinite() & losses.isfinite()
        factors = self.clip.factors(squared.sqrt(), bounds)
        factors = torch.where(finite & counted, factors, 0.0)
        # asking a device would mean waiting for it
        clean = finite.device.type == "cpu" and bool(finite.all())
        for name, values in wide.items():
            kept = values if clean else torch.where(finite.unsqueeze(2), values, 0.0)
            total[:, self.parameters.spans[name]] += added_up(factors, kept)


def pieces_of(batch: Batch, valid: Tensor, piece: int) -> list[tuple[Any, Any, Tensor]]:
    """Examples in pieces of about one size, which libraries then prepare for once."""
    count = valid.shape[1]
    size = -(-count // -(-count // piece)) if count else 1
    starts = range(0, count, size)

    def cut(tree: Any, start: int) -> Any:
        return tree_map(lambda leaf: leaf[:, start : start + size], tree)

    return [(cut(batch[0], s), cut(batch[1], s), valid[:, s : s + size]) for s in starts]


class PartRecords(Records):
    """Some records of others, by position; nothing is copied."""

    def __init__(self, records: Records, rows: Tensor) -> None:
        super().__init__(len(rows))
        self.records, self.rows = records, rows
        self.indices_on = records.indices_on

    def fetch(self, indices: Tensor) -> Batch:
        """As the base class says."""
        return self.records.fetch(self.rows[indices.to(self.rows.device)])

    def fingerprint(self) -> str:
        """As the base class says."""
        return f"{self.records.fingerprint()} {self.rows.tolist()}"
