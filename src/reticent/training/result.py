"""What a training produced, and its folder: `run.json` and `model.safetensors`."""

from __future__ import annotations

import hashlib
import math
import platform
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import nn

from reticent.errors import CheckpointError
from reticent.files import check_folder, read_json, sha256_of, to_json, write_atomically
from reticent.privacy import Budget, Ledger, Statement
from reticent.training.checkpoint import CHECKPOINT

RUN_FORMAT = "reticent-run/1"
RUN_FILE, MODEL_FILE = "run.json", "model.safetensors"
MODEL_HASH = "model_sha256"  # in `run.json`; runs of earlier versions lack it


def versions() -> dict[str, str]:
    """The versions a reader needs to run this again."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("reticent", "numpy", "scipy", "dp-accounting"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # running from a source tree
            found[name] = "unknown"
    return found


@dataclass
class Result:
    """A trained model with the ledger that says what it cost.

    Nothing in here holds the coins' key or any private diagnostic; `save` writes all of it.
    """

    model: nn.Module
    ledger: Ledger
    budget: Budget | None
    method: dict[str, Any]
    guarantee: str
    steps: int
    metrics: list[dict[str, float]]
    seconds: float | None
    config: dict[str, Any] = field(default_factory=dict)
    microbatch: int | None = None
    # Of a piece of made-up records, from before the run: the peak of the run itself depends on how
    # many records were drawn, which is private.
    piece_memory_bytes: int | None = None
    released: dict[str, Any] = field(default_factory=dict)
    conduct: dict[str, Any] = field(default_factory=dict)
    held_out: dict[str, Any] | None = None
    # what shows that the released model is of no use, if anything does; see `diverged.in_words`
    diverged: dict[str, Any] | None = None
    versions: dict[str, str] = field(default_factory=versions)

    @property
    def statement(self) -> Statement:
        """ε at the budget's δ (1e-5 for a run without a budget), with the accountant's name."""
        delta = 1e-5 if self.budget is None else self.budget.delta
        return self.ledger.statement(delta)

    @property
    def epsilon(self) -> float:
        """The ε spent: an upper bound, infinite for a run without a guarantee."""
        return self.statement.epsilon

    @property
    def accuracy(self) -> float | None:
        """The last accuracy measured on held-out records, if any was."""
        return next((m["accuracy"] for m in reversed(self.metrics) if "accuracy" in m), None)

    def _kept_guarantee(self) -> str:
        """Differential privacy without a finite ε is none; other promises have no ε anyway."""
        private = self.guarantee == "differential-privacy"
        return "none" if private and not math.isfinite(self.epsilon) else self.guarantee

    def to_json(self) -> dict[str, Any]:
        """What `run.json` holds, but for the hash of the model's file, which `save` adds."""
        statement = self.statement.to_json()
        return {
            "format": RUN_FORMAT,
            "guarantee": self._kept_guarantee(),
            "statement": statement,
            "budget": None if self.budget is None else self.budget.to_json(),
            "method": self.method,
            "steps": self.steps,
            "released": self.released,
            "conduct": self.conduct,
            # a run that diverged is reported too
            "metrics": [
                {key: value if math.isfinite(value) else None for key, value in line.items()}
                for line in self.metrics
            ],
            # of held-out records, which ε does not cover
            **({} if self.held_out is None else {"held_out": self.held_out}),
            **({} if self.diverged is None else {"diverged": self.diverged}),
            # null where the running time is private
            "seconds": None if self.seconds is None else round(self.seconds),
            "microbatch": self.microbatch,
            "piece_memory_bytes": self.piece_memory_bytes,
            "config": self.config,
            "versions": self.versions,
            "ledger": self.ledger.to_json(),
        }

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write `model.safetensors`, then `run.json`: where the latter stands, both are whole.

        Args:
            folder: Where to. The folder that holds this very run can be given again.
            overwrite: Replace another run in the folder, finished or not.

        Raises:
            CheckpointError: the folder holds another run.
        """
        folder = Path(folder)
        check_folder("folder", folder)
        weights = self._weights()
        told = {**self.to_json(), MODEL_HASH: hashlib.sha256(weights).hexdigest()}
        report = to_json(told)  # before any change: a report that cannot be written stops here
        if not _holds(folder, report):
            if not overwrite:
                refuse_taken(folder)
            (folder / RUN_FILE).unlink(missing_ok=True)  # else it would stand over other weights
        write_atomically(folder / MODEL_FILE, weights)
        write_atomically(folder / RUN_FILE, report)
        (folder / CHECKPOINT).unlink(missing_ok=True)  # last: until then it can be gone on from
        return folder

    def _weights(self) -> bytes:
        """The content of the model's file."""
        tensors = {
            name: value.detach().cpu().clone().contiguous()
            for name, value in self.model.state_dict().items()
        }
        return save(tensors)


def refuse_taken(folder: Path) -> None:
    """Refuse a folder that holds a run, finished or not."""
    if (folder / RUN_FILE).exists():
        raise CheckpointError(
            f"{str(folder)!r} holds a finished run; choose another folder, or say --overwrite "
            "(overwrite=True) to replace it"
        )
    if (folder / CHECKPOINT).exists():
        raise CheckpointError(
            f"{str(folder)!r} holds an unfinished run; go on with --resume (resume=True), replace "
            "it with --overwrite (overwrite=True), or choose another folder"
        )


def _holds(folder: Path, report: bytes) -> bool:
    """Whether a folder has this very `run.json`."""
    try:
        return (folder / RUN_FILE).read_bytes() == report
    except OSError:
        return False


def read_run(folder: str | Path) -> dict[str, Any]:
    """The contents of a run folder's `run.json`."""
    path = Path(folder) / RUN_FILE
    try:
        data = read_json(path)
    except OSError as error:
        raise CheckpointError(f"run {str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"run {str(path)!r} is not JSON: {error}") from None
    if not isinstance(data, dict) or data.get("format") != RUN_FORMAT:
        raise CheckpointError(f"run {str(path)!r}: not in format {RUN_FORMAT!r}")
    return data


def model_trouble(folder: str | Path, run: dict[str, Any]) -> str | None:
    """What is wrong with a folder's model beside its `run.json`, after the file's name; or None.

    A run of an earlier version does not say which file is its model: any whole one will do.
    """
    path = Path(folder) / MODEL_FILE
    try:
        if MODEL_HASH in run:
            same = sha256_of(path) == run[MODEL_HASH]
            other = f"is not the file that this run wrote: its SHA-256 is not the one in {RUN_FILE}"
            return None if same else other
        with safe_open(path, framework="pt"):
            return None
    except FileNotFoundError:
        return "does not exist"
    except (OSError, SafetensorError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"


def check_model(folder: str | Path, run: dict[str, Any]) -> None:
    """Refuse a folder whose model is not the one that its run released."""
    trouble = model_trouble(folder, run)
    if trouble is not None:
        raise CheckpointError(
            f"{str(Path(folder) / MODEL_FILE)!r} {trouble}; copy it from the folder of the training"
        )


def load_weights(model: nn.Module, folder: str | Path) -> nn.Module:
    """Load a saved run's weights into a model of the same architecture.

    Whatever weights are in the folder: they need not be those that its `run.json` is about.
    """
    path = Path(folder) / MODEL_FILE
    try:
        model.load_state_dict(load_file(path))
    except FileNotFoundError:
        raise CheckpointError(f"{str(path)!r} does not exist") from None
    except Exception as error:
        raise CheckpointError(f"{str(path)!r} cannot be loaded: {error}") from error
    return model
