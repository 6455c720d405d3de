"""A parameter repeated for every example: the output gradient is the gradient."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn

from reticent.gradients.rules.base import Grads, Rule


class DirectRule(Rule):
    """x is the repeated parameter [B, *shape], g has the same shape."""

    parameters = frozenset({"parameter"})
    small = True

    def positions(self, module: nn.Module, x: Tensor) -> tuple[int, ...]:
        """None: the shape is the parameter's own."""
        return ()

    def per_example(self, module: nn.Module, x: Tensor, g: Tensor, roles: Collection[str]) -> Grads:
        """The output gradient itself."""
        return {"parameter": g}


DIRECT = DirectRule()
