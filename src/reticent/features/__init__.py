"""Features computed before training, by name: fixed maps of each record, at no cost in privacy.

>>> from reticent import data, features
>>> splits = features.apply(data.load("digits"), "scattering", {"scales": 1}, keep=False)
>>> tuple(splits.test[0].shape)
(360, 9, 4, 4)
"""

from reticent.features.applying import apply, locate
from reticent.features.catalog import FeatureCard, FeatureOption, describe, names
from reticent.features.scattering import Scattering

__all__ = [
    "FeatureCard",
    "FeatureOption",
    "Scattering",
    "apply",
    "describe",
    "locate",
    "names",
]
