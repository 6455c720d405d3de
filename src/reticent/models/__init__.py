"""Architectures by name, as the papers print them.

    >>> from reticent import models
    >>> model = models.build("mnist-cnn", classes=10, input_shape=(1, 28, 28), activation="relu")

Every model is made of plain PyTorch layers, holds no batch normalisation, treats each example of a
batch on its own, and takes a batch of any size, none included. `names()` lists them, `describe`
says where one comes from and what it takes, and `register` adds another.
"""

# Imported for what they register.
from reticent.models import dense, images, scatter, text, wideresnet  # noqa: F401
from reticent.models.activations import ActivationFactory, TemperedSigmoid, activation
from reticent.models.registry import ModelCard, Option, build, describe, names, register
from reticent.models.summary import Layer, layers, parameter_counts
from reticent.models.text import BiLSTMClassifier
from reticent.models.wideresnet import StandardizedConv2d, WideResNet

__all__ = [
    "ActivationFactory",
    "BiLSTMClassifier",
    "Layer",
    "ModelCard",
    "Option",
    "StandardizedConv2d",
    "TemperedSigmoid",
    "WideResNet",
    "activation",
    "build",
    "describe",
    "layers",
    "names",
    "parameter_counts",
    "register",
]
