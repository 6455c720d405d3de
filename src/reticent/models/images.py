"""Convolutional networks for small images: `mnist-cnn`, `cifar-cnn`, `digits-cnn`.

Each activation sits right after its convolution, before the pooling. The tables print none;
activations here are monotone, so the order of activation and max-pooling changes nothing.
"""

from __future__ import annotations

from torch import nn

from reticent.models.activations import ActivationFactory
from reticent.models.inputs import INPUTS, scaling
from reticent.models.registry import ModelCard, register
from reticent.models.shapes import Shape, Window, image, image_after
from reticent.models.starting import START, started

_NO_ACTIVATION_PRINTED = (
    "The tables print no activation; tanh is the choice of Papernot et al. (2021).",
)


@register(
    ModelCard(
        name="mnist-cnn",
        paper="DPSUR (Fu et al. 2024), Table 5; Papernot et al. 2021",
        summary="conv 16 8x8/2 pad 2, pool 2/1, conv 32 4x4/2, pool 2/1, fc 32, fc classes",
        input_shape=(1, 28, 28),
        classes=10,
        activation="tanh",
        options=(START,),
        notes=(
            *_NO_ACTIVATION_PRINTED,
            "Ghosh & Das print the same network (Table 1), the settings of two rows exchanged.",
        ),
    )
)
def mnist_cnn(
    *, classes: int, input_shape: Shape, activation: ActivationFactory, start: str
) -> nn.Module:
    """The MNIST and Fashion-MNIST network of DPSUR, Table 5; 26,010 parameters."""
    first, second, pool = Window(8, 2, 2), Window(4, 2), Window(2, 1)
    height, width = image_after("mnist-cnn", input_shape, (first, pool, second, pool))
    network = nn.Sequential(
        nn.Conv2d(input_shape[0], 16, *first),
        activation(),
        nn.MaxPool2d(*pool),
        nn.Conv2d(16, 32, *second),
        activation(),
        nn.MaxPool2d(*pool),
        nn.Flatten(),
        nn.Linear(32 * height * width, 32),
        activation(),
        nn.Linear(32, classes),
    )
    return started(network, start)


@register(
    ModelCard(
        name="cifar-cnn",
        paper="DPSUR (Fu et al. 2024), Table 6; Papernot et al. 2021",
        summary="(conv 3x3 twice, pool 2/2) with 32, 64, 128 filters, fc 128, fc classes",
        input_shape=(3, 32, 32),
        classes=10,
        activation="tanh",
        options=(INPUTS, START),
        notes=(
            *_NO_ACTIVATION_PRINTED,
            "Their public code scales images by ImageNet's mean and deviation: `inputs=imagenet`.",
        ),
    )
)
def cifar_cnn(
    *, classes: int, input_shape: Shape, activation: ActivationFactory, inputs: str, start: str
) -> nn.Module:
    """The CIFAR-10 network of DPSUR, Table 6; 550,570 parameters."""
    filters = (32, 64, 128)
    conv, pool = Window(3, 1, 1), Window(2, 2)
    height, width = image_after("cifar-cnn", input_shape, (conv, conv, pool) * len(filters))
    layers = scaling(inputs, input_shape)
    channels = input_shape[0]
    for count in filters:
        for _ in range(2):
            layers += [nn.Conv2d(channels, count, *conv), activation()]
            channels = count
        layers.append(nn.MaxPool2d(*pool))
    network = nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * height * width, 128),
        activation(),
        nn.Linear(128, classes),
    )
    return started(network, start)


@register(
    ModelCard(
        name="digits-cnn",
        paper="none; made for the 8x8 digits that come with scikit-learn",
        summary="conv 16 3x3 pad 1, pool 2/2, conv 16 3x3 pad 1, fc classes",
        input_shape=(1, 8, 8),
        classes=10,
        activation="tanh",
        notes=("With a small budget, `linear` and its 650 parameters are worth trying first.",),
    )
)
def digits_cnn(*, classes: int, input_shape: Shape, activation: ActivationFactory) -> nn.Module:
    """Two small convolutions for 8x8 digits; 5,050 parameters."""
    conv, pool = Window(3, 1, 1), Window(2, 2)
    channels, _, _ = image("digits-cnn", input_shape)
    height, width = image_after("digits-cnn", input_shape, (conv, pool, conv))
    return nn.Sequential(
        nn.Conv2d(channels, 16, *conv),
        activation(),
        nn.MaxPool2d(*pool),
        nn.Conv2d(16, 16, *conv),
        activation(),
        nn.Flatten(),
        nn.Linear(16 * height * width, classes),
    )
