from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A data folder of the test's own; whatever this machine holds must not decide it."""
    folder = tmp_path / "home"
    monkeypatch.setenv("RETICENT_DATA", str(folder))
    return folder
