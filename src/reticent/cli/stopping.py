"""Ctrl-C in `reticent train`: what was released until then, what lies on disk, how to go on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from reticent.cli.output import said
from reticent.cli.preparing import STATISTICS_FILE
from reticent.cli.settings import Settings, save_settings
from reticent.cli.unfinished import resume_command
from reticent.training import Training
from reticent.training.checkpoint import CHECKPOINT

NOTHING = "stopped before the first release: nothing was released or charged"
AGAIN = "begin again with the same command"


@dataclass
class Sitting:
    """One call of the command, as far as it came.

    Attributes:
        more: Words that a command to go on needs besides the folder.
        settings: What is trained, once that is known.
        folder: Where to.
        resumed: Whether it goes on with a run that was begun before.
        training: The training, once its folder holds all that is needed to go on.
        finished: Whether the result is saved.
    """

    more: tuple[str, ...] = ()
    settings: Settings | None = None
    folder: Path | None = None
    resumed: bool = False
    training: Training | None = None
    finished: bool = False
    _before: dict[str, tuple[int, int]] = field(default_factory=dict)

    def begin(self, settings: Settings, folder: Path, *, resumed: bool) -> None:
        """Note where the run goes, and what is there already."""
        self.settings, self.folder, self.resumed = settings, folder, resumed
        self._before = _found(folder)

    def said(self) -> str:
        """What to tell whoever stopped it; all of it true wherever it was stopped."""
        folder = self.folder
        if folder is None or self.settings is None:
            return f"{NOTHING}; {AGAIN}"
        on = f"go on with: {resume_command(folder, *self.more)}"
        if self.finished:
            again = shlex.join(["reticent", "report", str(folder), "--card"])
            return f"the run is finished and saved; write its pages with: {again}"
        if self.training is not None and self.training.run.state.step:
            return f"stopped after release {self.training.run.state.step}; {on}"
        if self.resumed:
            return (
                "stopped before the next release: nothing more was released or charged, and "
                f"{str(folder)!r} is as it was; {on}"
            )
        # kept there before the training begins; drawn again, they would be paid for again
        paid = _found(folder).get(STATISTICS_FILE)
        if paid is not None and paid != self._before.get(STATISTICS_FILE):
            if self.training is None:
                save_settings(self.settings, folder)
            return (
                "stopped before the first release: no update was released or charged, but the "
                f"private statistics of the columns were: they are kept in {str(folder)!r}; {on}"
            )
        if self.training is not None and (folder / CHECKPOINT).exists():
            return f"{NOTHING}; {str(folder)!r} holds the settings and a checkpoint; {on}"
        if _found(folder) == self._before:
            return f"{NOTHING}, and nothing was written to {str(folder)!r}; {AGAIN}"
        return f"{NOTHING}; {str(folder)!r} holds no run that could go on; {AGAIN}"


def _found(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder, each told from one that has replaced it."""
    if not folder.is_dir():
        return {}
    known = {path.name: path.stat() for path in folder.iterdir()}
    return {name: (one.st_mtime_ns, one.st_ino) for name, one in known.items()}


@contextmanager
def telling_what_was_stopped(sitting: Sitting) -> Iterator[None]:
    """Say on Ctrl-C or SIGTERM what has happened and what to do; the interrupt goes on."""
    try:
        yield
    except KeyboardInterrupt as error:
        said(error, sitting.said())
        raise
