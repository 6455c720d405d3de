"""Scalars for TensorBoard: only what may be shown while a run goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from reticent.errors import OptionError
from reticent.files import check_folder
from reticent.training import Release, Training


def check_tensorboard(folder: Path) -> None:
    """Refuse a folder that cannot be written to, or a missing package, before anything is spent."""
    check_folder("tensorboard", folder)
    _writer_class(folder)


def _writer_class(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise OptionError(
            "tensorboard", str(folder), "needs tensorboard: pip install reticent[tensorboard]"
        ) from None
    return SummaryWriter


def scalars(training: Training, metrics: dict[str, float]) -> dict[str, float]:
    """What may be shown after a release that was evaluated; nothing else is ever written."""
    run, method = training.run, training.method
    shown = {f"held-out/{name}": value for name, value in metrics.items()}
    if training.budget is not None:
        shown["privacy/epsilon"] = run.ledger.quick_epsilon(training.budget.delta)
    at = getattr(method, "multiplier", None)  # of noise that follows a schedule
    noise = at(run.state.step - 1, run.n) if callable(at) else method.options().get("noise")
    if noise is not None:
        shown["privacy/noise multiplier"] = float(noise)
    shown["learning rate"] = float(run.state.optimizer.param_groups[0]["lr"])
    return shown


class Board:
    """Writes the scalars of one training.

    All carry the time at which the run began: how long releases took depends on how many records
    were drawn. Of methods whose running time is private, everything is written at the end.
    """

    def __init__(self, folder: Path, training: Training) -> None:
        self._training = training
        self._began = time.time()
        self._writer = _writer_class(folder)(log_dir=str(folder))
        self._held: list[tuple[int, dict[str, float]]] = []
        self._live = not training.method.timing_is_private

    def __call__(self, release: Release) -> None:
        """Take up a release, if it was evaluated."""
        if release.metrics is None:
            return
        self._held.append((release.step, scalars(self._training, release.metrics)))
        if self._live:
            self._write()

    def _write(self) -> None:
        for step, found in self._held:
            for name, value in found.items():
                self._writer.add_scalar(name, value, step, walltime=self._began)
        self._held = []
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._write()
        self._writer.close()
