"""What the plausible-deniability paper shows in figures, and how long a step takes, computed.

`distance`, `rejection`, `updates` and `step_time` go from the settings of an entry, its options and
a device to numbers by name.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import reticent
from reticent import data as datasets
from reticent import models
from reticent.cli.building import budget_of, build_method, build_model, run_options
from reticent.cli.preparing import prepare
from reticent.cli.settings import Settings
from reticent.coins import Coins
from reticent.errors import OptionError, between, whole
from reticent.methods import PDSGD
from reticent.methods.deniability import smallest_distance
from reticent.training import Training
from reticent.training.train import pick_device

if TYPE_CHECKING:
    from reticent.training.run import Run

Numbers = dict[str, float | list[float]]


def distance(settings: Settings, options: dict[str, Any], device: str = "cpu") -> Numbers:
    """Figure 1: how far apart, √(d*/k), gradients are when one is rarely plausible for the other.

    Args:
        settings: Of them σ and γ.
        options: `probability`, the q(d) that is meant by rarely, and `dimension`, k.
        device: Not used.

    Example:
        >>> chosen = {"batches": 10, "sigma": 0.3, "gamma": 2.0}
        >>> settings = Settings(method="pd-sgd", method_options=chosen)
        >>> found = distance(settings, {"probability": 0.05, "dimension": 7680})
        >>> round(found["distance"], 4)
        0.0142
    """
    given = _options(options, needs=("probability", "dimension"))
    method = _deniable(settings)
    dimension = whole("dimension", given["dimension"])
    found = smallest_distance(given["probability"], method.sigma, method.gamma)
    return {"distance": math.sqrt(found / dimension)}


@dataclass(frozen=True)
class OneBatchStays(PDSGD):
    """PD-SGD whose batch number 0 always holds the same records."""

    kept: tuple[int, ...] = field(default=(), kw_only=True)

    def split(self, run: Run) -> list[Tensor]:
        """The kept batch, and all other records at random."""
        order = run.permutation("partition")
        kept = torch.tensor(self.kept, device=order.device)
        others = order[~torch.isin(order, kept)]
        return [kept, *others.tensor_split(self.batches - 1)]


def poisoned(
    labels: Tensor, batches: int, share: float, classes: int, seed: int
) -> tuple[Tensor, list[int]]:
    """Labels with a share of one batch's flipped, and that batch; the same one for all shares.

    Example:
        >>> clean = torch.zeros(12, dtype=torch.long)
        >>> flipped, batch = poisoned(clean, 3, 0.5, classes=10, seed=0)
        >>> len(batch), int((flipped != clean).sum())
        (4, 2)
    """
    between("share", share, 0, 1)
    generator = torch.Generator().manual_seed(seed)
    batch = torch.randperm(len(labels), generator=generator)[: len(labels) // batches]
    moved = torch.randint(1, classes, batch.shape, generator=generator)
    some, labels = batch[: round(share * len(batch))], labels.clone()
    labels[some] = (labels[some] + moved[: len(some)]) % classes
    return labels, batch.tolist()


def rejections(
    settings: Settings, splits: datasets.Splits, share: float, seed: int
) -> dict[str, Any]:
    """Train once; how often updates of the poisoned batch and of all others were rejected.

    The coins of the training come from the seed: what is found here is for public records only.
    """
    plain = _deniable(settings)
    inputs, labels = splits.train
    labels, kept = poisoned(labels, plain.batches, share, splits.info.n_classes, seed)
    method = OneBatchStays(**plain.options(), kept=tuple(kept))
    training = _trained(settings, splits, (inputs, labels), method, seed)
    lines = training.run.diagnostics or []
    found: dict[str, Any] = {"share": share, "seed": seed}
    for name, chosen in (
        ("poisoned", [line for line in lines if line["seed"] == 0]),
        ("normal", [line for line in lines if line["seed"] != 0]),
    ):
        rejected = sum(1 - line["accepted"] for line in chosen)
        rate = rejected / len(chosen) if chosen else None
        found[name] = {"updates": len(chosen), "rejected": rejected, "rate": rate}
    measured = reticent.evaluate(training.run.model, splits.test, device=training.run.device)
    return {**found, "accuracy": measured["accuracy"]}


def rejection(settings: Settings, options: dict[str, Any], device: str = "auto") -> Numbers:
    """Figure 3: how often updates are rejected, in percent, of a poisoned batch and of others.

    Some labels of one batch are flipped, and that batch stays together throughout the training; all
    other records are split at random in every step.

    Args:
        settings: Of the training; the seed also decides which records are poisoned.
        options: `share`, how much of the batch is poisoned, and `records`, how many records of the
            training split take part; by default all.
        device: Where to train.
    """
    given = _options(options, needs=("share",), takes=("records",))
    settings = replace(settings, device=device)
    splits = _splits(settings, given.get("records"))
    found = rejections(settings, splits, given["share"], settings.seed)
    rates = {name: found[name]["rate"] for name in ("poisoned", "normal")}
    return {name: math.nan if rate is None else 100 * rate for name, rate in rates.items()}


def updates(settings: Settings, options: dict[str, Any], device: str = "auto") -> Numbers:
    """Figure 4: in how many updates each record took part.

    `counts` says of how many records that was `least`, `least` + 1, ... up to `most`; `deviation`
    is the standard deviation, `rejected` the share of rejected updates in percent. All of it is
    private: for records that are not public, neither the counts nor their mean may be shown.

    Args:
        settings: Of the training.
        options: `records`, how many records of the training split take part; by default all.
        device: Where to train.
    """
    given = _options(options, takes=("records",))
    settings = replace(settings, device=device)
    splits = _splits(settings, given.get("records"))
    training = _trained(settings, splits, splits.train, _deniable(settings), settings.seed)
    each = training.run.private["updates"].cpu()
    lines = training.run.diagnostics or []
    least = int(each.min())
    return {
        "mean": float(each.double().mean()),
        "deviation": float(each.double().std(correction=0)),
        "least": least,
        "most": int(each.max()),
        "rejected": 100 * sum(1 - line["accepted"] for line in lines) / len(lines),
        "counts": [float(count) for count in torch.bincount(each - least)],
    }


def step_time(settings: Settings, options: dict[str, Any], device: str = "auto") -> Numbers:
    """Table 6: milliseconds that one step takes, the mean of some consecutive ones.

    The records are made up, images evenly from [0, 1] and vectors of length about 1: the time of
    PD-SGD depends on how many batches turn out plausible, and would say something of real records.

    Args:
        settings: Of the training; of the data set only shape, number of records and classes.
        options: `shape` of an input and number of `records` where they are others than the data
            set's; `warmup`, how many steps pass first, and `repeats`, how many are timed (3 each).
        device: Where to train.
    """
    given = _options(options, takes=("shape", "records", "warmup", "repeats"))
    warmup = whole("warmup", given.get("warmup", 3), least=0)
    repeats = whole("repeats", given.get("repeats", 3))
    info = datasets.lookup(settings.data)
    shape = tuple(whole("shape", side) for side in given.get("shape", info.shape))
    n = whole("records", given.get("records", info.n_train))
    generator = torch.Generator().manual_seed(settings.seed)
    if len(shape) == 1:
        inputs = torch.randn((n, *shape), generator=generator) / math.sqrt(shape[0])
    else:
        inputs = torch.rand((n, *shape), generator=generator)
    labels = torch.randint(0, info.n_classes, (n,), generator=generator)
    chosen = pick_device(device)
    model = models.build(
        settings.model,
        classes=info.n_classes,
        input_shape=shape,
        activation=settings.activation,
        seed=settings.seed,
        **settings.model_options,
    )
    training = reticent.run(
        model,
        (inputs, labels),
        method=build_method(settings),
        budget=budget_of(settings),
        n=n,
        device=chosen,
        coins=Coins.from_seed(settings.seed),
        **run_options(settings, n),
    )
    releases = iter(training)
    _pass(releases, warmup, chosen)
    started = time.perf_counter()
    _pass(releases, repeats, chosen)
    return {"milliseconds": 1e3 * (time.perf_counter() - started) / repeats}


def _options(
    given: dict[str, Any], needs: tuple[str, ...] = (), takes: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The options, if there are all that are needed and no others than are taken."""
    for name in needs:
        if name not in given:
            raise OptionError(name, None, "must be given among the options")
    for name, value in given.items():
        if name not in (*needs, *takes):
            known = ", ".join((*needs, *takes))
            raise OptionError(name, value, f"is no such option; there are {known}")
    return given


