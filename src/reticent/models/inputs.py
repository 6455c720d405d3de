"""Images on a public scale, before the first layer.

The papers' networks for colour images see them less ImageNet's mean and in units of its deviation
(the public code of Tramèr & Boneh 2021, and of DPSUR). These numbers were known before any record
was seen, so they cost no privacy, unlike a mean of the records themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reticent.errors import OptionError, one_of
from reticent.models.registry import Option
from reticent.models.shapes import Shape

PLAIN = "plain"
SCALES = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Mean and deviation of each channel, of values in [0, 1]."""

INPUTS = Option(
    "inputs", PLAIN, "plain: as they come, in [0, 1]; imagenet: by ImageNet's mean and deviation"
)


class PublicScale(nn.Module):
    """(x − mean) / deviation for each channel of [n, C, H, W], with numbers that stay.

    Example:
        >>> PublicScale((0.5,), (0.25,))(torch.ones(1, 1, 1, 1)).item()
        2.0
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: Sequence[float], deviation: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(-1, 1, 1))
        self.register_buffer("deviation", torch.tensor(deviation).view(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Shift and scale `x`."""
        return (x - self.mean) / self.deviation

    def extra_repr(self) -> str:
        """The numbers, for whoever builds the model again."""
        numbers = (tensor.flatten().tolist() for tensor in (self.mean, self.deviation))
        return "mean=({}), deviation=({})".format(
            *(", ".join(f"{value:g}" for value in each) for each in numbers)
        )


def scaling(inputs: str, input_shape: Shape) -> list[nn.Module]:
    """The layers before a network's first: none for plain inputs."""
    if one_of("inputs", inputs, (PLAIN, *SCALES)) == PLAIN:
        return []
    mean, deviation = SCALES[inputs]
    if input_shape[0] != len(mean):
        raise OptionError(
            "inputs",
            inputs,
            f"is for images of {len(mean)} channels; these have shape {input_shape}",
        )
    return [PublicScale(mean, deviation)]
