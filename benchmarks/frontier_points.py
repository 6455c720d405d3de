"""What `docs/frontier.md` and its figures are made of: our recorded runs, and published claims."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from reticent.methods import describe
from reticent.reproduction.tables import TRAINING, load, names

TITLES = {
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "cifar10": "CIFAR-10",
    "imdb": "IMDb",
}
BEST = "best recipe"
_IN, _ALSO = " as in ", "; also in "
UNKNOWN = "not examined here"
NO_FLAW = "no flaw known to us"
NOT_A_BOUND = "not a bound"
# Tang, Panda, Sehwag, Mittal: Differentially Private Image Classification by Learning Priors from
# Random Processes (NeurIPS 2023), abstract. It has no table among those of the library.
ENCODERS = ("image-encoder", "sentence-encoder")  # features that others' records taught
DP_RANDP = "Tang et al. 2023, DP-RandP (NeurIPS)"


@dataclass(frozen=True)
class Point:
    """What one of our settings reached, over its seeds.

    Attributes:
        what: Whose point it is.
        accuracies: On the test split, in percent, one for each seed.
        epsilon: What is proved, the largest over seeds.
        delta: Beside it.
        source: The record.
        asked: The ε that was asked for, where the recipe depends on it.
        records: How many training records there were, where not all of them.
    """

    what: str
    accuracies: tuple[float, ...]
    epsilon: float
    delta: float
    source: str
    asked: float | None = None
    records: int | None = None

    @property
    def mean(self) -> float:
        """Over seeds."""
        return statistics.fmean(self.accuracies)


@dataclass(frozen=True)
class Claim:
    """A row that a paper printed on one data set: the best of it at each claimed ε.

    Attributes:
        paper: Who published it.
        row: As the paper calls it.
        accuracies: In percent, by claimed ε.
        tables: Where they are printed.
        status: Whether the claimed ε is a bound.
        why: Why not.
        encoder: Whether it stands on an encoder trained on other people's pictures.
        notes: What else a reader should know.
        covers: From which ε to which the paper has numbers that are not all here.
    """

    paper: str
    row: str
    accuracies: dict[float, float]
    tables: tuple[str, ...] = ()
    status: str = NO_FLAW
    why: str | None = None
    encoder: bool = False
    notes: tuple[str, ...] = ()
    covers: tuple[float, float] | None = None


# Published elsewhere; quoted from that abstract.
QUOTED = {
    "cifar10": (
        Claim(DP_RANDP, "DP-RandP", {1.0: 72.3}, ("abstract",), UNKNOWN, covers=(1.0, 8.0)),
        Claim(DP_RANDP, "the best before it, by its abstract", {1.0: 60.6}, ("abstract",), UNKNOWN),
    ),
}


def ours(records: Iterable[dict[str, Any]], data: str) -> list[Point]:
    """Every recorded setting on a data set for which an ε is proved, the best recipe first."""
    makers = {
        "frontier": _best,
        "trainings": _trainings,
        "dpsur": _dpsur,
        "importance": _importance,
        "defences": _defences,
        "reproduce": _reproduced,
    }
    order = list(makers)
    found = [record for record in records if record["what"] in makers]
    found.sort(key=lambda record: order.index(record["what"]))
    points = [point for record in found for point in makers[record["what"]](record, data)]
    return sorted(_once(points), key=lambda point: (point.what != BEST, point.what, point.epsilon))


def _once(points: Iterable[Point]) -> list[Point]:
    """The same runs once, where several tables print them."""
    found: dict[tuple[Any, ...], Point] = {}
    for point in points:
        key = (point.accuracies, point.epsilon) if _IN in point.what else (point,)
        if key in found:
            first = found[key]
            where = point.what.split(_IN)[1]
            also = f", {where}" if _ALSO in first.what else f"{_ALSO}{where}"
            point = replace(first, what=first.what + also)
        found[key] = point
    return list(found.values())


def _point(what: str, runs: Sequence[dict[str, Any]], delta: float, source: str) -> Point:
    """Of runs that state accuracies between 0 and 1."""
    return Point(
        what,
        tuple(100 * run["accuracy"] for run in runs),
        max(run["epsilon"] for run in runs),
        delta,
        source,
    )


def _best(record: dict[str, Any], data: str) -> list[Point]:
    if record["data"] != data:
        return []
    return [
        Point(
            BEST,
            tuple(run["accuracy"] for run in entry["runs"]),
            max(run["epsilon"] for run in entry["runs"]),
            record["delta"],
            f"frontier-{data}",
            entry["epsilon"],
        )
        for entry in record["entries"]
    ]


def _trainings(record: dict[str, Any], data: str) -> list[Point]:
    if record["data"] != data:
        return []
    runs, model = record["runs"], record["settings"]["model"]
    source = f"training-{data}-eps{record['epsilon']:g}-{record['device']}"
    return [_point(f"DP-SGD, `{model}`, recipe to start from", runs, runs[0]["delta"], source)]


_VARIANTS = {
    "repaired": "DPSUR as many updates as published, no leaks",
    "sound": "DPSUR within ε",
    "dpsgd": "DP-SGD, averaged weights",
}


def _dpsur(record: dict[str, Any], data: str) -> list[Point]:
    if record["data"] != data:
        return []
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in record["runs"]:
        if run["epsilon"] is not None:  # as published it leaks: no ε
            key = run["variant"], run["lr"], run["claimed_epsilon"]
            groups.setdefault(key, []).append(run)
    return [
        _point(
            f"{_VARIANTS[variant]}, `scatter-cnn`, learning rate {lr:g}",
            runs,
            runs[0]["delta"],
            f"dpsur-{data}",
        )
        for (variant, lr, _), runs in groups.items()
    ]


def _importance(record: dict[str, Any], data: str) -> list[Point]:
    if record["data"] != data:
        return []
    shown = {"dpsgd": "DP-SGD", "dpis": "DPIS"}
    return [
        _point(
            f"{name}, batch {record['batch']}, learning rate {record['lr']:g}, not searched",
            budget[method],
            budget[method][0]["delta"],
            f"importance-{data}-{record['device']}",
        )
        for budget in record["budgets"]
        for method, name in shown.items()
    ]


def _defences(record: dict[str, Any], data: str) -> list[Point]:
    if record["data"] != data:
        return []
    source = f"defences-{data}-{record['device']}"
    return [
        _point(f"{name}, defaults", one["runs"], one["runs"][0].get("delta", 1e-5), source)
        for name, one in record["methods"].items()
        if one["runs"][0]["epsilon"] is not None
    ]


def _reproduced(record: dict[str, Any], data: str) -> list[Point]:
    points = []
    table = load(record["table"])
    sizes = {(one.row, one.data): one.records for one in table.entries()}
    for entry in record["entries"]:
        if table.data[entry["data"]].like is not None:
            continue  # not what a user would train on
        settings = {**record["settings"], **entry["settings"]}
        numbers = entry["measures"].get("accuracy", {}).get("seeds", {})
        if settings["data"] != data or entry["sound_epsilon"] is None or not numbers:
            continue
        variant = "" if entry["variant"] == "sound" else f" ({entry['variant']})"
        size = sizes[entry["row"], entry["data"]]
        of = "" if size is None else f", on {size:,} records"
        of += ", on a public encoder" if settings["features"] in ENCODERS else ""
        points.append(
            Point(
                f"{entry['row']}{variant}{of}{_IN}{record['table']}{_setting(record, entry)}",
                tuple(numbers.values()),
                entry["sound_epsilon"],
                settings["delta"],
                f"reproduce-{record['table'].replace('/', '-')}",
                records=size,
            )
        )
    return points


def _setting(record: dict[str, Any], entry: dict[str, Any]) -> str:
    """The column, where it is not an ε."""
    axis, column = record["axis"], entry["column"]
    if axis == "epsilon" or column is None:
        return ""
    value = column if isinstance(column, str) else f"{column:g}"
    return f" with {value}" if axis is None else f" with {axis.split('.')[-1]} {value}"


@cache
def claims(data: str) -> tuple[Claim, ...]:
    """What the papers printed on a data set under an ε, a row of a paper at a time."""
    found: dict[tuple[str, str, bool], Claim] = {}
    for name in names():
        table = load(name)
        if table.kind != TRAINING or "accuracy" not in table.measures:
            continue
        for entry in table.entries():
            value = entry.published.get("accuracy")
            settings = entry.settings
            private = describe(settings.method).guarantee == "differential-privacy"
            if settings.data != data or value is None or not private:
                continue
            on_encoder = settings.features in ENCODERS
            key = table.paper, entry.row.partition(" (ε")[0], on_encoder
            old = found.get(key) or Claim(key[0], key[1], {}, encoder=key[2])
            best = max(value, old.accuracies.get(settings.epsilon, 0.0))
            notes = () if entry.records is None else (f"on {entry.records:,} records",)
            found[key] = Claim(
                *key[:2],
                {**old.accuracies, settings.epsilon: best},
                tuple(dict.fromkeys((*old.tables, table.name))),
                old.status if entry.sound else NOT_A_BOUND,
                old.why or entry.why,
                key[2],
                tuple(dict.fromkeys((*old.notes, *notes))),
            )
    return (*found.values(), *QUOTED.get(data, ()))


def best_claim(data: str, epsilon: float) -> tuple[float, Claim] | None:
    """The largest published accuracy at a claimed ε, but for those that stand on an encoder.

    Of equals, one whose ε has no known flaw.
    """
    at = [
        (claim.accuracies[epsilon], claim)
        for claim in claims(data)
        if epsilon in claim.accuracies and not claim.encoder
    ]
    return max(at, key=lambda one: (one[0], one[1].status != NOT_A_BOUND), default=None)


def others_exist(data: str, epsilon: float) -> bool:
    """Whether a paper is known to have more at this ε than is quoted here."""
    return any(
        claim.covers is not None
        and claim.covers[0] <= epsilon <= claim.covers[1]
        and epsilon not in claim.accuracies
        for claim in claims(data)
    )


def searched(records: Iterable[dict[str, Any]], what: str) -> dict[str, dict[str, Any]]:
    """Records of one kind, by data set, in the order of `TITLES`."""
    by_data = {record["data"]: record for record in records if record["what"] == what}
    return {data: by_data[data] for data in TITLES if data in by_data}


def explored(records: Iterable[dict[str, Any]], data: str) -> list[dict[str, Any]]:
    """The rows of the passes before the search that are of this data set."""
    return [
        row
        for record in records
        if record["what"] == "exploration"
        for row in record["rows"]
        if row["name"].split()[0].replace("_", "-") == data
    ]


def told(options: dict[str, Any]) -> str:
    """Options of features in a few words."""
    return ", ".join(f"{name} {value}" for name, value in options.items())


def up(value: float) -> str:
    """An ε with four digits, rounded up: rounded down it would not be a bound.

    >>> up(0.99991)
    '1.0000'
    """
    return f"{math.ceil(value * 1e4 - 1e-7) / 1e4:.4f}"
