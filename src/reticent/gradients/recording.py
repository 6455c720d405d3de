"""One forward pass, watched: which layer was applied to what, and where its output went.

While a model is being recorded, every *unit* (the smallest module owning trainable parameters that
a rule claims) has its `forward` replaced on the instance. The replacement hides the unit's
parameters from autograd, so that the backward pass computes gradients of layer outputs only, never
of weights. A parameter that is used anywhere else stays visible, gets a gradient, and is
thereby found out: nothing is dropped in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from reticent.errors import ModelError
from reticent.gradients.rules.base import (
    CompositeRule,
    NoFastPathError,
    Place,
    Rule,
    Target,
    Use,
    claims_subtree,
    rule_for,
)
from reticent.gradients.rules.direct import DIRECT
from reticent.gradients.rules.generic import GENERIC, refuse_generic
from reticent.gradients.rules.linear import LINEAR


@dataclass(eq=False)
class Unit:
    """A module that is recorded as a whole."""

    name: str
    module: nn.Module
    rule: Rule
    parameters: Mapping[str, Tensor]  # trainable ones, by name within the module


def find_units(model: nn.Module) -> list[Unit]:
    """The units of a model; raises `NoFastPathError` where one cannot be handled."""
    units: list[Unit] = []
    seen: set[nn.Module] = set()

    def visit(name: str, module: nn.Module) -> None:
        if module in seen:
            return
        seen.add(module)
        whole = parametrize.is_parametrized(module)
        below: dict[str, Tensor] = {}
        rule: Rule | None = None
        # most modules are containers: their parameters are looked at further down
        if whole or module._parameters or claims_subtree(module):
            below = {
                n: p for n, p in module.named_parameters(remove_duplicate=False) if p.requires_grad
            }
            rule = rule_for(module) if below else None
        direct = any(p is not None and p.requires_grad for p in module._parameters.values())
        if not (direct or whole or isinstance(rule, CompositeRule)) or not below:
            for child, inner in module.named_children():
                visit(f"{name}.{child}" if name else child, inner)
            return
        if rule is None:
            if module is model:
                raise NoFastPathError(
                    f"{_called(name, module)}: parameters {', '.join(below)} are used by the "
                    "model's own forward, which no rule describes"
                )
            reason = refuse_generic(module)
            if reason is not None:
                raise NoFastPathError(f"{_called(name, module)}: {reason}")
            rule = GENERIC
            below = {n: p for n, p in module.named_parameters() if p.requires_grad}
        units.append(Unit(name, module, rule, below))
        seen.update(module.modules())

    visit("", model)
    return units


def _called(name: str, module: nn.Module) -> str:
    return f"module {name!r} ({type(module).__name__})" if name else type(module).__name__


class _Attach(torch.autograd.Function):
    """Makes a fresh tensor part of the graph in place: no copy, and later in-place writes work."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, seed: Tensor) -> Tensor:
        ctx.mark_dirty(y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None]:
        return None, None


