"""Run folders without a result: what they are, and how to go on with them."""

from __future__ import annotations

import shlex
from pathlib import Path

from reticent.cli.preparing import STATISTICS_FILE
from reticent.cli.settings import SETTINGS_FILE
from reticent.errors import CheckpointError
from reticent.training.checkpoint import CHECKPOINT
from reticent.training.result import RUN_FILE

_AGAIN = "nothing was spent: begin again with the command that made it"


def resume_command(folder: Path, *more: str) -> str:
    """The command that goes on with a run, to be copied.

    >>> resume_command(Path("runs/my run"))
    "reticent train --resume 'runs/my run'"
    """
    return shlex.join(["reticent", "train", "--resume", str(folder), *more])


def check_finished(folder: Path) -> None:
    """Refuse a folder that holds no finished run, and say what there is to do."""
    if (folder / RUN_FILE).exists():
        return
    run = f"run {str(folder)!r}"
    if not folder.is_dir():
        raise CheckpointError(f"{run}: is no folder; give the folder of a run")
    paid = _paid(folder)
    told = (folder / SETTINGS_FILE).exists()
    if paid and told:
        raise CheckpointError(
            f"{run}: is unfinished, so there is no model yet; go on with: {resume_command(folder)}"
        )
    if paid:
        raise CheckpointError(
            f"{run}: is unfinished, so there is no model yet; go on with the call in Python that "
            "began it, with resume=True"
        )
    if told:
        raise CheckpointError(
            f"{run}: was stopped before its first release, so there is no model; {_AGAIN}"
        )
    raise CheckpointError(
        f"{run}: holds neither {RUN_FILE} nor an unfinished run; give the folder of a run"
    )


def check_begun(folder: Path) -> None:
    """Refuse to go on with a run that was stopped before it kept anything, as by a full disk."""
    if not _paid(folder):
        raise CheckpointError(
            f"resume = {str(folder)!r}: holds no checkpoint, which is written before the first "
            f"release; unless it was removed, {_AGAIN}"
        )


def _paid(folder: Path) -> bool:
    """Whether anything may have been spent: a run keeps it before its first release."""
    return any((folder / name).exists() for name in (CHECKPOINT, STATISTICS_FILE))
