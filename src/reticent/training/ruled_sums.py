"""Clipped sums of many models by the layers' own rules: no example's gradient of the whole model.

One forward and one backward pass, mapped over the models, give each layer's inputs x and output
gradients g. An example's gradient is a function of its x and g alone, whatever the weights were, so
the rules of `reticent.gradients` see the examples of all models as one batch; only the last
contraction is done model by model. This is book-keeping (Bu, Wang, Zha, Karypis 2023) for K models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.func import grad
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_flatten, tree_unflatten

from reticent.errors import ModelError
from reticent.gradients import Clipping, rounding
from reticent.gradients.batches import call, trainable
from reticent.gradients.capturing import Captured
from reticent.gradients.losses import LossFn, per_example_losses
from reticent.gradients.norms import squared_norms
from reticent.gradients.plans import Plan, added_up, by_group, clip_factors
from reticent.gradients.recording import Unit, find_units
from reticent.gradients.rules.base import CompositeRule, NoFastPathError, Target, Use, per_position
from reticent.gradients.rules.generic import GENERIC
from reticent.gradients.rules.linear import LINEAR
from reticent.gradients.rules.norm import NormRule


class RuledSums:
    """Sums of clipped gradients [K, P] where every layer has a rule, and is used once.

    Args:
        models: K models that are called as one: `call(trained, fixed, inputs)`, `base`, `fixed`.
        spans: Where each parameter lies in a row.
        loss_fn: As for `reticent.train`.
        clip: The clipping style.
        dtype: What norms are computed in.
        example: A batch of made-up examples.
    """

    def __init__(
        self,
        models: Any,
        spans: dict[str, slice],
        loss_fn: LossFn,
        clip: Clipping,
        dtype: torch.dtype,
        example: tuple[Any, Any],
    ) -> None:
        self.models, self.spans, self.loss_fn = models, spans, loss_fn
        self.clip, self.dtype = clip, dtype
        self.parameters = trainable(models.base)
        self.names = {id(p): name for name, p in self.parameters.items()}
        self.units = self._checked_units()
        self.shapes = self._output_shapes(example[0])
        self._pass = torch.vmap(
            grad(self._weighted, has_aux=True),
            (0, 0, models.fixed_dims, 0, 0, 0),
            randomness="error",
        )
        self.moved()

    def moved(self) -> None:
        """Parameters lie elsewhere from now on: what was recorded reads the old place."""
        self._captured: dict[Any, Captured] = {}

    def _checked_units(self) -> list[Unit]:
        units = find_units(self.models.base)
        for unit in units:
            whole = isinstance(unit.rule, CompositeRule) and not isinstance(unit.rule, NormRule)
            if whole or unit.rule is GENERIC:
                raise NoFastPathError(f"{type(unit.module).__name__} is no plain layer")
        owned = [id(p) for unit in units for p in unit.parameters.values()]
        if sorted(owned) != sorted(self.names):
            raise NoFastPathError("a parameter is shared, or used outside a layer")
        return units

    def _output_shapes(self, inputs: Any) -> list[tuple[int, ...]]:
        """The shapes of the layers' outputs for one example."""
        found: dict[int, tuple[int, ...]] = {}

        def note(place: int, x: Tensor, y: Tensor) -> Tensor:
            if place in found:
                raise NoFastPathError("a layer is used twice")
            found[place] = tuple(y.shape[1:])
            return y

        with torch.no_grad(), self._watching(note):
            call(self.models.base, inputs)
        if len(found) < len(self.units):
            raise NoFastPathError("a layer is not used")
        return [found[place] for place in range(len(self.units))]

    @contextmanager
    def _watching(self, see: Callable[[int, Tensor, Tensor], Tensor]) -> Iterator[None]:
        """Every layer's output goes through `see`, with its number and its input."""

        def override(place: int, unit: Unit) -> Callable[..., Any]:
            original = unit.module.forward

            def forward(*args: Any, **kwargs: Any) -> Any:
                x = unit.rule.argument(unit.module, args, kwargs)
                return see(place, x, original(*args, **kwargs))

            return forward

        try:
            for place, unit in enumerate(self.units):
                vars(unit.module)["forward"] = override(place, unit)
            yield
        finally:
            for unit in self.units:
                vars(unit.module).pop("forward", None)

    def _weighted(
        self,
        taps: list[Tensor],
        trained: dict[str, Tensor],
        fixed: dict[str, Tensor],
        inputs: Any,
        targets: Any,
        counted: Tensor,
    ) -> tuple[Tensor, tuple[list[Tensor], Tensor]]:
        """The summed losses of one model, whose gradient in a tap is that of a layer's output."""
        seen: dict[int, Tensor] = {}
        versions: dict[int, int] = {}

        def tap(place: int, x: Tensor, y: Tensor) -> Tensor:
            if place in seen or y.shape != taps[place].shape:
                raise NoFastPathError("a layer is used in another way than on a single example")
            seen[place], versions[place] = x, x._version
            return y + taps[place].to(y.dtype)

        with self._watching(tap):
            outputs = self.models.call(trained, fixed, inputs)
        if any(x._version != versions[place] for place, x in seen.items()):
            raise NoFastPathError("a layer's input was written to after the layer had read it")
        losses = per_example_losses(self.loss_fn, outputs, targets)
        each = [seen[place] for place in range(len(self.units))]
        return torch.where(counted, losses, 0.0).sum(), (each, losses)

    def __call__(
        self, trained: dict[str, Tensor], inputs: Any, targets: Any, counted: Tensor, bounds: Tensor
    ) -> Tensor:
        """The sums [K, P] of one piece, in double precision.

        Args:
            trained: The models' parameters by name, [K, ...].
            inputs: [K, M, ...].
            targets: The same.
            counted: [K, M], False for padding.
            bounds: [K, 1], with room for rounding.
        """
        leaves, shape = tree_flatten((inputs, targets))

        def compute(counted: Tensor, bounds: Tensor, *leaves: Tensor) -> list[Tensor]:
            x, y = tree_unflatten(list(leaves), shape)
            return [self._sum(trained, x, y, counted, bounds)]

        device = counted.device
        if device.type != "cuda":
            return compute(counted, bounds, *leaves)[0]
        key = (
            str(shape),
            frozenset(rounding.allowed(device)),
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        )
        if key not in self._captured:
            self._captured[key] = Captured(compute)
        return self._captured[key](counted, bounds, *leaves)[0]

    def _sum(
        self, trained: dict[str, Tensor], inputs: Any, targets: Any, counted: Tensor, bounds: Tensor
    ) -> Tensor:
        models, size = counted.shape
        zero = next(iter(trained.values())).new_zeros(())
        taps = [zero.expand(models, size, *shape) for shape in self.shapes]
        with sdpa_kernel(SDPBackend.MATH):
            grads, (seen, losses) = self._pass(
                taps, trained, self.models.fixed, inputs, targets, counted
            )
        kind = counted.device.type
        with torch.no_grad(), torch.autocast(kind, enabled=False):
            uses = [
                self._use(unit, x.flatten(0, 1), g.flatten(0, 1))
                for unit, x, g in zip(self.units, seen, grads, strict=True)
            ]
            del grads, seen
            factors = self._factors(uses, losses.flatten(), counted.flatten(), bounds, size)
            total = torch.zeros(
                (models, max(span.stop for span in self.spans.values())),
                dtype=torch.float64,
                device=counted.device,
            )
            while uses:
                self._add(total, uses.pop(), factors)
        return total

    def _use(self, unit: Unit, x: Tensor, g: Tensor) -> Use:
        targets = {role: Target(p) for role, p in unit.parameters.items()}
        return Use(unit.rule, unit.module, unit.name, x, x._version, 1, targets, True, g)

    def _factors(
        self, uses: list[Use], losses: Tensor, counted: Tensor, bounds: Tensor, size: int
    ) -> Tensor:
        """By what each example's gradient is scaled, [K * M]; 0 for those left out."""
        plan = Plan(
            model=self.models.base,
            loss_fn=self.loss_fn,
            clipping=self.clip,
            parameters=self.parameters,
            groups=dict.fromkeys(self.parameters, 0),
            bounds=[bounds.expand(-1, size).flatten()],
            sums=[],
            ends=[],
            dtype=self.dtype,
        )
        squared, floors = (
            by_group(plan, {self.names[key]: value for key, value in found.items()}, losses)
            for found in squared_norms(uses)
        )
        return clip_factors(plan, squared, losses, counted, floors)[0][0]

    def _add(self, total: Tensor, use: Use, factors: Tensor) -> None:
        """Add one layer's clipped gradients to the sums."""
        models = len(total)
        rest = []
        for role in use.targets:
            if role not in use.kept:
                rest.append(role)
                continue
            kept = use.kept.pop(role).flatten(1)
            # 0 times NaN is NaN
            kept = torch.where((factors > 0).unsqueeze(1), kept, 0.0)
            each = factors.to(kept.dtype).view(models, -1)
            scaled = added_up(each, kept.view(models, -1, kept.shape[1]))
            self._place(total, use, role).add_(scaled)
        if not rest:
            return
        x, g = use.operands()
        x, g = use.rule.prepared(use.module, x, g, factors.to(g.dtype), rest, False)
        if use.rule is LINEAR:
            if x.ndim == 2:  # as the rule itself does
                x, g = x.double(), g.double()
            x, g = (per_position(t).unflatten(0, (models, -1)).flatten(1, 2) for t in (x, g))
            for role in rest:
                found = g.mT @ x if role == "weight" else g.sum(1)
                self._place(total, use, role).add_(found.flatten(1))
            return
        for k, (own_x, own_g) in enumerate(zip(x.chunk(models), g.chunk(models), strict=True)):
            sums = use.rule.weighted_sum(use.module, own_x, own_g, rest)
            for role in rest:
                self._place(total, use, role)[k].add_(sums[role].flatten())

    def _place(self, total: Tensor, use: Use, role: str) -> Tensor:
        return total[:, self.spans[self.names[id(use.targets[role].parameter)]]]


def ruled(
    models: Any,
    spans: dict[str, slice],
    loss_fn: LossFn,
    clip: Clipping,
    dtype: torch.dtype,
    example: tuple[Any, Any],
) -> RuledSums | None:
    """Sums by rules, where all layers have one; clipping must be of the whole gradient."""
    if clip.grouped:
        return None
    try:
        return RuledSums(models, spans, loss_fn, clip, dtype, example)
    except (NoFastPathError, ModelError):
        return None
