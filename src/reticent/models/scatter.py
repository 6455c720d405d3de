"""Models on scattering features: `scatter-cnn`, `scatter-linear`.

Architectures of Tramèr & Boneh (2021, "Differentially private learning needs better features (or
much more data)"). The normalisation of the input is computed within each example and learns
nothing, so it costs no privacy, unlike their other choice: means and variances over the records.
"""

from __future__ import annotations

from torch import nn

from reticent.errors import OptionError, one_of
from reticent.models.activations import ActivationFactory
from reticent.models.dense import group_norm, linear_head
from reticent.models.registry import ModelCard, Option, register
from reticent.models.shapes import Shape, Window, image_after
from reticent.models.starting import START, started

_GROUPS = Option("groups", 27, "groups of channels the input is normalised in; 0 for none")
_LEAST_CHANNELS = 5  # images have fewer, features more
_COLOUR = 243  # channels from which on the network for colour images is used
_NOTE = "Takes features, not images: `--features scattering`, or `reticent.features.apply`."


@register(
    ModelCard(
        name="scatter-linear",
        paper="Tramèr & Boneh 2021",
        summary="group normalisation without parameters, flatten, fc classes",
        input_shape=(81, 7, 7),
        classes=10,
        options=(_GROUPS,),
        notes=(_NOTE,),
    )
)
def scatter_linear(*, classes: int, input_shape: Shape, groups: int) -> nn.Module:
    """One linear layer on normalised scattering features; 39,700 parameters for 28x28 images."""
    _features("scatter-linear", input_shape)
    return linear_head(classes=classes, input_shape=input_shape, groups=groups)


@register(
    ModelCard(
        name="scatter-cnn",
        paper="Tramèr & Boneh 2021",
        summary="group normalisation, then conv 16 3x3/2, conv 32 3x3, fc 32, fc classes; in "
        "colour conv 64 3x3, pool 2/2, conv 64 3x3, fc classes",
        input_shape=(81, 7, 7),
        classes=10,
        activation="tanh",
        options=(
            _GROUPS,
            Option("network", "auto", f"grey, colour, or auto: colour from {_COLOUR} channels on"),
            START,
        ),
        notes=(_NOTE,),
    )
)
def scatter_cnn(
    *,
    classes: int,
    input_shape: Shape,
    activation: ActivationFactory,
    groups: int,
    network: str,
    start: str,
) -> nn.Module:
    """Two convolutions on normalised scattering features.

    For 28x28 grey images (81x7x7) 33,066 parameters, for 32x32 colour images (243x8x8) 187,210.
    """
    channels = _features("scatter-cnn", input_shape)
    if one_of("network", network, ("auto", "grey", "colour")) == "auto":
        network = "colour" if channels >= _COLOUR else "grey"
    norm = group_norm(input_shape, groups)
    conv, half, pool = Window(3, 1, 1), Window(3, 2, 1), Window(2, 2)
    if network == "grey":
        height, width = image_after("scatter-cnn", input_shape, (half, conv))
        layers = nn.Sequential(
            *norm,
            nn.Conv2d(channels, 16, *half),
            activation(),
            nn.Conv2d(16, 32, *conv),
            activation(),
            nn.Flatten(),
            nn.Linear(32 * height * width, 32),
            activation(),
            nn.Linear(32, classes),
        )
        return started(layers, start)
    height, width = image_after("scatter-cnn", input_shape, (conv, pool, conv))
    layers = nn.Sequential(
        *norm,
        nn.Conv2d(channels, 64, *conv),
        activation(),
        nn.MaxPool2d(*pool),
        nn.Conv2d(64, 64, *conv),
        activation(),
        nn.Flatten(),
        nn.Linear(64 * height * width, classes),
    )
    return started(layers, start)


def _features(model: str, input_shape: Shape) -> int:
    """Return the channels, or say where features come from."""
    if len(input_shape) != 3 or input_shape[0] < _LEAST_CHANNELS:
        raise OptionError(
            "input_shape",
            input_shape,
            f"{model} takes scattering features, such as (81, 7, 7) for 28x28 images: compute them "
            "with --features scattering, or reticent.features.apply",
        )
    return input_shape[0]
