"""What a comparison trains: every method at every ε with every seed, each by its own recipe.

>>> plan = compare_plan("digits", ["dpsgd", "sgd"], [1, 3], seeds=2)
>>> [(cell.label, cell.epsilon) for cell in plan.cells]
[('dpsgd', 1.0), ('dpsgd', 3.0), ('sgd', None)]
>>> len(plan.jobs())
6
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from reticent import data as datasets
from reticent import features, methods, models
from reticent.audit import attacks as known_attacks
from reticent.cli.building import budget_of, build_method
from reticent.cli.own_data import identity, load_own, reading_once
from reticent.cli.settings import Settings, checked, resolve
from reticent.data.own import OwnSplits, is_own
from reticent.errors import DataError, OptionError, ReticentError, among, one_of, positive, whole
from reticent.privacy import Ledger, delta_note
from reticent.reproduction.claims import planned
from reticent.reproduction.jobs import Job
from reticent.reproduction.measures import ACCURACY
from reticent.reproduction.measuring import missing_data
from reticent.reproduction.reading import without_unused
from reticent.reproduction.tables import PUBLISHED, SOUND, VARIANTS
from reticent.training.planning import plan as plan_training

ATTACK_METRICS = ("auc", "tpr@0.001")
Say = Callable[[str], None]
_FIELDS = {item.name for item in fields(Settings)}
_OURS = ("data", "method", "epsilon", "seed", "non_private", "device", "root", "data_options")


@dataclass(frozen=True)
class Cell:
    """A method at one ε: what each of its seeds trains.

    Attributes:
        label: Name of the method, with its variant.
        epsilon: What may be spent; None for a method without an ε.
        settings: Complete, but for the seed.
        variant: How, for DPSUR.
    """

    label: str
    epsilon: float | None
    settings: Settings
    variant: str = SOUND

    @property
    def guarantee(self) -> str:
        """What the method promises; the published form of DPSUR leaks, and promises nothing."""
        if self.variant == PUBLISHED:
            return "none"
        return methods.describe(self.settings.method).guarantee

    @property
    def promised(self) -> bool:
        """Whether an ε is proved."""
        return self.guarantee == "differential-privacy"


@dataclass(frozen=True)
class Comparison:
    """What is compared; see `compare_plan`.

    Attributes:
        data: Name of the data set, or path of a file of one's own.
        cells: In the order of methods, then of ε.
        epsilons: In ascending order.
        seeds: How many of each.
        records: Training records.
        test_records: Held-out records.
        classes: How many.
        attacks: Names of attacks on one model of each cell.
        shadows: How many shadow models they have.
        identity: What tells one's own records from others; as private as they are.
        warnings: What the user should know about records of their own, and a δ that is large.
        shared: What the user set for all methods.
        overrides: What the user set for single ones.
    """

    data: str
    cells: tuple[Cell, ...]
    epsilons: tuple[float, ...]
    seeds: int
    records: int
    test_records: int
    classes: int
    attacks: tuple[str, ...] = ()
    shadows: int = 8
    identity: str | None = field(default=None, repr=False)
    warnings: tuple[str, ...] = ()
    shared: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def own(self) -> bool:
        """Whether the records are the user's own."""
        return self.identity is not None

    @property
    def labels(self) -> tuple[str, ...]:
        """The methods."""
        return tuple(dict.fromkeys(cell.label for cell in self.cells))

    def job(self, cell: Cell, seed: int) -> Job:
        """The training of one cell with one seed."""
        return Job(replace(cell.settings, seed=seed), cell.variant, (ACCURACY,))

    def attack_job(self, cell: Cell) -> Job:
        """The attacks on a cell: models of their own, on a third of the records each."""
        measures = tuple(f"{name}.{metric}" for name in self.attacks for metric in ATTACK_METRICS)
        return Job(
            cell.settings, cell.variant, measures, attacks=self.attacks, shadows=self.shadows
        )

    def jobs(self) -> list[Job]:
        """All there is to do: first seeds first, so that a picture forms early."""
        found = [self.job(cell, seed) for seed in range(self.seeds) for cell in self.cells]
        return found + ([self.attack_job(cell) for cell in self.cells] if self.attacks else [])


