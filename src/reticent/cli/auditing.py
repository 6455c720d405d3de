"""A run folder as something to audit: its records, its model, and how it was trained."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reticent import data as datasets
from reticent import methods, training
from reticent.audit.shadows import OneByOne, ShadowPlan
from reticent.cli.building import budget_of, build_method, build_model, run_options
from reticent.cli.own_data import identity, load_own
from reticent.cli.preparing import Prepared, check_same, prepare
from reticent.cli.settings import SETTINGS_FILE, Settings, saved_settings
from reticent.coins import Coins
from reticent.data.own import is_own
from reticent.errors import CheckpointError
from reticent.features.applying import check_note
from reticent.files import read_json
from reticent.gradients import Flat
from reticent.privacy import Budget, Ledger
from reticent.training.planning import plan
from reticent.training.train import pick_device


class AuditedRun:
    """What `reticent train` left in a folder, and how to do it again."""

    def __init__(self, folder: Path, device: str) -> None:
        self.folder = folder
        self.report = training.read_run(folder)
        if not (folder / SETTINGS_FILE).exists():
            raise CheckpointError(
                f"{str(folder)!r} has no {SETTINGS_FILE}: give the whole folder that `train` "
                "made, not a part of it; audit a run of your own code with reticent.audit"
            )
        self.settings = replace(saved_settings(folder), device=device)
        self.device = pick_device(device)

    @property
    def budget(self) -> Budget | None:
        """What the run could spend; None: it promised nothing."""
        return budget_of(self.settings)

    @cached_property
    def _prepared(self) -> Prepared:
        self._check_features()
        return prepare(self.settings, self.budget, None, self.folder, resume=True, overwrite=False)

    def _check_features(self) -> None:
        """Refuse files that the run's features were not made with, where it says which."""
        notes = self.report["ledger"]["notes"]
        try:
            check_note(self.settings.features, self.settings.feature_options, notes)
        except CheckpointError as error:
            raise CheckpointError(f"{str(self.folder)!r}: {error}") from None

    @property
    def has_read(self) -> bool:
        """Whether the records were read, and found to be those of the run."""
        return "_prepared" in self.__dict__

    @property
    def splits(self) -> datasets.Splits:
        """The records as the model saw them."""
        return self._prepared.splits

    def ledger(self) -> Ledger:
        """A ledger of its own with what was paid before the run, for statistics of the records."""
        paid = self._prepared.ledger
        return Ledger(self.budget) if paid is None else Ledger.from_json(paid.to_json())

    def fresh_model(self, number: int = 0) -> nn.Module:
        """The model as it was before training: its seed is public."""
        return build_model(self.settings, self.splits)

    def model(self) -> nn.Module:
        """The trained model."""
        return training.load_weights(self.fresh_model(), self.folder).to(self.device)

    def method(self) -> methods.Method:
        """The method, its noise to be set anew where it was not stated."""
        return build_method(self.settings)

    def options(self, n: int) -> dict[str, Any]:
        """What `reticent.run` was told, for a training on `n` records."""
        return run_options(self.settings, n)

    def pool(self) -> tuple[torch.Tensor, torch.Tensor]:
        """All records, those it was trained on first."""
        (inputs, labels), (more, others) = self.splits.train, self.splits.test
        return torch.cat([inputs, more]), torch.cat([labels, others])

    def plan(self, n: int, seed: int) -> ShadowPlan | OneByOne:
        """How models like this one are trained on `n` records, by the same settings."""
        settings = self.settings
        method = self.method()
        batch = getattr(method, "batch", n)
        if batch > n:
            method = replace(method, batch=n)  # type: ignore[call-arg]
        planned, steps = plan(
            method, self.budget, n, settings.steps, settings.epochs, self.ledger()
        )
        shadows = shadow_plan(settings, planned, steps, n, seed)
        return self._one_by_one(method, n, seed) if shadows is None else shadows

    def _one_by_one(self, method: methods.Method, n: int, seed: int) -> OneByOne:
        def train(model: nn.Module, data: Any, number: int) -> nn.Module:
            result = training.train(
                model,
                data,
                method=method,
                budget=self.budget,
                ledger=self.ledger(),
                n=n,
                device=self.device,
                coins=Coins.from_seed(hash((seed, number)) & (2**62 - 1)),
                **self.options(n),
            )
            return result.model

        return OneByOne(train, {"settings": self.settings.to_json(), "n": n, "seed": seed})


def compare_records(folder: Path) -> str | None:
    """Refuse a run whose own records have changed; None if they have not, or are public.

    Whoever was given a run folder without the records can still check its books: then this says why
    the records cannot be compared.
    """
    try:
        data = read_json(folder / SETTINGS_FILE)["data"]
    except (OSError, ValueError, KeyError, TypeError):
        return None  # not made by reticent train
    if not is_own(str(data)):
        return None
    try:
        settings = saved_settings(folder)
    except CheckpointError as error:
        return str(error)
    check_same(folder, identity(load_own(settings.data, settings.data_options, fresh=True)))
    return None


def shadow_plan(
    settings: Settings, planned: methods.Method, steps: int, n: int, seed: int
) -> ShadowPlan | None:
    """How shadow models of such a training are trained at once; None where they cannot be."""
    # exactly: a subclass makes other releases, and other clippings have no vectorised form
    if type(planned) is not methods.DPSGD or not isinstance(planned.clip, (int, float, Flat)):
        return None
    return ShadowPlan(
        batch=planned.batch,
        steps=steps,
        optimizer=settings.optimizer,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        schedule=settings.schedule,
        clip=planned.clipping.sensitivity,
        noise=planned.noise or 0.0,
        average=settings.average,
        n=n,
        seed=seed,
    )
