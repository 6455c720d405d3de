"""Sums and losses of one model, again and again: prepared once, then as fast as the device."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from reticent.gradients import layouts, rounding
from reticent.gradients.batches import batch_size, call, trainable
from reticent.gradients.capturing import Captured
from reticent.gradients.clipping import Clipping, as_clipping
from reticent.gradients.engine import bounds_of, clipped_sum, summed
from reticent.gradients.isolating import changed_by, device_of, plain_settings
from reticent.gradients.losses import LossFn, per_example_losses
from reticent.gradients.sums import ClippedSum, accumulators, wide_room


def state_of(model: nn.Module) -> tuple[tuple[Hashable, ...], list[Tensor]]:
    """What a graph of the model depends on: modes, and which tensors are where; and these tensors.

    An `id` stands for a tensor as long as that is held.
    """
    state: list[Hashable] = []
    held: list[Tensor] = []
    ahead = [model]
    seen = set()
    while ahead:
        module = ahead.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        state += (id(module), module.training)
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                state += (id(tensor), tensor.data_ptr(), tensor.requires_grad)
                held.append(tensor)
        ahead += [child for child in module._modules.values() if child is not None]
    return tuple(state), held


class _Repeated:
    """A model's graphs, and when they can be used."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        self.model = model
        self.loss_fn = loss_fn
        #: why graphs are not used on a device that has them
        self.reason = ""
        self._captured: dict[Hashable, Captured] = {}
        self._watched = False
        self._settings: list[tuple[dict[str, Any], str]] = []  # where plain values of modules are
        self._state: tuple[Hashable, ...] | None = None
        self._held: list[Tensor] = []  # the tensors of that state
        self._devices: set[torch.device] = set()
        self._parameters: dict[str, Tensor] = {}

    def _replays(self, inputs: Any, targets: Any) -> bool:
        """Whether this call can come from a graph."""
        leaves = tree_flatten((inputs, targets))[0]
        if not all(isinstance(leaf, Tensor) and leaf.device.type == "cuda" for leaf in leaves):
            return False
        self._look()
        device = leaves[0].device
        if batch_size(inputs, targets) == 0 or self._devices != {device}:
            return False
        if not self._watched:
            self._watched = True
            self._settings = plain_settings(self.model)
            changed = changed_by(self.model, inputs)
            if changed:
                self.reason = f"{changed[0]!r} changes with every forward pass"
        return not self.reason

    def _look(self) -> None:
        """Notice what changed in the model since the last call, in one walk."""
        state, held = state_of(self.model)
        if state != self._state:
            self._state, self._held = state, held
            self._devices = {tensor.device for tensor in held}
            self._parameters = trainable(self.model)

    def _run(
        self, leaves: Sequence[Tensor], style: Hashable, make: Callable[[], Callable[..., Any]]
    ) -> list[Tensor]:
        """Replay the graph of this style and of the state the model is in."""
        captured = self._captured.get(style)
        if captured is None:
            captured = self._captured[style] = Captured(make())
        key = (
            self._state,
            tuple(held.get(name) for held, name in self._settings),  # a temperature, a drop rate
            frozenset(rounding.allowed(leaves[0].device)),
            torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda"),
        )
        results = captured(*leaves, key=key)
        self.reason = captured.reason
        return results