def compare_plan(
    data: str,
    names: Sequence[str],
    epsilons: Sequence[float],
    *,
    seeds: int = 3,
    attacks: Sequence[str] = (),
    shadows: int = 8,
    shared: Mapping[str, Any] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    root: str | None = None,
) -> Comparison:
    """Settle what to compare; refused is what cannot be meant, before anything is trained.

    Args:
        data: Name of a data set, or path of a file or folder of one's own.
        names: Methods; `dpsur:published` and `dpsur:repaired` are variants.
        epsilons: What each private method may spend, in turn.
        seeds: How many models of each.
        attacks: Names of attacks; not for records of one's own.
        shadows: How many shadow models they have.
        shared: Settings of all methods that have a use for them.
        overrides: Settings and method options of single methods.
        root: Folder that holds the data sets.
    """
    given, own_settings = dict(shared or {}), dict(overrides or {})
    labels = _checked_names(names)
    values = _checked_epsilons(epsilons)
    whole("seeds", seeds)
    tried = _checked_attacks(attacks, shadows)
    for label, chosen in own_settings.items():
        if label not in labels:
            works = ", ".join(labels)
            name = next(iter(chosen), "NAME")
            raise OptionError("set", f"{label}.{name}", f"the methods compared are {works}")
    if is_own(data):
        _check_own(data, labels, tried)
    else:
        datasets.lookup(data)  # refuses others
    with reading_once():
        cells = [
            _cell(data, label, epsilon, given, own_settings.get(label, {}), root)
            for label in labels
            for epsilon in (values if _takes_epsilon(label) else (None,))
        ]
        first = cells[0].settings
        splits = load_own(first.data, first.data_options, fresh=False) if is_own(data) else None
    absent = missing_data(Job(first, SOUND, (ACCURACY,)), root)
    if absent is not None:
        raise DataError(absent)
    info = datasets.lookup(data) if splits is None else splits.info
    return Comparison(
        data=first.data,
        cells=tuple(cells),
        epsilons=values if any(cell.epsilon is not None for cell in cells) else (),
        seeds=seeds,
        records=info.n_train,
        test_records=info.n_test,
        classes=info.n_classes,
        attacks=tried,
        shadows=shadows,
        identity=None if splits is None else identity(splits),
        warnings=(*_warnings(splits), *_large_deltas(cells, info.n_train)),
        shared=given,
        overrides=own_settings,
    )


def check(comparison: Comparison, cells: Sequence[Cell], say: Say | None = None) -> None:
    """Settle noise and length of these cells: refused is what no training could do.

    Args:
        comparison: What they belong to.
        cells: Those that are still to be trained.
        say: Told what is looked at, which may take seconds.
    """
    for cell in cells:
        if say is not None:
            at = "" if cell.epsilon is None else f" at ε = {cell.epsilon:g}"
            say(f"{cell.label}{at}")
        settings = cell.settings
        n = settings.n or comparison.records
        try:
            models.describe(settings.model)
            if settings.features != "none":
                features.describe(settings.features).complete(settings.feature_options)
            method = build_method(settings)
            if not comparison.own:
                plan = planned(settings, cell.variant, n)  # which remembers the noise it found
                method, settings = plan.method, plan.settings
            budget = budget_of(settings)
            if budget is None:
                method.price(n)
            plan_training(method, budget, n, settings.steps, settings.epochs, Ledger(budget))
        except (ReticentError, TypeError) as error:
            at = "" if cell.epsilon is None else f"at epsilon = {cell.epsilon:g}: "
            hint = f"--set {cell.label}.NAME=VALUE changes its settings"
            raise OptionError("methods", cell.label, f"{at}{error}; {hint}") from error


# -- what is asked for ------------------------------------------------------------------------


def _split(label: str) -> tuple[str, str]:
    name, colon, variant = label.partition(":")
    return name, variant if colon else SOUND


def _takes_epsilon(label: str) -> bool:
    return methods.describe(_split(label)[0]).guarantee == "differential-privacy"


