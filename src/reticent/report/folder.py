"""What a run left in its folder, as far as a report needs it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from safetensors import safe_open

from reticent.errors import CheckpointError
from reticent.files import read_json, sha256_of
from reticent.training.checkpoint import CHECKPOINT
from reticent.training.result import MODEL_FILE, MODEL_HASH, RUN_FILE, model_trouble, read_run

AUDIT_FORMAT, AUDIT_FILE = "reticent-audit/1", "audit.json"
DIAGNOSTICS_FILE = "diagnostics.private.json"
SETTINGS_FILE = "settings.json"  # as `reticent train` names it
REPORT_FILE, PRIVATE_REPORT_FILE, CARD_FILE = "report.html", "report.private.html", "MODEL_CARD.md"


@dataclass(frozen=True)
class Weights:
    """The model's file: what a statement about a model is about."""

    parameters: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class RunFolder:
    """A run as its files tell it.

    Attributes:
        name: The folder's name.
        run: What `run.json` holds; None while the run is not finished.
        settings: What `reticent train` was told, where it was that command; without paths.
        weights: The model's file, if it is the one that the run wrote, as far as can be told.
        model_trouble: What is wrong with the model's file otherwise, after its name.
        audited: Whether there is an audit of this very run; its contents are private.
        refuted: Whether that audit found something wrong. For a sound run it hardly ever does, so
            that it did not says next to nothing about the records; that it did must be said.
        audit: The audit, where a private report is asked for.
        diagnostics: Private diagnostics, where a private report is asked for.
    """

    name: str
    run: dict[str, Any] | None
    settings: dict[str, Any]
    weights: Weights | None = None
    model_trouble: str | None = None
    audited: bool = False
    refuted: bool = False
    audit: dict[str, Any] | None = None
    diagnostics: dict[str, Any] | None = None

    @property
    def data(self) -> str | None:
        """What the data are called: a data set, or one's own file by its last name."""
        name = self.settings.get("data")
        return None if name is None else str(name).removeprefix("./")

    @property
    def sha256(self) -> str | None:
        """Of the model that the run released, whatever lies beside `run.json`."""
        told = (self.run or {}).get(MODEL_HASH)
        if told is None:
            return None if self.weights is None else self.weights.sha256
        return str(told)

    @property
    def columns(self) -> list[tuple[str, ...]]:
        """What became of each column of one's own data: name, kind, how, cost."""
        config = (self.run or {}).get("config") or {}
        told = config.get("records") or {}
        return [tuple(str(cell) for cell in line) for line in told.get("columns", ())]

    @property
    def source(self) -> str:
        """What one's own data came as, `table`, `array` or `images`; empty if that is not kept."""
        config = (self.run or {}).get("config") or {}
        return str((config.get("records") or {}).get("source", ""))

    @property
    def predicts(self) -> bool:
        """Whether `reticent predict` can be used with it."""
        return self.source in ("table", "array", "images")


def run_identity(folder: Path) -> str:
    """A hash of `run.json`: an audit says by it which run it is about."""
    return hashlib.blake2b((folder / RUN_FILE).read_bytes(), digest_size=16).hexdigest()


def read_folder(folder: str | Path, *, private: bool = False) -> RunFolder:
    """Read a run folder, finished or not.

    Args:
        folder: What `reticent train --out` or `folder=` named.
        private: Also keep the audit and the private diagnostics, which are computed from the
            records without noise.
    """
    folder = Path(folder)
    name = folder.resolve().name
    if not folder.is_dir():
        raise CheckpointError(f"run {str(folder)!r}: is no folder; give the folder of a run")
    if not (folder / RUN_FILE).exists():
        begun = (folder / CHECKPOINT).exists() or (folder / SETTINGS_FILE).exists()
        if not begun:
            raise CheckpointError(
                f"run {str(folder)!r}: holds neither {RUN_FILE} nor an unfinished run; give the "
                "folder of a run"
            )
        return RunFolder(name, None, without_paths(_object(folder / SETTINGS_FILE) or {}))
    run = read_run(folder)
    settings = (run.get("config") or {}).get("settings") or {}
    if not isinstance(settings, dict):
        raise CheckpointError(f"run {str(folder / RUN_FILE)!r}: its settings are no table")
    audited, refuted = True, False
    try:
        audit = _audit(folder)
        audited, refuted = audit is not None, audit is not None and audit.get("passed") is False
    except CheckpointError:
        if private:
            raise
        audit = None  # damaged, or not for our eyes: there is one
    trouble = model_trouble(folder, run)
    return RunFolder(
        name,
        run,
        without_paths(settings),
        weights=None if trouble else _weights(folder / MODEL_FILE, run.get(MODEL_HASH)),
        model_trouble=trouble,
        audited=audited,
        refuted=refuted,
        audit=audit if private else None,
        diagnostics=_object(folder / DIAGNOSTICS_FILE) if private else None,
    )


def without_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings in which a file is called by its last name: folders say who ran it, and where.

    >>> without_paths({"data": "/home/ann/people.csv", "root": "/data", "lr": 0.1})
    {'data': 'people.csv', 'lr': 0.1}
    """

    def shown(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: shown(one) for key, one in value.items()}
        if isinstance(value, str) and (
            PurePosixPath(value).is_absolute() or PureWindowsPath(value).is_absolute()
        ):
            return PureWindowsPath(value).name or value  # takes both kinds of slash
        return value

    return {name: shown(value) for name, value in settings.items() if name != "root"}


def _audit(folder: Path) -> dict[str, Any] | None:
    """The audit of this very run; one of a run that was there before says nothing of it."""
    found = _object(folder / AUDIT_FILE)
    if found is None:
        return None
    if found.get("format") != AUDIT_FORMAT:
        raise CheckpointError(
            f"{str(folder / AUDIT_FILE)!r}: not in format {AUDIT_FORMAT!r}; audit the run again"
        )
    return found if found.get("run") == run_identity(folder) else None


def _object(path: Path) -> dict[str, Any] | None:
    try:
        found = read_json(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"{str(path)!r}: {error.strerror}") from None
    except ValueError as error:
        raise CheckpointError(f"{str(path)!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise CheckpointError(f"{str(path)!r} holds no JSON object")
    return found


def _weights(path: Path, sha256: str | None) -> Weights:
    try:
        sha256 = sha256_of(path) if sha256 is None else sha256
        with safe_open(path, framework="pt") as tensors:  # the header alone is read
            shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    except Exception as error:
        raise CheckpointError(f"{str(path)!r} cannot be read: {error}") from error
    total = 0
    for shape in shapes:
        size = 1
        for length in shape:
            size *= length
        total += size
    return Weights(total, path.stat().st_size, sha256)
