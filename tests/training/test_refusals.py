"""What a training refuses, and that a refusal leaves nothing behind."""

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import BudgetError, DataError, ModelError, OptionError

from .problem import INPUTS, TARGETS, model, options


def test_a_method_must_step_once_per_release():
    class Idle(rt.DPSGD):
        def release(self, run):
            run.sample(0.1)

    with pytest.raises(RuntimeError, match="exactly once"):
        rt.train(model(), (INPUTS, TARGETS), **options(method=Idle(batch=30, noise=2.0)))


def test_fresh_coins_serve_one_run():
    coins = rt.Coins.fresh()
    rt.train(model(), (INPUTS, TARGETS), **options(coins=coins))
    with pytest.raises(OptionError, match="another run"):
        rt.train(model(), (INPUTS, TARGETS), **options(coins=coins))


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"budget": None}, OptionError, "budget"),
        ({"method": rt.DPSGD(batch=30, noise=0)}, OptionError, "noise"),
        ({"method": rt.DPSGD(batch=30), "steps": None}, OptionError, "steps"),
        ({"steps": 3, "epochs": 1}, OptionError, "epochs"),
        ({"steps": -1}, OptionError, "steps"),
        ({"epochs": -1, "steps": None}, OptionError, "epochs"),
        ({"steps": 10**6}, BudgetError, "affords"),
        ({"budget": rt.Budget(0.01, 1e-6), "steps": None}, BudgetError, "affords no release"),
        ({"method": rt.DPSGD(batch=500, noise=2.0)}, OptionError, "batch = 500"),
        ({"microbatch": -1}, OptionError, "microbatch"),
        ({"device": "abacus"}, OptionError, "device"),
        ({"average": 1.5}, OptionError, "average"),
        ({"path": "magic"}, OptionError, "path"),
        ({"resume": True}, OptionError, "resume"),
        ({"n": 0}, OptionError, "n = 0"),
        ({"microbatch": 0}, OptionError, "microbatch = 0"),
        ({"checkpoint_every": float("nan")}, OptionError, "checkpoint_every"),
        ({"config": {"x": object()}}, OptionError, "config"),
        ({"optimizer": lambda p: torch.optim.LBFGS(p)}, OptionError, "LBFGS"),
        (
            {"scheduler": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o)},
            OptionError,
            "ReduceLROnPlateau",
        ),
        ({"optimizer": 5}, OptionError, "optimizer = 5: must be an Optimizer"),
        ({"scheduler": 3}, OptionError, "scheduler = 3: must be a function"),
        ({"loss_fn": "ce"}, OptionError, "loss_fn = 'ce': must be a function"),
        ({"loss_fn": nn.CrossEntropyLoss}, OptionError, r"make one of it, CrossEntropyLoss\(\)"),
        ({"loss": nn.CrossEntropyLoss()}, TypeError, "'loss'; the loss is loss_fn"),
        ({"stepps": 3}, TypeError, r"train\(\) got an unexpected keyword argument 'stepps'"),
    ],
)
def test_bad_options_are_named(changes, error, words):
    with pytest.raises(error, match=words):
        rt.train(model(), (INPUTS, TARGETS), **options(**changes))


@pytest.mark.parametrize(
    ("net", "data", "error", "words"),
    [
        (
            nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)),
            None,
            ModelError,
            "BatchNorm1d",
        ),
        (nn.Linear(6, 2), None, ModelError, r"shape \(5,\)"),
        (nn.Tanh(), None, ModelError, "no trainable"),
        (nn.Linear, None, OptionError, "model = .*is a class: make one of it, Linear"),
        (len, None, OptionError, "model = .*must be a torch.nn.Module"),
        (model(), (INPUTS.double(), TARGETS), ModelError, r"computes in float32.*torch\.float32"),
        (model(), (INPUTS > 0, TARGETS), ModelError, r"whole numbers .* need \.float\(\)"),
        (model(), (INPUTS, TARGETS.float()), ModelError, r"number of a class, by \.long\(\)"),
        (nn.Linear(5, 1), (INPUTS, TARGETS), ModelError, "cross-entropy is 0 whatever it says"),
        (nn.Linear(5, 1), (INPUTS, TARGETS[:, None] / 2), ModelError, "MSELoss.* for a quantity"),
        (model(), (INPUTS, TARGETS + 1), DataError, "label 2 .*outside the model's classes 0..1"),
        (model(), (INPUTS, TARGETS - 1), DataError, "label -1"),
        (model(), (INPUTS, TARGETS.int()), ModelError, r"CrossEntropyLoss cannot take.*int32"),
        (model(), (INPUTS, TARGETS[:, None]), ModelError, "CrossEntropyLoss cannot take"),
        (model(), (INPUTS[:0], TARGETS[:0]), DataError, "0 records"),
        (model(), (INPUTS / 0, TARGETS), DataError, "NaN or infinite"),
    ],
)
def test_bad_models_and_data_are_named(net, data, error, words):
    with pytest.raises(error, match=words):
        rt.train(net, data or (INPUTS, TARGETS), **options())


def test_a_stream_cannot_be_drawn_from_twice_in_a_release():
    class Careless(rt.DPSGD):
        def release(self, run):
            run.sample(0.1)
            run.sample(0.1)

    with pytest.raises(RuntimeError, match="drawn from already"):
        rt.train(model(), (INPUTS, TARGETS), **options(method=Careless(batch=30, noise=2.0)))


def test_a_refused_or_broken_training_leaves_the_model_as_it_was():
    net = model().eval()
    with pytest.raises(BudgetError):
        rt.train(net, (INPUTS, TARGETS), **options(steps=10**6))
    assert not net.training

    def stumble(release):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        rt.train(net, (INPUTS, TARGETS), **options(), on_release=stumble)
    assert all(p.grad is None for p in net.parameters())


def test_a_parameter_taken_out_of_the_buffer_is_noticed():
    training = rt.run(model(), (INPUTS, TARGETS), **options())

    def displace(release):
        training.run.model[2].bias.data = torch.zeros(2)

    with pytest.raises(ModelError, match=r"2\.bias"):
        training.finish(displace)


def test_a_coupling_that_starts_at_a_size_is_found():
    class Large(nn.Module):
        def forward(self, x):
            return x - x.mean(0) if len(x) > 3 else x

    with pytest.raises(ModelError, match="influence each other"):
        rt.run(nn.Sequential(Large(), model()), (INPUTS, TARGETS), **options())


def test_a_frozen_part_that_learns_stops_the_training():
    class Sly(nn.Module):
        """Passes the probe, whose inputs it recognises by their number."""

        def __init__(self):
            super().__init__()
            self.inner = model()
            self.register_buffer("kept", torch.zeros(5))

        def forward(self, x):
            if len(x) not in (1, 3, 17):
                self.kept.copy_(x.detach().mean(0))
            return self.inner(x)

    with pytest.raises(ModelError, match="without noise"):
        rt.train(Sly(), (INPUTS, TARGETS), **options())