def _checked_names(names: Sequence[str]) -> tuple[str, ...]:
    known = methods.names()
    if not names:
        raise OptionError("methods", "", f"name at least one of {', '.join(known)}")
    for label in names:
        name, variant = _split(label)
        if name not in known:
            raise OptionError("methods", label, f"must be of {', '.join(known)}")
        if variant not in VARIANTS:
            raise OptionError("methods", label, f"variants are {', '.join(VARIANTS)}")
        if variant != SOUND and name != methods.DPSUR.name:
            raise OptionError("methods", label, "only dpsur has variants")
        if names.count(label) > 1:
            raise OptionError("methods", label, "is named twice; name it once")
    return tuple(names)


def _checked_epsilons(epsilons: Sequence[float]) -> tuple[float, ...]:
    if not epsilons:
        raise OptionError("epsilon", "", "give at least one, such as 1,3")
    found = [positive("epsilon", value) for value in epsilons]
    for value in found:
        if found.count(value) > 1:
            raise OptionError("epsilon", value, "is given twice; give it once")
    return tuple(sorted(found))


def _checked_attacks(names: Sequence[str], shadows: int) -> tuple[str, ...]:
    for name in names:
        one_of("attacks", name, known_attacks.NAMES)
        if list(names).count(name) > 1:
            raise OptionError("attacks", name, "is named twice; name it once")
    if names and whole("shadows", shadows, least=2) % 2:
        raise OptionError("shadows", shadows, "must be even: records are in half of them")
    return tuple(names)


def _check_own(data: str, labels: Sequence[str], attacks: Sequence[str]) -> None:
    """Refuse what records of one's own are too good for."""
    if attacks:
        raise OptionError(
            "attacks",
            ",".join(attacks),
            "what attacks find is as private as the records; leave it out here, and attack the "
            "runs you choose with reticent audit RUN",
        )
    for label in labels:
        if _split(label)[1] != SOUND:
            raise OptionError(
                "methods", label, f"costs more than its ε, or leaks; is not trained on {data}"
            )


def _cell(
    data: str,
    label: str,
    epsilon: float | None,
    shared: Mapping[str, Any],
    own: Mapping[str, Any],
    root: str | None,
) -> Cell:
    name, variant = _split(label)
    stated = _own_settings(label, name, own)
    values = {**shared, **stated, "method": name}
    for one, other in (("steps", "epochs"), ("epochs", "steps")):
        if one in stated and other not in stated:
            values.pop(other, None)  # whoever sets one of these speaks for both
    values = without_unused(values, stated, f"--set {label}")
    settings = resolve(
        None, {**values, "data": data, "root": root, "epsilon": epsilon, "method": name}
    )
    return Cell(label, epsilon, settings, variant)


def _own_settings(label: str, name: str, own: Mapping[str, Any]) -> dict[str, Any]:
    """What `--set` says of a method: settings by their names, all else its own options."""
    stated = {key: value for key, value in own.items() if key in _FIELDS}
    for key in _OURS:
        if key in stated:
            raise OptionError("set", f"{label}.{key}", "is the same for all methods")
    options = {key: value for key, value in own.items() if key not in _FIELDS}
    takes = sorted(option.name for option in methods.describe(name).options)
    for key in options:
        if key not in takes:
            raise OptionError(
                "set",
                f"{label}.{key}",
                f"is neither a setting nor an option of {name}, which has {among(key, takes)}",
            )
    try:
        checked(stated, f"--set {label}")
    except OptionError as error:
        raise OptionError("set", f"{label}.{error.option}={error.value}", error.hint) from None
    return {**stated, **({"method_options": options} if options else {})}


def _large_deltas(cells: Sequence[Cell], n: int) -> tuple[str, ...]:
    private = [cell.settings for cell in cells if cell.epsilon is not None]
    notes = (delta_note(one.delta, one.n or n) for one in private)
    return tuple(dict.fromkeys(note for note in notes if note is not None))


def _warnings(splits: OwnSplits | None) -> tuple[str, ...]:
    return () if splits is None else tuple(splits.warnings)