def _deniable(settings: Settings) -> PDSGD:
    method = build_method(settings)
    if not isinstance(method, PDSGD):
        raise OptionError("method", settings.method, "must be pd-sgd here")
    return method


def _splits(settings: Settings, records: int | None) -> datasets.Splits:
    """The data with its features; of the training split the first `records`."""
    with tempfile.TemporaryDirectory() as folder:
        found = prepare(settings, None, None, Path(folder), resume=False, overwrite=True).splits
    if records is None:
        return found
    inputs, labels = found.train
    if whole("records", records) > len(labels):
        raise OptionError("records", records, f"{settings.data} has {len(labels)} to train on")
    return replace(found, train=(inputs[:records], labels[:records]))


def _trained(
    settings: Settings,
    splits: datasets.Splits,
    train: tuple[Tensor, Tensor],
    method: PDSGD,
    seed: int,
) -> Training:
    """A finished training with its private diagnostics."""
    training = reticent.run(
        build_model(settings, splits),
        train,
        method=method,
        device=settings.device,
        coins=Coins.from_seed(seed),
        private_diagnostics=True,
        **run_options(settings, len(train[1])),
    )
    training.finish()
    return training


def _pass(releases: Iterator[Any], count: int, device: torch.device) -> None:
    for _ in range(count):
        next(releases)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
