"""SELENA: what cannot work is refused, by name and value."""

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import DataError, ModelError, OptionError
from reticent.methods.selena import Selena

from .defences import INPUTS, TARGETS, N, started

METHOD = Selena(batch=8, models=5, excluded=2, split_steps=3, split_lr=0.1)


def test_a_budget_is_refused():
    with pytest.raises(OptionError, match=r"selena promises no differential privacy"):
        started(METHOD, budget=rt.Budget(3, 1e-5))
    with pytest.raises(OptionError, match="promises no differential privacy"):
        METHOD.calibrated(rt.Budget(3, 1e-5), N, 6, rt.Ledger())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch": 0}, "batch = 0"),
        ({"models": 1}, "models = 1"),
        ({"excluded": 0}, "excluded = 0"),
        ({"models": 10}, "excluded = 10: must be less than the number of models 10"),
        ({"models": 4, "excluded": 7}, "excluded = 7: must be less than the number of models 4"),
        ({"share": 0.0}, "share = 0.0"),
        ({"share": 1.0}, "share = 1.0: leaves no release for the model"),
        ({"share": 1.2}, "share = 1.2"),
        ({"split_steps": 0}, "split_steps = 0"),
        ({"split_lr": 0.0}, "split_lr = 0.0"),
        ({"split_momentum": -0.1}, "split_momentum = -0.1"),
        ({"split_momentum": 1.0}, "split_momentum = 1.0: must be less than 1"),
    ],
)
def test_options_that_cannot_work(changes, message):
    with pytest.raises(OptionError, match=message.replace(".", r"\.")):
        Selena(**{"batch": 10, **changes})


def test_plans_that_cannot_work_are_refused_before_the_run():
    with pytest.raises(OptionError, match=r"batch = 37: exceeds the 36 of 60 records"):
        started(Selena(batch=37))
    with pytest.raises(OptionError, match=r"steps = 1: must be 2 or more"):
        started(METHOD, steps=1)
    with pytest.raises(OptionError, match=r"split_steps = 3: leaves none of 3 steps"):
        started(METHOD, steps=3)
    started(METHOD, steps=0).finish()
    with pytest.raises(OptionError, match=r"batch = 37: exceeds the 36 of 60 records"):
        started(Selena(batch=37), n=1000).finish()


def test_too_many_submodels_for_the_records_are_refused():
    with pytest.raises(OptionError, match=r"models = 40: too many for 2 records"):
        started(Selena(batch=1, models=40, excluded=20), data=(INPUTS[:2], TARGETS[:2])).finish()


def test_what_is_no_classification_is_refused():
    loss = nn.MSELoss()
    with pytest.raises(ModelError, match="selena needs a score for each of two or more classes"):
        started(METHOD, nn.Linear(6, 1), (INPUTS, torch.rand(N, 1)), loss_fn=loss).finish()
    with pytest.raises(DataError, match="selena needs one class number for each record"):
        started(METHOD, nn.Linear(6, 2), (INPUTS, torch.rand(N, 2)), loss_fn=loss).finish()
