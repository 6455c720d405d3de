"""A model's trainable parameters as views into one flat buffer.

Noise, snapshot, restore, averaging and the optimizer are then one kernel each, not a loop.
"""

from __future__ import annotations

import torch
from torch import nn

from reticent.errors import ModelError


class FlatParameters:
    """Moves the trainable parameters of `model` into one buffer; the model sees no difference.

    Order and names are those of `model.named_parameters()`; a tied parameter appears once, frozen
    parameters stay where they are.
    """

    def __init__(self, model: nn.Module) -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        if not named:
            raise ModelError("the model has no trainable parameters (requires_grad is off on all)")
        kinds = {(p.dtype, p.device) for _, p in named}
        if len(kinds) > 1:
            raise ModelError(
                "trainable parameters differ in dtype or device: "
                + ", ".join(f"{name} is {p.dtype} on {p.device}" for name, p in named[:8])
            )
        for name, parameter in named:
            if not bool(torch.isfinite(parameter).all()):
                raise ModelError(f"parameter {name!r} holds NaN or infinite values before training")
        self.named: dict[str, nn.Parameter] = dict(named)
        self.spans: dict[str, slice] = {}
        end = 0
        for name, parameter in named:
            self.spans[name] = slice(end, end + parameter.numel())
            end += parameter.numel()
        values = torch.cat([p.detach().reshape(-1) for _, p in named])
        self.flat = nn.Parameter(values)
        self.flat.grad = torch.zeros_like(values)
        # of every parameter: where its values lie in the buffer, and its part of the gradient
        self._places: list[tuple[str, nn.Parameter, int, torch.Tensor]] = []
        for name, parameter in named:
            span = self.spans[name]
            parameter.data = values[span].view(parameter.shape)
            gradient = self.flat.grad[span].view(parameter.shape)
            offset = span.start * values.element_size()
            self._places.append((name, parameter, offset, gradient))

    @property
    def values(self) -> torch.Tensor:
        """All parameters, one vector; writing to it changes the model."""
        return self.flat.data

    def gradient_of(self, value: torch.Tensor) -> torch.Tensor:
        """The gradient [P] of a number in all parameters, zero where it does not depend on them."""
        named = list(self.named.values())
        parts = torch.autograd.grad(value, named, allow_unused=True)
        zeros = (torch.zeros_like(p) if g is None else g for g, p in zip(parts, named, strict=True))
        return torch.cat([part.reshape(-1) for part in zeros])

    def set_gradient(self, gradient: torch.Tensor) -> None:
        """Give the optimizer this gradient, whether it holds the flat parameter or the views."""
        assert self.flat.grad is not None
        start = self.flat.data_ptr()
        for name, parameter, offset, _ in self._places:
            if parameter.data_ptr() != start + offset:
                raise ModelError(
                    f"parameter {name!r} was given other storage during training (by assigning to "
                    ".data, or moving the model); change it in place instead"
                )
        self.flat.grad.copy_(gradient)
        for _, parameter, _, part in self._places:
            if parameter.grad is not part:
                parameter.grad = part

    def release_gradients(self) -> None:
        """Leave no gradient behind on the model."""
        for parameter in self.named.values():
            parameter.grad = None

    def forget_gradient(self) -> None:
        """Leave no gradient behind at all: the last one was not released."""
        self.release_gradients()
        assert self.flat.grad is not None
        self.flat.grad.zero_()

    def detach_from_buffer(self) -> None:
        """Give every parameter its own storage again, for a model that outlives the run."""
        for parameter in self.named.values():
            parameter.data = parameter.data.clone()
