"""What cannot be trained together, progress, failures and refusals."""

import copy
import math

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import DataError, ModelError, OptionError
from reticent.training.together import train_together

from .models_together import (
    FLAT,
    INF,
    WORDS,
    Branching,
    K,
    N,
    Recurrent,
    compare,
    make,
    mlp,
    sgd,
    weights,
)

# -- one after the other --------------------------------------------------------------------------


def dropout():
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.parametrize("noise", [0.0, 0.7])
@pytest.mark.parametrize(
    ("build", "data"), [(dropout, FLAT), (Branching, FLAT), (Recurrent, WORDS)]
)
def test_what_cannot_be_mapped_is_trained_one_after_the_other(build, data, noise):
    compare(build, data, noise=noise, together=False, count=2, steps=4, rtol=0, atol=0)
    with pytest.raises(ModelError, match=r"together.*cannot be mapped over models"):
        compare(build, data, noise=noise, how="together", count=2)


def test_a_model_that_is_another_one_under_vmap_is_noticed():
    class Sly(nn.Module):
        """Another function where it can see that it is mapped."""

        def __init__(self):
            super().__init__()
            self.one = nn.Linear(6, 2)

        def forward(self, x):
            mapped = torch._C._functorch.is_functorch_wrapped_tensor(x)
            return self.one(x) * (2 if mapped else 1)

    models = make(Sly)
    done = train_together(
        models, FLAT, method=rt.DPSGD(batch=9, clip=INF, noise=0), optimizer=sgd, steps=2,
        device="cpu",
    )  # fmt: skip
    assert not done.together
    assert "something else" in done.reason


def test_large_clipped_models_go_one_after_the_other_on_the_cpu():
    def wide():
        return nn.Sequential(nn.Linear(6, 1200), nn.Tanh(), nn.Linear(1200, 2))

    compare(wide, together=False, steps=2, rtol=0, atol=0)
    compare(wide, how="together", steps=2)
    compare(wide, clip=INF, steps=2)
    compare(mlp, how="apart", together=False, rtol=0, atol=0)


# -- progress and failures ------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["together", "apart"])
def test_progress_counts_the_steps_of_all_models(how):
    seen = []
    models = make(mlp)
    train_together(
        models, FLAT, method=rt.DPSGD(batch=9, clip=INF, noise=0), optimizer=sgd, steps=4, how=how,
        on_step=lambda done, total: seen.append((done, total)), device="cpu",
    )  # fmt: skip
    counted = range(3, 13, 3) if how == "together" else range(1, 13)
    assert seen == [(done, 12) for done in counted]


def test_steps_that_are_made_again_are_told_once():
    inputs = FLAT[0].clone()
    inputs[4] = 1e25
    seen = []
    train_together(
        make(lambda: nn.Linear(6, 2)), (inputs, FLAT[1]),
        method=rt.DPSGD(batch=30, clip=INF, noise=0), optimizer=sgd, steps=9,
        on_step=lambda done, total: seen.append(done), device="cpu",
    )  # fmt: skip
    assert seen == list(range(3, 30, 3))


def test_a_failure_half_way_leaves_the_models_as_they_were():
    models = [model.eval() for model in make(mlp)]
    before = copy.deepcopy(models)

    def stop(done, total):
        if done > 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_together(
            models, FLAT, method=rt.DPSGD(batch=9, clip=INF, noise=0), optimizer=sgd, steps=9,
            on_step=stop, device="cpu",
        )  # fmt: skip
    for a, b in zip(models, before, strict=True):
        assert torch.equal(weights(a), weights(b))
        assert not a.training


def test_fresh_coins_serve_one_training():
    coins = [rt.Coins.fresh() for _ in range(K)]
    options = {"method": rt.DPSGD(batch=9, clip=INF, noise=0), "optimizer": sgd, "steps": 1}
    train_together(make(mlp), FLAT, coins=coins, device="cpu", **options)
    with pytest.raises(OptionError, match="another run already"):
        train_together(make(mlp), FLAT, coins=coins, device="cpu", **options)