@contextmanager
def _hidden(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Parameters without requires_grad, so that no weight gradient is computed."""
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


@dataclass(eq=False)
class Tape:
    """What was seen of one forward pass over `batch` examples."""

    batch: int
    uses: list[Use] = field(default_factory=list)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    asleep: set[str] = field(default_factory=set)  # units called with gradients off
    backward: bool = False
    unit: Unit | None = None  # the composite unit being run
    busy: bool = False  # inside a unit, whose parts are its own affair
    seeds: dict[torch.device, Tensor] = field(default_factory=dict)  # where the graph begins

    def watch(self, y: Tensor, *, fresh: bool = True) -> tuple[Tensor, Place]:
        """Y as part of the graph, and the place in the graph where its gradient will appear.

        The place is taken at once, since an in-place operation later moves y elsewhere.
        """
        if not y.requires_grad:
            if not fresh or y._is_view() or y.is_leaf is False:
                y = y.clone()
            y = _Attach.apply(y, self.seed(y.device))
        place = Place()
        y.register_hook(place)
        return y, place

    def seed(self, device: torch.device) -> Tensor:
        """What makes a tensor part of the graph."""
        if device not in self.seeds:
            self.seeds[device] = torch.zeros((), device=device, requires_grad=True)
        return self.seeds[device]

    def begin_backward(self) -> None:
        """From here on gradients arrive."""
        self.backward = True
        counts = Counter(id(t.parameter) for use in self.uses for t in use.targets.values())
        for use in self.uses:
            use.alone = all(counts[id(t.parameter)] == 1 for t in use.targets.values())

    def record(
        self,
        unit: Unit,
        rule: Rule,
        x: Tensor,
        places: Sequence[Place],
        targets: dict[str, Target],
    ) -> Use | None:
        """Remember one use; examples must lie along dimension 0."""
        if x.ndim == 0 or x.shape[0] != self.batch:
            raise NoFastPathError(
                f"its input has shape {tuple(x.shape)}, without the {self.batch} examples along "
                "dimension 0"
            )
        wanted = {
            r: t
            for r, t in targets.items()
            if any(t.parameter is p for p in unit.parameters.values())
        }
        if self.backward or not wanted:
            return None
        self.sizes.append(rule.positions(unit.module, x))
        use = Use(rule, unit.module, unit.name, x.detach(), x._version, len(places), wanted)
        self.uses.append(use)
        for number, place in enumerate(places):
            place.arrived.append(partial(use.receive, number))
        return use

    def linear(self, x: Tensor, weight: Target, bias: Target | None) -> tuple[Tensor, Place]:
        """X Wᵀ + b inside a composite layer, recorded as a linear use."""
        rows = weight.of(weight.parameter)
        y = nn.functional.linear(x, rows, None if bias is None else bias.of(bias.parameter))
        y, place = self.watch(y)
        self.also(x, [place], weight, bias)
        return y, place

    def also(self, x: Tensor, places: Sequence[Place], weight: Target, bias: Target | None) -> None:
        """A linear use whose outputs are already watched."""
        self.note(LINEAR, x, places, {"weight": weight} | ({} if bias is None else {"bias": bias}))

    def note(
        self, rule: Rule, x: Tensor, places: Sequence[Place], targets: dict[str, Target]
    ) -> None:
        """A use, by any rule, whose outputs are already watched."""
        assert self.unit is not None
        self.record(self.unit, rule, x, places, targets)

    def each(self, parameter: Tensor, batch: int) -> Tensor:
        """A parameter repeated for every example; its gradient is the per-example gradient."""
        y, place = self.watch(parameter.detach().expand(batch, *parameter.shape).clone())
        assert self.unit is not None
        self.record(self.unit, DIRECT, y, [place], {"parameter": Target(parameter)})
        return y

    def check_unchanged(self) -> None:
        """Inputs written to after the layer read them would give wrong gradients."""
        for use in self.uses:
            if use.x._version != use.version:
                if use.rule is GENERIC or ("weight" not in use.targets and use.rule is LINEAR):
                    raise NoFastPathError(
                        f"the input of {_called(use.name, use.module)} was modified in place"
                    )
                raise ModelError(
                    f"the input of {_called(use.name, use.module)} was modified in place after the "
                    "layer had read it, so its gradient cannot be computed (plain autograd fails "
                    "here as well): replace the in-place operation"
                )


def _override(unit: Unit, tape: Tape) -> Callable[..., Any]:
    """The forward of a unit while it is being recorded."""
    module, rule, original = unit.module, unit.rule, unit.module.forward
    parameters = list({id(p): p for p in unit.parameters.values()}.values())

    def forward(*args: Any, **kwargs: Any) -> Any:
        if tape.busy:  # shared with a module that is differentiated as a whole
            return original(*args, **kwargs)
        if any(_transformed(value) for value in [*args, *kwargs.values()]):
            raise NoFastPathError(f"{_called(unit.name, module)}: it is run under torch.func")
        if not torch.is_grad_enabled():
            tape.asleep.add(unit.name)  # as in autograd: contributes nothing
            return original(*args, **kwargs)
        if tape.backward and unit.name in tape.asleep:
            raise ModelError(REENTRANT.format(_called(unit.name, module)))
        try:
            if isinstance(rule, CompositeRule):
                outer, tape.unit = tape.unit, unit
                try:
                    with _hidden(parameters):
                        return rule.forward(module, tape, *args, **kwargs)
                finally:
                    tape.unit = outer
            x = rule.argument(module, args, kwargs)
            tape.busy = True
            try:
                with _hidden(parameters):
                    y = original(*args, **kwargs)
            finally:
                tape.busy = False
            if not isinstance(y, Tensor) or y.ndim == 0 or y.shape[0] != tape.batch:
                raise NoFastPathError(
                    "it does not return one tensor with examples along dimension 0"
                )
            y, place = tape.watch(y, fresh=rule is not GENERIC)
            tape.record(unit, rule, x, [place], {n: Target(p) for n, p in unit.parameters.items()})
        except NoFastPathError as error:
            if str(error).startswith("module "):
                raise
            raise NoFastPathError(f"{_called(unit.name, module)}: {error}") from None
        return y

    return forward


def _transformed(value: Any) -> bool:
    """Whether a tensor stands for something else inside torch.func.vmap or grad."""
    return isinstance(value, Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(value)


REENTRANT = (
    "{} is run again during the backward pass (reentrant checkpointing), where its gradients "
    "cannot be seen: call torch.utils.checkpoint.checkpoint with use_reentrant=False"
)


@contextmanager
def recording(units: Sequence[Unit], tape: Tape) -> Iterator[None]:
    """Replace the units' forwards, and put everything back whatever happens."""
    with ExitStack() as undo:
        for unit in units:
            state = vars(unit.module)
            if "forward" in state:
                undo.callback(state.__setitem__, "forward", state["forward"])
            else:
                undo.callback(state.pop, "forward", None)
            state["forward"] = _override(unit, tape)
        yield
