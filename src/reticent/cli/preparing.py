"""The records of a training: loaded, turned into features, standardised if that is asked for.

Statistics are released once. They are kept in the run's folder beside what they cost, before the
training begins; a run that is resumed reads them there and never draws them again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reticent import data as datasets
from reticent import features, models
from reticent.cli.own_data import RECORDS_FILE, hidden_paths, identity, load_own
from reticent.cli.settings import Settings
from reticent.coins import Coins
from reticent.data.own import OwnSplits, is_own
from reticent.errors import CheckpointError, OptionError, positive
from reticent.features.standardising import NOISE
from reticent.files import check_folder, read_json, to_json, write_atomically
from reticent.privacy import Budget, Ledger
from reticent.training.checkpoint import CHECKPOINT
from reticent.training.result import refuse_taken
from reticent.training.train import pick_device

STATISTICS_FILE = "standardisation.safetensors"
STANDARDISING = ("standardise_noise", "standardise_bound", "standardise_clip")
_FIRST = "turn them into numbers with --features word-vectors"


@dataclass(frozen=True)
class Prepared:
    """What a training starts from.

    Attributes:
        splits: the records as the model sees them.
        statistics: what they were standardised by, if they were.
        ledger: what was paid for that.
        begun: whether a resumed run has a checkpoint; one that was stopped before it had only its
            statistics, and begins with them.
        identity: what tells the records of a file from others.
        paths: where these files are.
    """

    splits: datasets.Splits
    statistics: features.ChannelStatistics | None = None
    ledger: Ledger | None = None
    begun: bool = True
    identity: str | None = None
    paths: Mapping[str, str] = field(default_factory=dict)

    def keep(self, folder: Path) -> None:
        """Leave the statistics of this run in its folder, and none of another run."""
        # first what says whose records they are: with statistics alone, no run could go on
        if self.identity is None:
            (folder / RECORDS_FILE).unlink(missing_ok=True)
        else:
            held = {
                "warning": "as private as the records",
                "fingerprint": self.identity,
                "paths": dict(self.paths),
            }
            write_atomically(folder / RECORDS_FILE, to_json(held), mode=0o600)
        if self.statistics is None or self.ledger is None:
            (folder / STATISTICS_FILE).unlink(missing_ok=True)
        else:
            self.statistics.save(folder / STATISTICS_FILE, self.ledger)


@dataclass(frozen=True)
class _Plan:
    """How statistics are to be released."""

    n: int
    noise: float
    reach: features.Reach

    def made(self, statistics: features.ChannelStatistics) -> bool:
        """Whether these statistics were released so."""
        length, _ = self.reach.sensitivities(len(statistics.mean))
        asked = {"n": self.n, "noise": self.noise, "bound": self.reach.bound, "clip": length}
        return {name: statistics.options.get(name) for name in asked} == asked


def prepare(
    settings: Settings,
    budget: Budget | None,
    coins: Coins | None,
    folder: Path,
    *,
    resume: bool,
    overwrite: bool,
) -> Prepared:
    """Load what the settings name; nothing is released where the folder is taken."""
    _check_options(settings)
    splits = _loaded(settings, fresh=resume)
    own = identity(splits) if isinstance(splits, OwnSplits) else None
    paths = hidden_paths(settings.data, settings.data_options)
    if resume and own is not None:
        check_same(folder, own)
    shape = tuple(splits.train[0].shape[1:])
    _check_kind(settings, splits)
    splits = _with_features(splits, settings)
    if not settings.standardise:
        return Prepared(splits, identity=own, paths=paths)
    plan = _Plan(
        n=settings.n or len(splits.train[0]),
        noise=NOISE if settings.standardise_noise is None else settings.standardise_noise,
        reach=_reach(settings, shape),
    )
    channels = _channels(splits, settings)
    if resume:
        statistics, ledger = _kept(folder, plan, budget)
        features.check_note(settings.features, settings.feature_options, ledger.notes)
        begun = (folder / CHECKPOINT).exists()
    else:
        refuse_taken_run(folder, overwrite)
        ledger, begun = Ledger(budget), True
        for note in splits.notes:  # which files the statistics were made with, among others
            ledger.note(note)
        statistics = features.channel_statistics(
            splits.train[0] if channels is None else splits.train[0][:, channels],
            ledger=ledger,
            n=plan.n,
            noise=plan.noise,
            reach=plan.reach,
            coins=coins,
        )
    if channels is not None and isinstance(splits, OwnSplits):
        return Prepared(splits.standardised(statistics), statistics, ledger, begun, own, paths)
    return Prepared(statistics.apply(splits), statistics, ledger, begun, own, paths)


def _loaded(settings: Settings, *, fresh: bool) -> datasets.Splits:
    if is_own(settings.data):
        return load_own(settings.data, settings.data_options, fresh=fresh)
    return datasets.load(settings.data, root=settings.root)


def _channels(splits: datasets.Splits, settings: Settings) -> list[int] | None:
    """Which numbers of a record to standardise; None for all.

    In a table of one's own, those without a public scale.
    """
    if settings.features != "none" or not isinstance(splits, OwnSplits):
        return None
    if splits.form not in ("table", "array"):
        return None
    if not splits.private_columns:
        raise OptionError(
            "standardise", True, "every column has a public scale already; leave it out"
        )
    return list(splits.private_columns)


def check_same(folder: Path, own: str) -> None:
    """Refuse records that a run was not begun with: ε would be of neither."""
    path = folder / RECORDS_FILE
    try:
        before = read_json(path)["fingerprint"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{str(path)!r} is missing, so nobody can tell whether the records are those that this "
            "run was begun with; put it back, or begin a new run"
        ) from None
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointError(f"{str(path)!r} cannot be read") from None
    if before != own:
        raise CheckpointError(
            f"{str(folder)!r}: the records have changed since this run was begun; put the file "
            "back as it was, or begin a new run"
        )


def _with_features(splits: datasets.Splits, settings: Settings) -> datasets.Splits:
    if settings.features == "none":
        return splits
    return features.apply(
        splits,
        settings.features,
        settings.feature_options,
        root=settings.root,
        keep=not is_own(settings.data),  # no copies of private records in a cache
        device=pick_device(settings.device),
    )


def _check_options(settings: Settings) -> None:
    if settings.features == "none" and settings.feature_options:
        raise OptionError(
            "feature_options", settings.feature_options, "mean nothing without features"
        )
    for option in STANDARDISING:
        value = getattr(settings, option)
        if value is not None and not settings.standardise:
            raise OptionError(option, value, "means nothing without standardise")
        if value is not None:
            positive(option, value)


def _check_kind(settings: Settings, splits: datasets.Splits) -> None:
    """Tell a model or a wish that does not fit the inputs before minutes of computing."""
    wanted = models.describe(settings.model).input_kind
    if settings.features == "none" and not splits.train[0].is_floating_point():
        if settings.standardise:
            raise OptionError(
                "standardise", True, f"{settings.data} holds tokens, which have no mean; {_FIRST}"
            )
        if wanted == "floats":
            raise OptionError(
                "model", settings.model, f"takes numbers, {settings.data} holds tokens; {_FIRST}"
            )
    elif wanted == "tokens":
        raise OptionError(
            "model", settings.model, "takes tokens; these inputs are numbers, try linear or mlp"
        )


def _reach(settings: Settings, shape: tuple[int, ...]) -> features.Reach:
    """The stated bounds, completed by what is known of the features."""
    known = features.Reach()
    if settings.features != "none":
        card = features.describe(settings.features)
        known = card.reach(shape, card.complete(settings.feature_options))
    bound, clip = settings.standardise_bound, settings.standardise_clip
    return features.Reach(
        bound=known.bound if bound is None else bound, clip=known.clip if clip is None else clip
    )


def _kept(
    folder: Path, plan: _Plan, budget: Budget | None
) -> tuple[features.ChannelStatistics, Ledger]:
    statistics, ledger = features.ChannelStatistics.load(folder / STATISTICS_FILE)
    if not plan.made(statistics) or ledger.budget != budget or not ledger.entries:
        raise CheckpointError(
            f"{str(folder / STATISTICS_FILE)!r} belongs to another run than the folder's settings"
        )
    return statistics, ledger


def refuse_taken_run(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds a run, or what was released for one."""
    check_folder("folder", folder)
    if overwrite:
        return
    refuse_taken(folder)
    if (folder / STATISTICS_FILE).exists():
        raise CheckpointError(
            f"{str(folder)!r} holds the released statistics of an unfinished run; go on with "
            "--resume, replace it with --overwrite, or choose another folder"
        )
