"""One thing to be trained or computed, and what came of it.

A job is known by the hash of its content, so what is finished is found again whatever table, order
or folder it was asked for in. Where it runs is no part of it.

A job on somebody's own records has noise of its own that nobody can guess; `own_records` trains it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from reticent import data as datasets
from reticent import features
from reticent.cli.settings import Settings
from reticent.coins import Coins
from reticent.data.own import is_own
from reticent.errors import OptionError
from reticent.files import read_json, to_json, write_atomically
from reticent.report.folder import without_paths
from reticent.reproduction.tables import TRAINING, Entry, Table
from reticent.training.result import versions

FORMAT = "reticent-reproduction/1"
# where it runs, where its data lies, and what is kept of held-out records besides
_NOT_CONTENT = ("device", "root", "confusion")
Value = float | list[float] | None


@dataclass(frozen=True)
class Job:
    """Complete settings, seed included, and what is measured of them.

    Attributes:
        settings: What is trained.
        variant: How, for DPSUR.
        measures: What is measured.
        attacks: Which attacks are tried; none for a table without them.
        design: How members and non-members are chosen.
        shadows: How many shadow models.
        audited: How many members, and as many others, are attacked at most.
        records: How many training records the attacked model has.
        kind: What is computed instead of trained.
        options: Of that.
    """

    settings: Settings
    variant: str
    measures: tuple[str, ...]
    attacks: tuple[str, ...] = ()
    design: str = "split"
    shadows: int = 8
    audited: int = 5000
    records: int | None = None
    kind: str = TRAINING
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def private(self) -> bool:
        """Whether the records are somebody's own, and not those of a public data set."""
        return is_own(self.settings.data)

    def brought(self) -> str:
        """A fingerprint of the user's file that features are made with; empty for none."""
        return features.brought_with(self.settings.features, self.settings.feature_options)

    def brought_notes(self) -> tuple[str, ...]:
        """What is said of it."""
        return (f"features made with {features.FINGERPRINT} {self.brought()}",) * bool(
            self.brought()
        )

    def content(self) -> dict[str, Any]:
        """All that decides what comes out, but for what a file of one's own holds.

        A name that depends on private records would tell of them.
        """
        settings = self.settings.to_json()  # no ε where there is none
        for name in _NOT_CONTENT:
            del settings[name]
        brought = self.brought()
        if brought:  # files count by what they hold, wherever they are
            files = features.describe(settings["features"]).files
            options = settings["feature_options"]
            kept = {name: value for name, value in options.items() if name not in files}
            settings |= {"feature_options": {**kept, "made with": brought}}
        data: dict[str, Any] = {"own": True}
        if self.private:
            settings = without_paths(settings)
        else:
            info = datasets.lookup(self.settings.data)
            data = {"name": info.name, "train": info.n_train, "test": info.n_test}
        content: dict[str, Any] = {
            "format": FORMAT,
            "settings": settings,
            "data": data,
            "variant": self.variant,
            "measures": sorted(self.measures),
            "kind": self.kind,
            "options": self.options,
        }
        if self.attacks:
            content["attacking"] = {
                "attacks": sorted(self.attacks),
                "design": self.design,
                "shadows": self.shadows,
                "audited": self.audited,
                "records": self.records,
            }
        return content

    @property
    def key(self) -> str:
        """A name for the content."""
        text = json.dumps(self.content(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def coins(self, number: int = 0) -> Coins:
        """The coins of this job: the data is public, and whoever repeats it gets the same table.

        Refused where it is not: whoever can guess the noise can take it off.
        """
        if self.private:
            raise OptionError(
                "data", self.settings.data, "is not public: its noise must not follow from a name"
            )
        digest = hashlib.sha256(f"{self.key} {number}".encode()).digest()
        return Coins.from_seed(int.from_bytes(digest[:8], "little") >> 2)


@dataclass(frozen=True)
class Outcome:
    """What came of a job.

    Attributes:
        key: Of the job.
        state: `done`; `failed` or `missing`, and then `error` says why.
        values: By measure, in the units of `measures`; lists for curves.
        intervals: Of those that have one.
        claimed_epsilon: Of the paper.
        sound_epsilon: What the ledger proves; None where there is none.
        steps: Releases that were made.
        seconds: Time it took, of this and earlier sittings; None where that is private.
        gradients: Gradients of records computed, as expected; None where that is not known.
        guarantee: What kind of promise it comes with, as in `run.json`.
        ledger: What was paid, where the records are somebody's own.
        claim: What is recorded of the paper's accounting, for DPSUR.
        notes: What a reader should know.
        error: Why there is no result.
        made: Versions and machine.
    """

    key: str
    state: str = "done"
    values: dict[str, Value] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    claimed_epsilon: float | None = None
    sound_epsilon: float | None = None
    steps: int | None = None
    seconds: float | None = None
    gradients: float | None = None
    guarantee: str | None = None
    ledger: dict[str, Any] | None = None
    claim: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    error: str | None = None
    made: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            **vars(self),
            "intervals": {name: list(ends) for name, ends in self.intervals.items()},
            "notes": list(self.notes),
        }


def job_of(table: Table, entry: Entry, seed: int, **changes: Any) -> Job:
    """The job of one entry with one seed; `changes` override its settings."""
    return Job(
        settings=replace(entry.settings, seed=seed, **changes),
        variant=entry.variant,
        measures=table.measures,
        attacks=table.attacks,
        design=table.design,
        shadows=table.shadows,
        audited=table.audited,
        records=entry.records,
        kind=table.kind,
        options=entry.options,
    )


class Kept:
    """The folder of finished jobs, a file for each, readable by its owner alone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "jobs"

    def path(self, key: str) -> Path:
        """Where a job is kept."""
        return self.folder / f"{key}.json"

    def write(self, job: Job, outcome: Outcome) -> None:
        """Keep what is done; what failed is tried again."""
        if outcome.state == "done":
            content = {"job": job.content(), "outcome": outcome.to_json()}
            write_atomically(self.path(outcome.key), to_json(content), mode=0o600)

    def read(self, key: str) -> Outcome | None:
        """What is kept of a job; None for what is not there, or not whole."""
        try:
            content = read_json(self.path(key))
            found = content["outcome"]
            if content["job"]["format"] != FORMAT or found["key"] != key:
                return None
            ends = {name: (low, high) for name, (low, high) in found["intervals"].items()}
            return Outcome(**{**found, "intervals": ends, "notes": tuple(found["notes"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def seeds(self) -> set[int]:
        """The seeds of the jobs that are kept."""
        found = set()
        for path in self.folder.glob("*.json"):
            try:
                found.add(int(read_json(path)["job"]["settings"]["seed"]))
            except (OSError, ValueError, TypeError, KeyError):
                continue
        return found


def made_by(device: str | torch.device) -> dict[str, Any]:
    """Versions and machine: enough to judge a result, nothing that names the machine."""
    cuda = torch.device(device).type == "cuda"
    return {
        "versions": versions(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "accelerator": torch.cuda.get_device_name(device) if cuda else None,
    }