def groups(params):
    first, *rest = params
    return torch.optim.SGD([{"params": [first]}, {"params": rest, "lr": 0.1}], lr=0.2)


PLATEAU = torch.optim.lr_scheduler.ReduceLROnPlateau


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"models": []}, "models = 0"),
        ({"models": [mlp(), nn.Linear(6, 2)]}, r"models\[1\].*another architecture"),
        ({"models": [nn.Linear(6, 2), nn.Linear(6, 3)]}, r"models\[1\].*another architecture"),
        ({"models": [mlp()] * 2}, "share no parameter"),
        ({"method": rt.DPSGD(batch=9)}, "noise = None"),
        ({"method": rt.DPSGD(batch=91, noise=0)}, "batch = 91"),
        ({"method": rt.DPSGD(batch=9, noise=0), "n": 8}, "batch = 9.*8"),
        ({"method": rt.DPSGD(batch=9, noise=0, clip=rt.Quantile())}, "clip = 'Quantile'"),
        (
            {"method": rt.DPSGD(batch=9, noise=0, clip=rt.gradients.PerLayer(1.0))},
            "clip = 'PerLayer'",
        ),
        ({"method": rt.SignSGD(batch=9, noise=1.0)}, "only DPSGD"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))])}, "optimizer = 'SGD'"),
        ({"optimizer": torch.optim.LBFGS}, "optimizer = 'LBFGS'"),
        ({"optimizer": groups}, "one group"),
        ({"scheduler": lambda made: PLATEAU(made)}, "scheduler = 'ReduceLROnPlateau'"),
        ({"subsets": torch.ones(2, N, dtype=torch.bool)}, "subsets = 2.*3 models"),
        ({"subsets": torch.ones(K, N - 1, dtype=torch.bool)}, r"subsets\[0\] = 89.*90"),
        ({"subsets": torch.ones(K, N)}, r"subsets\[0\].*booleans"),
        ({"subsets": [torch.arange(9)] * 2 + [torch.tensor([N])]}, r"subsets\[2\] = 90"),
        ({"subsets": [torch.tensor([-1])] * K}, r"subsets\[0\] = -1"),
        ({"subsets": [torch.arange(20) % 19] * K}, "at most once"),
        ({"coins": [rt.Coins.fresh()]}, "coins = 1"),
        ({"steps": -1}, "steps = -1"),
        ({"average": 1.5}, "average = 1.5"),
        ({"how": "quickly"}, "how = 'quickly'"),
        ({"memory": 0}, "memory = 0"),
    ],
)
def test_options_that_cannot_work(changes, words):
    options = {
        "models": make(mlp),
        "data": FLAT,
        "method": rt.DPSGD(batch=9, clip=INF, noise=0),
        "optimizer": sgd,
        "steps": 2,
        "device": "cpu",
        **changes,
    }
    with pytest.raises(OptionError, match=words):
        train_together(options.pop("models"), options.pop("data"), **options)


def test_data_and_models_that_cannot_work():
    options = {
        "method": rt.DPSGD(batch=9, clip=INF, noise=0),
        "optimizer": sgd,
        "steps": 2,
        "device": "cpu",
    }
    masks = torch.ones(K, N, dtype=torch.bool)
    masks[1] = False
    with pytest.raises(DataError, match=r"subsets\[1\] is empty"):
        train_together(make(mlp), FLAT, subsets=masks, **options)
    broken = FLAT[0].clone()
    broken[7, 2] = math.nan
    with pytest.raises(DataError, match="position 7"):
        train_together(make(mlp), (broken, FLAT[1]), **options)
    with pytest.raises(DataError, match="label 2"):
        train_together(make(mlp), (FLAT[0], FLAT[1] + 2), **options)
    models = make(mlp)
    with torch.no_grad():
        models[2][0].weight[0, 0] = math.inf
    with pytest.raises(ModelError, match=r"'0.weight' of model 2"):
        train_together(models, FLAT, **options)
    with pytest.raises(ModelError, match="mix the examples"):
        train_together(
            make(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))), FLAT, **options
        )
