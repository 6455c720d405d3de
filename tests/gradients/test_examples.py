from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import reticent.gradients

MODULES = [
    info.name
    for info in pkgutil.walk_packages(reticent.gradients.__path__, "reticent.gradients.")
    if not info.ispkg
    and not info.name.rpartition(".")[2].startswith("triton")  # imported on a GPU only
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_every_public_name_exists():
    assert sorted(reticent.gradients.__all__) == list(reticent.gradients.__all__)
    assert all(hasattr(reticent.gradients, name) for name in reticent.gradients.__all__)