class RepeatedSum(_Repeated):
    """`clipped_sum` of one model and loss, for a training's many batches.

    On a CUDA device each shape of batch is recorded as a graph and replayed, which takes the host
    out of the way; elsewhere, and for models that cannot be recorded (`.reason` says why), this is
    `clipped_sum`. Bounds may change from call to call. Batches of many sizes should be padded to a
    few, with a `mask`. With `wide` sums are double precision: where many pieces are added up, one
    record more would round each of them anew.

    >>> import torch
    >>> model = torch.nn.Linear(3, 2)
    >>> repeated = RepeatedSum(model, torch.nn.CrossEntropyLoss())
    >>> x, y = torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    >>> repeated(x, y, clip=0.1).sensitivity
    0.1
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn,
        clip: float | Clipping = 1.0,
        *,
        path: str = "auto",
        wide: bool = False,
    ) -> None:
        super().__init__(model, loss_fn)
        self.clip = clip
        self.path = path
        self.wide = wide
        self._bounds: tuple[Any, Tensor] | None = None
        self._last: bool | None = None  # whether images are given channels last; not known yet
        self._taken = ("fast", "")

    def __call__(
        self,
        inputs: Any,
        targets: Any,
        mask: Tensor | None = None,
        *,
        clip: float | Clipping | None = None,
        least: Tensor | None = None,
    ) -> ClippedSum:
        """The sum over these examples; the arguments are those of `clipped_sum`."""
        clipping = as_clipping(self.clip if clip is None else clip)
        if not self._replays(inputs, targets):
            on_cpu = device_of(self.model).type == "cpu" and batch_size(inputs, targets) > 0
            if on_cpu and self._turns(inputs, targets):
                inputs = layouts.channels_last(inputs)
            return clipped_sum(
                self.model,
                self.loss_fn,
                inputs,
                targets,
                clipping,
                path=self.path,
                mask=mask,
                least=least,
                out=wide_room(trainable(self.model)) if self.wide else None,
            )
        leaves, spec = tree_flatten((inputs, targets))
        parameters, device = self._parameters, leaves[0].device
        self._turns(inputs, targets)
        if mask is None:
            mask = torch.ones(batch_size(inputs, targets), dtype=torch.bool, device=device)
        bounds = self._bounds_on(device, clipping, parameters)
        extra = [] if least is None else [least]
        style = (type(clipping), getattr(clipping, "gamma", None), repr(spec), len(extra))
        flat, norms, losses, nonfinite = self._run(
            [*leaves, mask, bounds, *extra], style, lambda: self._function(spec, clipping)
        )
        return ClippedSum(
            accumulators(parameters, flat),
            norms,
            clipping.sensitivity,
            nonfinite,
            losses,
            *self._taken,
            buffer=flat,
        )

    def _turns(self, inputs: Any, targets: Any) -> bool:
        """Whether images are given channels last."""
        if self._last is None:
            self._last = layouts.gains(self.model) and layouts.fits(
                self.model, self.loss_fn, inputs, targets
            )
        return self._last

    def _bounds_on(
        self, device: torch.device, clipping: Clipping, parameters: dict[str, Tensor]
    ) -> Tensor:
        """The bounds where the graph reads them; sent there only when they change."""
        wanted = (*bounds_of(clipping, parameters), device)
        if self._bounds is None or self._bounds[0] != wanted:
            sent = torch.tensor(wanted[0], dtype=wanted[1]).to(device, non_blocking=True)
            self._bounds = (wanted, sent)
        return self._bounds[1]

    def _function(self, spec: Any, clipping: Clipping) -> Callable[..., Any]:
        """What is recorded: from tensors to tensors, the bounds among them."""

        def compute(*tensors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            leaves, (mask, bounds, *extra) = tensors[: spec.num_leaves], tensors[spec.num_leaves :]
            inputs, targets = tree_unflatten(list(leaves), spec)
            inputs = layouts.channels_last(inputs) if self._last else inputs
            flat = wide_room(self._parameters)
            flat = flat if self.wide else flat.to(bounds.dtype)
            total = summed(
                self.model,
                self.loss_fn,
                inputs,
                targets,
                clipping,
                path=self.path,
                mask=mask,
                out=flat,
                bounds=bounds,
                least=extra[0] if extra else None,
            )
            self._taken = (total.path, total.reason)
            return flat, total.norms, total.losses, total.nonfinite

        return compute


class RepeatedLosses(_Repeated):
    """Losses [B] of one model, without gradients, in the mode it is in."""

    @torch.no_grad()
    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """The losses of these examples."""
        if not self._replays(inputs, targets):
            return self._losses(inputs, targets)
        leaves, spec = tree_flatten((inputs, targets))

        def compute(*tensors: Tensor) -> tuple[Tensor]:
            return (self._losses(*tree_unflatten(list(tensors), spec)),)

        return self._run(leaves, repr(spec), lambda: compute)[0]

    def _losses(self, inputs: Any, targets: Any) -> Tensor:
        return per_example_losses(self.loss_fn, call(self.model, inputs), targets).detach()
