"""The activations a model may be built with, by a short text.

| text                         | function                                    |
|------------------------------|---------------------------------------------|
| `relu`                       | max(x, 0)                                   |
| `tanh`                       | tanh(x)                                     |
| `tempered-sigmoid`           | 2 · sigmoid(2x) − 1, which is tanh(x)       |
| `tempered-sigmoid:s,T,o`     | s · sigmoid(T·x) − o                        |

Bounded activations keep per-example gradients small, so that clipping cuts less of them away;
this is why tanh is the default of the image models here (Papernot et al. 2021, "Tempered sigmoid
activations for deep learning with differential privacy").
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reticent.errors import OptionError, finite, positive

ActivationFactory = Callable[[], nn.Module]
"""Makes a new activation module; models never share one module between two places."""

_TEMPERED = "tempered-sigmoid"
_CHOICES = f"relu, tanh, {_TEMPERED}, {_TEMPERED}:scale,temperature,offset"


class TemperedSigmoid(nn.Module):
    """s · sigmoid(T · x) − o, elementwise (Papernot et al. 2021, eq. 1).

    Args:
        scale: s > 0; the width of the output's range, (−o, s − o).
        temperature: T > 0; how steep the function is around 0.
        offset: o, subtracted from the output.

    Example:
        >>> TemperedSigmoid(2.0, 2.0, 1.0)(torch.zeros(1))  # the hyperbolic tangent
        tensor([0.])
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0) -> None:
        super().__init__()
        self.scale = positive("scale", scale)
        self.temperature = positive("temperature", temperature)
        self.offset = finite("offset", offset)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function to every element."""
        return self.scale * torch.sigmoid(self.temperature * x) - self.offset

    def extra_repr(self) -> str:
        """The three constants, in the order the text form takes them."""
        return f"scale={self.scale:g}, temperature={self.temperature:g}, offset={self.offset:g}"


def activation(spec: str) -> nn.Module:
    """Return a new activation module for `spec` (see the table at the top of this file).

    Raises:
        OptionError: the text names no activation, or its numbers cannot work.
    """
    if not isinstance(spec, str):
        raise OptionError("activation", spec, f"must be a text, one of {_CHOICES}")
    name, colon, numbers = spec.strip().partition(":")
    if name == _TEMPERED:
        return TemperedSigmoid(*_constants(spec, numbers)) if colon else TemperedSigmoid()
    if name not in ("relu", "tanh"):
        raise OptionError("activation", spec, f"must be one of {_CHOICES}")
    if colon:
        raise OptionError("activation", spec, f"{name} takes no numbers; write {name!r}")
    return nn.ReLU() if name == "relu" else nn.Tanh()


def _constants(spec: str, numbers: str) -> tuple[float, float, float]:
    hint = (
        f"must be written {_TEMPERED}:scale,temperature,offset, such as {_TEMPERED}:1.58,3.0,0.71"
    )
    try:
        scale, temperature, offset = (finite("number", float(text)) for text in numbers.split(","))
    except ValueError:
        raise OptionError("activation", spec, hint) from None
    if scale <= 0 or temperature <= 0:
        raise OptionError("activation", spec, "scale and temperature must be greater than 0")
    return scale, temperature, offset
