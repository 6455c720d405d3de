"""Whether settings can be built at all, from what is publicly known of the data set.

Nothing is loaded: a table can be checked before its data is here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reticent import data as datasets
from reticent import features, methods
from reticent.cli.building import build_method, build_model
from reticent.cli.settings import Settings
from reticent.data import Splits

_VECTOR_LENGTH = 100  # of the word vectors
_UNKNOWN_WIDTH = 768  # of an encoder that is not here


def absent_features(settings: Settings) -> str | None:
    """Which file of the user's the features need and what to do; None if nothing is wanting."""
    if settings.features == "none":
        return None
    return features.absent(settings.features, settings.feature_options)


def sample(settings: Settings) -> Splits:
    """One made-up training record and one test record of the data set, as features if asked for."""
    info = datasets.lookup(settings.data)
    extras: dict[str, Tensor] = {}
    inputs = torch.zeros((1, *info.shape))
    if info.vocabulary is not None:
        inputs = torch.full((1, *info.shape), 3, dtype=torch.int64)
        extras["vectors"] = torch.zeros((info.vocabulary + 3, _VECTOR_LENGTH))
    if absent_features(settings) is not None:
        inputs = torch.zeros((1, _UNKNOWN_WIDTH))
    elif settings.features != "none":
        transform = features.catalog.build(
            settings.features, tuple(info.shape), settings.feature_options, extras
        )
        # of no record: the shape is all that is wanted, and some kinds learn before their first
        inputs = torch.zeros((1, *transform(inputs[:0]).shape[1:]))
    labels = torch.zeros(1, dtype=torch.int64)
    return Splits((inputs, labels), (inputs, labels), info, extras)


def build(settings: Settings) -> tuple[methods.Method, nn.Module]:
    """The method and the untrained model; the model has been tried on a made-up record."""
    splits = sample(settings)
    model = build_model(settings, splits)
    outputs = model(splits.train[0])
    assert outputs.shape == (1, splits.info.n_classes), tuple(outputs.shape)
    return build_method(settings), model
