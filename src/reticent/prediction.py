"""Predictions for new records, from what a run folder holds: the training records are not needed.

A run on somebody's own file keeps in `run.json` how records became numbers, beside the model in
`model.safetensors` and, where columns had no public scale, the released statistics. These three
files are enough. Predictions are computed from a released model, so they cost the training records
nothing; about the new records they are exact.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from reticent import features, models
from reticent.data.own.encoding import standardised_columns
from reticent.data.own.recorded import NewRecords, Recorded
from reticent.errors import CheckpointError, DataError, ReticentError
from reticent.features.applying import check_note
from reticent.features.catalog import build as build_features
from reticent.training.diverged import in_words
from reticent.training.result import RUN_FILE, check_model, load_weights, read_run
from reticent.training.train import pick_device

# The command line's settings import this module's callers, so they are imported when called.
if TYPE_CHECKING:
    from reticent.cli.settings import Settings

_PIECE = 1024  # records on the device at a time; no influence on the result


@dataclass(frozen=True)
class Predictions:
    """What a model says of new records.

    Attributes:
        names: the number of each record, from 1, or its file.
        classes: the labels.
        probabilities: [records, classes], each row adding up to 1. They are the model's scores by
            softmax; how often it is right at such a score, nobody has measured.
        remarks: what the owner of the new records should know about them.
    """

    names: tuple[str, ...]
    classes: tuple[str, ...]
    probabilities: Tensor
    remarks: tuple[str, ...] = ()

    @property
    def labels(self) -> list[str]:
        """The most probable class of each record."""
        return [self.classes[place] for place in self.probabilities.argmax(1).tolist()]

    def to_csv(self) -> str:
        """One line a record: its name, the most probable class, and every class's probability.

        >>> found = Predictions(("1",), ("no", "yes"), torch.tensor([[0.25, 0.75]]))
        >>> print(found.to_csv(), end="")
        record,predicted,p_no,p_yes
        1,yes,0.250000,0.750000
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["record", "predicted", *(f"p_{name}" for name in self.classes)])
        rows = zip(self.names, self.labels, self.probabilities.tolist(), strict=True)
        for name, label, row in rows:
            writer.writerow([name, label, *(f"{value:.6f}" for value in row)])
        return text.getvalue()


