"""Features computed before training, by name, and inputs standardised by private statistics.

Features are fixed maps of each record, at no cost in privacy. What is computed over records, such
as the means and variances of `standardise`, is a release and is paid for.

>>> from reticent import data, features
>>> splits = features.apply(data.load("digits"), "scattering", {"scales": 1}, keep=False)
>>> tuple(splits.test[0].shape)
(360, 9, 4, 4)
"""

from reticent.encoders import export_encoder
from reticent.features.applying import FINGERPRINT, apply, check_note, locate
from reticent.features.catalog import (
    FeatureCard,
    FeatureOption,
    absent,
    brought_with,
    describe,
    names,
)
from reticent.features.image_encoder import ImageEncoder
from reticent.features.random_images import RandomImages
from reticent.features.scattering import Scattering
from reticent.features.sentence_encoder import SentenceEncoder
from reticent.features.standardising import (
    ChannelStatistics,
    Reach,
    channel_statistics,
    standardise,
)
from reticent.features.word_clusters import WordClusters
from reticent.features.word_vectors import WordVectors

__all__ = [
    "FINGERPRINT",
    "ChannelStatistics",
    "FeatureCard",
    "FeatureOption",
    "ImageEncoder",
    "RandomImages",
    "Reach",
    "Scattering",
    "SentenceEncoder",
    "WordClusters",
    "WordVectors",
    "absent",
    "apply",
    "brought_with",
    "channel_statistics",
    "check_note",
    "describe",
    "export_encoder",
    "locate",
    "names",
    "standardise",
]
