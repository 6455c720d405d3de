import os
import signal

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    # what torch.manual_seed does, without its milliseconds for devices that are not there
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """No test reads or leaves accounting results in the user's cache folder.

    The workers of one run share a folder: what one has computed the other need not.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETICENT_CACHE", str(shared / "accounting"))
        yield


@pytest.fixture(autouse=True, scope="session")
def _interruptible():
    """Started in the background of a script, Python finds interrupts ignored and leaves it so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