class Predictor:
    """A trained model together with how records become its inputs.

    Attributes:
        recorded: how the file's records became numbers.
        model: the trained model, in evaluation mode.
        diverged: what is wrong with it, if its training diverged.
    """

    def __init__(
        self,
        recorded: Recorded,
        model: nn.Module,
        *,
        transform: nn.Module | None = None,
        statistics: features.ChannelStatistics | None = None,
        device: torch.device,
    ) -> None:
        self.recorded = recorded
        self.model = model.to(device).eval()
        self._transform = transform
        self._statistics = statistics
        self._device = device
        self.diverged: dict[str, Any] | None = None

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto") -> Predictor:
        """Read a run folder that `reticent train` left for a file of one's own.

        Raises:
            CheckpointError: the run is not finished, damaged, or not of such a file; or the model
                in its folder is not the one that it released.
        """
        folder = Path(folder)
        settings, recorded = _read(folder)
        chosen = pick_device(device)
        transform, statistics = None, None
        if settings.features != "none":
            _check_features(folder, settings)
            options = features.describe(settings.features).complete(settings.feature_options)
            transform = build_features(settings.features, recorded.shape, options, {}).to(chosen)
        if settings.standardise:
            from reticent.cli.preparing import STATISTICS_FILE

            if not (folder / STATISTICS_FILE).exists():
                raise CheckpointError(
                    f"run {str(folder)!r}: has no {STATISTICS_FILE}, by which its records were "
                    "standardised; copy it from the folder of the training"
                )
            statistics, _ = features.ChannelStatistics.load(folder / STATISTICS_FILE)
        shape = recorded.shape
        if transform is not None:
            shape = tuple(transform(torch.zeros(0, *shape, device=chosen)).shape[1:])
        model = models.build(
            settings.model,
            classes=len(recorded.classes),
            input_shape=shape,
            activation=settings.activation,
            seed=settings.seed,
            **settings.model_options,
        )
        run = read_run(folder)
        check_model(folder, run)
        load_weights(model, folder)
        found = cls(recorded, model, transform=transform, statistics=statistics, device=chosen)
        found.diverged = run.get("diverged")
        return found

    def read(self, path: str | Path) -> NewRecords:
        """New records as the model takes them, on the CPU."""
        new = self.recorded.read(path)
        parts = [self._inputs(piece).cpu() for piece in new.inputs.split(_PIECE)]
        return NewRecords(new.names, torch.cat(parts), new.remarks)

    def predict(self, path: str | Path) -> Predictions:
        """What the model says of the records of a file or folder.

        Raises:
            DataError: the file cannot be used; the message names the place.
        """
        new = self.recorded.read(path)
        parts = []
        with torch.no_grad():
            for piece in new.inputs.split(_PIECE):
                scores = self.model(self._inputs(piece).to(self._device))
                parts.append(scores.cpu().double().softmax(1))
        probabilities = torch.cat(parts)
        if not bool(torch.isfinite(probabilities).all()):
            raise DataError(
                f"{path}: the model's scores are not finite: its training diverged; train again "
                "with a smaller lr"
            )
        told = () if self.diverged is None else (in_words(self.diverged),)
        return Predictions(new.names, self.recorded.classes, probabilities, (*told, *new.remarks))

    def _inputs(self, piece: Tensor) -> Tensor:
        if self._transform is not None:
            with torch.no_grad():
                piece = self._transform(piece.to(self._device)).cpu()
        if self._statistics is None:
            return piece
        private = self.recorded.private_columns
        if self._transform is not None or not private:
            return self._statistics(piece)
        applied = self._statistics(piece[:, list(private)])
        return standardised_columns(piece, applied, private, self.recorded.missing_columns)


def _check_features(folder: Path, settings: Settings) -> None:
    """New records must be seen as those of the training were."""
    try:
        check_note(settings.features, settings.feature_options, read_run(folder)["ledger"]["notes"])
    except CheckpointError as error:
        raise CheckpointError(f"run {str(folder)!r}: {error}") from None


def _read(folder: Path) -> tuple[Settings, Recorded]:
    from reticent.cli.settings import Settings, checked
    from reticent.cli.unfinished import check_finished
    from reticent.data.own import is_own

    check_finished(folder)
    where = f"run {str(folder / RUN_FILE)!r}"
    config: Any = read_run(folder).get("config")
    config = config if isinstance(config, dict) else {}
    if not isinstance(config.get("settings"), dict):
        raise CheckpointError(
            f"{where}: was not made by reticent train; load its weights with reticent.load_weights"
        )
    settings = Settings(**checked(config["settings"], where))
    if not is_own(settings.data):
        raise CheckpointError(
            f"{where}: was trained on the data set {settings.data}, not on a file of your own; "
            "load its weights with reticent.load_weights, and give the model what "
            "reticent.data.load gives"
        )
    told = config.get("records")
    if not isinstance(told, dict) or "encoding" not in told:
        raise CheckpointError(
            f"{where}: is of an earlier version, which did not keep how columns became numbers; "
            "read the file with reticent.data.from_file and load the weights with "
            "reticent.load_weights"
        )
    try:
        return settings, Recorded.from_json(told)
    except (KeyError, TypeError, ValueError, ReticentError) as error:
        raise CheckpointError(
            f"{where}: what it says of its records is damaged ({type(error).__name__}: {error})"
        ) from error


def counts(labels: Sequence[str], classes: Sequence[str]) -> dict[str, int]:
    """How many records were given each class.

    >>> counts(["yes", "no", "yes"], ["no", "yes", "perhaps"])
    {'no': 1, 'yes': 2, 'perhaps': 0}
    """
    return {name: sum(label == name for label in labels) for name in classes}
