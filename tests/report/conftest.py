import shutil

import pytest

from .runs import made


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """A finished run; not to be changed."""
    return made(tmp_path_factory.mktemp("runs") / "first")


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of it, to do with as one likes."""
    return shutil.copytree(finished, tmp_path / "mine")
