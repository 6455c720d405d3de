"""What a per-layer gradient rule is, and the registry that finds one for a module.

For one application of a layer, let x be its input and g the gradient of the summed loss with
respect to its output, both with examples along dimension 0. Example b's gradient of a parameter is
then a function of x[b] and g[b] alone, linear in g[b]. A rule knows this function in three forms:
written out (`per_example`), reduced to squared norms, and summed over the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from reticent.errors import OptionError
from reticent.gradients import kernels
from reticent.gradients.rules.lengths import squares, wide

Grads = dict[str, Tensor]

# Numbers in one intermediate result: what a CPU's cache holds, and what any device can spare.
CACHED = 2**20
AT_ONCE = 2**26


class NoFastPathError(Exception):
    """The book-keeping engine cannot handle this model; the message says which module and why."""


class Rule:
    """Per-example gradients of one kind of layer; subclass and pass to `register_rule`.

    Only `parameters` and `per_example` are needed; the other two methods have defaults that
    instantiate the gradients. `x` and `g` have at least single precision; examples whose gradient
    is not finite are taken care of by the engine.

    Example, a layer that scales its input elementwise:

    >>> import torch
    >>> from reticent.gradients import Rule, check, register_rule, unregister_rule
    >>> class Scale(torch.nn.Module):
    ...     def __init__(self, width):
    ...         super().__init__()
    ...         self.scale = torch.nn.Parameter(torch.ones(width))
    ...     def forward(self, x):
    ...         return x * self.scale
    >>> class ScaleRule(Rule):
    ...     parameters = frozenset({"scale"})
    ...     def per_example(self, module, x, g, roles):
    ...         return {"scale": (x * g).flatten(1, -2).sum(1) if x.ndim > 2 else x * g}
    >>> register_rule(Scale, ScaleRule())
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), Scale(4), torch.nn.Linear(4, 2))
    >>> x, y = torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1])
    >>> check(model, torch.nn.CrossEntropyLoss(), x, y).ok
    True
    >>> unregister_rule(Scale)
    """

    #: names of the module's own parameters that this rule can handle
    parameters: frozenset[str] = frozenset()
    #: whether written-out gradients are small, so that they are kept rather than computed twice
    small: bool = False
    #: parameters with short gradients that need g alone: always written out, as soon as g is known
    brief: frozenset[str] = frozenset()
    #: whether x and g are brought to single precision at least before the rule sees them
    widens: bool = True

    def refuse(self, module: nn.Module) -> str | None:
        """Why this instance cannot be handled, or None."""
        return None

    def handles(self, names: set[str]) -> bool:
        """Whether every parameter of a module is one this rule knows."""
        return names <= self.parameters

    def argument(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The tensor the layer was called with."""
        values = [*args, *kwargs.values()]
        if len(values) != 1 or not isinstance(values[0], Tensor):
            raise NoFastPathError("it is called with something other than one tensor")
        return values[0]

    def positions(self, module: nn.Module, x: Tensor) -> tuple[int, ...]:
        """Sizes of x other than examples and features: where a batch might hide by mistake."""
        return tuple(x.shape[1:])

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Gradients [B, *shape] of the parameters in `roles`."""
        raise NotImplementedError

    def squared_norms(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """Squared norms [B] of `per_example`."""
        return {role: squares(grad) for role, grad in self.per_example(module, x, g, roles).items()}

    def weighted_sum(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> Grads:
        """Sum of `per_example` over the batch; g already carries each example's factor."""
        return {role: grad.sum(0) for role, grad in self.per_example(module, x, g, roles).items()}

    def prepared(
        self,
        module: nn.Module,
        x: Tensor,
        g: Tensor,
        factors: Tensor,
        roles: Collection[str],
        ours: bool,
    ) -> tuple[Tensor, Tensor]:
        """Inputs, and g times the factors, for `weighted_sum`; a factor of 0 silences even NaN.

        Both operands of a product are silenced: 0 times NaN is NaN. Where they are `ours` they may
        be written to.
        """
        if ours and kernels.usable(g) and kernels.in_rows(g):
            if not x.is_floating_point():
                kernels.zero_rows(g, factors)
                return x, g * _along(factors, g)
            if kernels.usable(x) and kernels.in_rows(x):
                kernels.zero_rows(x, factors)
                kernels.zero_rows(g, factors)
                return x, g * _along(factors, g)
        keep = factors > 0
        if all_known(keep):
            return x, g * _along(factors, g)
        g = torch.where(_along(keep, g), g * _along(factors, g), 0.0)
        return torch.where(_along(keep, x), x, 0.0) if x.is_floating_point() else x, g

    def mass(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """Bounds [B] on the sum of the norms of the terms that `weighted_sum` adds up.

        Larger than the norm where an example's own terms cancel. Not needed, and {}, where
        `weighted_sum` adds whole per-example gradients.
        """
        return {}

    def measures(
        self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]
    ) -> tuple[Grads, Grads]:
        """`squared_norms`, and the squares of `mass`: together where one computation gives both."""
        masses = self.mass(module, x, g, roles)
        return self.squared_norms(module, x, g, roles), {r: m.square() for r, m in masses.items()}

    def instantiates(self, module: nn.Module, x: Tensor, g: Tensor) -> bool:
        """Whether `squared_norms` writes the gradients out, so that they may as well be kept."""
        return self.small

    def early(self, module: nn.Module, x: Tensor, g: Tensor, numbers: int) -> bool:
        """Whether to write the gradients out, `numbers` per example, as soon as g is known.

        They take hardly more memory than x and g, which are then let go.
        """
        given = x.shape[1:].numel() + g.shape[1:].numel()
        return self.instantiates(module, x, g) and numbers <= 1.25 * given

    def concatenate(
        self, module: nn.Module, pairs: list[tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor] | None:
        """Several uses of one parameter as a single use, if the layer allows it."""
        return None


class CompositeRule(Rule):
    """A rule that replaces the layer's forward by one made of uses that other rules handle.

    `parameters` may name parameters of submodules ("out_proj.weight"): the rule claims its subtree.
    """

    def forward(self, module: nn.Module, tape: Any, *args: Any, **kwargs: Any) -> Any:
        """Compute the layer's output, recording every use of a parameter on `tape`."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Target:
    """A parameter, or a block of its rows (`start` to `stop` along dimension 0)."""

    parameter: Tensor
    start: int = 0
    stop: int = -1

    def __post_init__(self) -> None:
        if self.stop < 0:
            object.__setattr__(self, "stop", self.parameter.shape[0] if self.parameter.ndim else 1)

    @property
    def whole(self) -> bool:
        """Whether this is all of the parameter."""
        return self.parameter.ndim == 0 or self.stop - self.start == self.parameter.shape[0]

    def of(self, tensor: Tensor) -> Tensor:
        """The rows of a tensor shaped like the parameter."""
        return tensor if self.whole else tensor[self.start : self.stop]


class Place:
    """Where in the graph the gradient of a watched tensor will appear."""

    def __init__(self) -> None:
        self.arrived: list[Callable[[Tensor], None]] = []

    def __call__(self, g: Tensor) -> None:
        """Called by autograd, once, with the whole gradient."""
        for tell in self.arrived:
            tell(g)


@dataclass(eq=False)
class Use:
    """One application of a layer's parameters, as seen in the recorded forward."""

    rule: Rule
    module: nn.Module
    name: str
    x: Tensor
    version: int
    places: int  # several: one per time step, stacked along dimension 1
    targets: dict[str, Target]
    alone: bool = False  # whether no other use has the same parameters
    g: Tensor | None = None
    parts: dict[int, Tensor] = field(default_factory=dict)
    kept: Grads = field(default_factory=dict)

    def numel(self, role: str) -> int:
        """The size of one example's gradient."""
        target = self.targets[role]
        return target.of(target.parameter).numel()

    def operands(self) -> tuple[Tensor, Tensor]:
        """Input and output gradient, in the precision to compute with."""
        assert self.g is not None
        if not self.rule.widens:
            return self.x, self.g
        x, g = wide(self.x), wide(self.g)
        if x.is_floating_point() and x.dtype != g.dtype:  # autocast ran the layer in half precision
            dtype = torch.promote_types(x.dtype, g.dtype)
            x, g = x.to(dtype), g.to(dtype)
        return x, g

    def written(self, roles: Collection[str]) -> Grads:
        """Per-example gradients; an error names the module."""
        try:
            grads = self.rule.per_example(self.module, *self.operands(), roles)
        except NoFastPathError as error:
            raise NoFastPathError(
                f"module {self.name!r} ({type(self.module).__name__}): {error}"
            ) from error.__cause__
        return {role: wide(grads[role]) for role in roles}

    def receive(self, number: int, g: Tensor) -> None:
        """Take the gradient of one of the outputs; let go of what is not needed any more."""
        if self.places > 1:
            self.parts[number] = g
            return
        self.g = g
        if not self.alone:
            return
        brief = self.rule.brief & self.targets.keys()
        with torch.no_grad(), torch.autocast(g.device.type, enabled=False):
            if self.rule.early(
                self.module, self.x, g, sum(self.numel(role) for role in self.targets)
            ):
                self.keep(self.written(self.targets))
            elif brief:
                self.kept = self.rule.per_example(self.module, self.x, g, brief)

    def keep(self, grads: Grads) -> None:
        """Written-out gradients; what they were made of is let go."""
        self.kept = {role: grads[role] for role in self.targets}
        self.g = next(iter(self.kept.values())).new_empty(0)
        self.x = self.g


_RULES: dict[type[nn.Module], Rule] = {}


def register_rule(kind: type[nn.Module], rule: Rule) -> None:
    """Use `rule` for modules of type `kind`; replaces the rule that was there.

    A subclass is covered too when it keeps `kind`'s `forward` and parameter names. See `Rule` for
    an example that runs.
    """
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise OptionError("kind", kind, "must be a subclass of torch.nn.Module")
    if not isinstance(rule, Rule):
        raise OptionError("rule", rule, "must be an instance of reticent.gradients.Rule")
    _RULES[kind] = rule


def unregister_rule(kind: type[nn.Module]) -> None:
    """Forget the rule of `kind`; such modules are then handled without one."""
    _RULES.pop(kind, None)


def registered() -> Iterator[tuple[type[nn.Module], Rule]]:
    """The registered module types and their rules."""
    return iter(tuple(_RULES.items()))


def rule_for(module: nn.Module) -> Rule | None:
    """The rule that claims a module, or None.

    A subclass with its own forward (LoRA layers, say) computes something the rule knows nothing
    of, so inheritance alone is not enough: the very same `forward` function is asked for.
    """
    if "forward" in vars(module) or parametrize.is_parametrized(module):
        return None
    for kind in type(module).__mro__:
        rule = _RULES.get(kind)
        if rule is None:
            continue
        names = {name for name, _ in module.named_parameters(remove_duplicate=False)}
        if (
            _forward_of(type(module)) is _forward_of(kind)
            and rule.handles(names)
            and rule.refuse(module) is None
        ):
            return rule
        return None
    return None


def claims_subtree(module: nn.Module) -> bool:
    """Whether the rule of this type of module, if any, speaks for its submodules as well."""
    return any(isinstance(_RULES.get(kind), CompositeRule) for kind in type(module).__mro__)


def _forward_of(kind: type) -> Callable[..., Any]:
    """The `forward` a module type uses, its own or inherited."""
    forward: Callable[..., Any] = vars(next(k for k in kind.__mro__ if "forward" in vars(k)))[
        "forward"
    ]
    return forward


def pieces(x: Tensor, g: Tensor, numbers: int) -> list[tuple[Tensor, Tensor]]:
    """The batch in pieces whose intermediate results, `numbers` per example, stay small.

    On the CPU they should stay in the cache (2 to 3 times faster); elsewhere the limit only keeps
    a large layer from filling the memory.
    """
    limit = CACHED if x.device.type == "cpu" else AT_ONCE
    step = max(1, limit // max(numbers, 1))
    if step >= x.shape[0]:
        return [(x, g)]
    return list(zip(x.split(step), g.split(step), strict=True))


def joined(parts: list[Tensor]) -> Tensor:
    """The pieces' results as one."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def per_position(x: Tensor) -> Tensor:
    """[B, ..., n] as [B, T, n]."""
    return x.flatten(1, -2) if x.ndim > 2 else x.unsqueeze(1)


def _along(values: Tensor, like: Tensor) -> Tensor:
    """[B] as [B, 1, ..., 1]."""
    return values.view(-1, *(1 for _ in like.shape[1:]))


def all_known(keep: Tensor) -> bool:
    """Whether all are kept, where asking costs nothing: a device would have to be waited for."""
    return keep.device.type == "cpu" and bool(keep.all())
