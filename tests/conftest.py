import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory):
    """No test reads or leaves accounting results in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RETICENT_CACHE", str(tmp_path_factory.mktemp("accounting")))
        yield
