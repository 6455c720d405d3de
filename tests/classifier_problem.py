"""A small problem that the tests of the classifier share."""

import numpy as np

from reticent.classifier import PrivateClassifier


def problem(n=60, features=4, classes=3):
    generator = np.random.default_rng(0)
    y = np.arange(n) % classes
    centres = 3 * generator.standard_normal((classes, features))
    return centres[y] + generator.standard_normal((n, features)), y


def quick(**options):
    return PrivateClassifier(**{"classes": [0, 1, 2], "steps": 5, "insecure_coins": 1, **options})
