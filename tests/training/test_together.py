"""Models trained together against the same models trained one by one, with the same coins."""

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.data import poisson_draw
from reticent.training.optimizers import ELEMENTWISE
from reticent.training.together import train_together

from .models_together import (
    FLAT,
    IMAGES,
    INF,
    WORDS,
    Attention,
    K,
    N,
    Text,
    cnn,
    compare,
    drawn,
    make,
    mlp,
    sgd,
    uneven,
    weights,
)


# much noise on a wide bound would blow rounding up along with the weights
@pytest.mark.parametrize(("clip", "noise"), [(0.05, 0.0), (0.05, 0.7), (50.0, 0.0), (1.5, 0.3)])
@pytest.mark.parametrize(("build", "data"), [(mlp, FLAT), (cnn, IMAGES), (Text, WORDS)])
def test_clipped_models_come_out_as_if_alone(build, data, clip, noise):
    compare(build, data, clip=clip, noise=noise)


@pytest.mark.parametrize(
    ("build", "data"), [(mlp, FLAT), (cnn, IMAGES), (Text, WORDS), (Attention, WORDS)]
)
def test_unclipped_models_come_out_as_if_alone(build, data):
    compare(build, data, clip=INF)


@pytest.mark.parametrize(
    ("kind", "clip"), [*((kind, INF) for kind in ELEMENTWISE), (torch.optim.Adam, 0.3)]
)
def test_every_elementwise_optimizer(kind, clip):
    compare(clip=clip, optimizer=lambda params: kind(params, lr=0.02, weight_decay=0.01))


def test_momentum_schedule_and_average():
    compare(
        clip=0.5,
        noise=0.5,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.3, momentum=0.9, nesterov=True),
        scheduler=lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=9),
        average=0.9,
    )
    compare(
        clip=INF,
        steps=70,  # longer than one window
        optimizer=lambda params: torch.optim.AdamW(params, lr=0.01, weight_decay=0.1),
        scheduler=lambda made: torch.optim.lr_scheduler.LinearLR(made, 1.0, 0.01, 70),
        average=0.99,
    )


def test_a_nominal_size_sets_all_rates():
    compare(n=120, clip=INF)
    compare(n=120, noise=0.5)


def test_masks_mean_positions_in_order():
    masks = torch.rand(K, N, generator=torch.Generator().manual_seed(2)) < 0.6
    rows = [mask.nonzero()[:, 0] for mask in masks]
    by_mask, by_row = compare(subsets=masks), compare(subsets=rows)
    assert all(torch.equal(weights(a), weights(b)) for a, b in zip(by_mask, by_row, strict=True))


def test_without_subsets_every_model_has_the_pool():
    models, alone = make(mlp), make(mlp)
    options = {"method": rt.DPSGD(batch=9, clip=INF, noise=0), "optimizer": sgd, "steps": 4}
    coins = [rt.Coins.from_seed(k) for k in range(K)]
    train_together(models, FLAT, coins=coins, device="cpu", **options)
    for k in range(K):
        rt.train(alone[k], FLAT, coins=rt.Coins.from_seed(k), device="cpu", **options)
        torch.testing.assert_close(weights(models[k]), weights(alone[k]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [0.3, INF])
def test_pieces_of_any_size_give_the_same(clip):
    whole = compare(clip=clip)
    pieces = compare(clip=clip, memory=1)
    for a, b in zip(whole, pieces, strict=True):
        torch.testing.assert_close(weights(a), weights(b), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clip", [0.3, INF])
def test_small_batches_that_are_often_empty(clip):
    """Some steps have no record for a model, and some for no model."""
    compare(batch=1, subsets=[torch.arange(2 + k) for k in range(2)], count=2, steps=20, clip=clip)


def test_no_steps_leave_the_models_alone():
    compare(steps=0, average=0.9)


@pytest.mark.parametrize("clip", [0.3, INF])
def test_other_losses_and_targets(clip):
    class Vector(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(6, 3)

        def forward(self, x):
            return self.one(x)

    data = (FLAT[0], drawn(N, 3, seed=8))
    compare(Vector, data, loss_fn=nn.MSELoss(), clip=clip)
    compare(Vector, data, loss_fn=lambda o, t: (o - t).abs().pow(1.5).mean(), clip=clip)


def test_tied_parameters_move_as_one():
    """Against a loop in plain PyTorch."""
    models, alone = make(lambda: Text(tied=True)), make(lambda: Text(tied=True))
    rows = uneven()
    train_together(
        models, WORDS, method=rt.DPSGD(batch=12, clip=INF, noise=0), optimizer=sgd, steps=5,
        subsets=rows, coins=[rt.Coins.from_seed(k) for k in range(K)], device="cpu",
    )  # fmt: skip
    for k, (model, single, row) in enumerate(zip(models, alone, rows, strict=True)):
        optimizer = sgd([p for p in single.parameters() if p.requires_grad])
        for step in range(5):
            n = len(row)
            some = row[poisson_draw(n, 12 / n, rt.Coins.from_seed(k), "sampling", step, 0)]
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(
                single(WORDS[0][some]), WORDS[1][some], reduction="sum"
            )
            (losses / 12).backward()
            optimizer.step()
        assert model.back.weight is model.table.weight
        torch.testing.assert_close(weights(model), weights(single), rtol=1e-4, atol=1e-5)


def test_several_inputs_by_name():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(12, 2)

        def forward(self, left, right):
            return self.one(torch.cat([left, right], 1))

    inputs = {"left": FLAT[0], "right": drawn(N, 6, seed=9)}
    models, alone = make(Two), make(Two)
    options = {"optimizer": sgd, "steps": 5, "device": "cpu"}
    options["method"] = rt.DPSGD(batch=9, clip=INF, noise=0)
    rows = uneven()
    coins = [rt.Coins.from_seed(k) for k in range(K)]
    done = train_together(models, (inputs, FLAT[1]), subsets=rows, coins=coins, **options)
    assert done.together
    for k, row in enumerate(rows):
        own = {name: column[row] for name, column in inputs.items()}
        rt.train(alone[k], (own, FLAT[1][row]), coins=rt.Coins.from_seed(k), **options)
        torch.testing.assert_close(weights(models[k]), weights(alone[k]), rtol=1e-4, atol=1e-5)


def test_a_data_set_serves_as_a_pool():
    class Pairs(torch.utils.data.Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return FLAT[0][index], FLAT[1][index]

    results = []
    for pool in (FLAT, Pairs()):
        models = make(mlp)
        train_together(
            models, pool, method=rt.DPSGD(batch=9, clip=1.0, noise=0), optimizer=sgd, steps=4,
            coins=[rt.Coins.from_seed(k) for k in range(K)], subsets=uneven(), device="cpu",
        )  # fmt: skip
        results.append([weights(model) for model in models])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("position", "clip"), [(0, INF), (40, INF), (40, 0.3)])
def test_a_record_that_is_not_finite_is_left_out(clip, position):
    """Its norm leaves single precision; a separate run leaves it out, and so must the quick way."""
    inputs = FLAT[0].clone()
    inputs[position] = 1e25
    models = compare(lambda: nn.Linear(6, 2), data=(inputs, FLAT[1]), clip=clip, steps=70, batch=20)
    assert all(bool(weights(model).isfinite().all()) for model in models)


# -- memberships ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("clip", "noise"), [(0.3, 0.5), (INF, 0.0)])
@pytest.mark.parametrize("record", [0, 33])
def test_a_record_outside_a_subset_never_matters(clip, noise, record):
    masks = torch.rand(4, N, generator=torch.Generator().manual_seed(2)) < 0.5
    masks[:, record] = torch.tensor([True, False, False, True])
    changed = (FLAT[0].clone(), FLAT[1].clone())
    changed[0][record] = 7.0
    changed[1][record] = 1 - changed[1][record]
    results = []
    for data in (FLAT, changed):
        models = make(mlp, 4)
        train_together(
            models, data, method=rt.DPSGD(batch=20, clip=clip, noise=noise), optimizer=sgd,
            steps=12, subsets=masks, coins=[rt.Coins.from_seed(9 + k) for k in range(4)],
            device="cpu",
        )  # fmt: skip
        results.append([weights(model) for model in models])
    same = [torch.equal(a, b) for a, b in zip(*results, strict=True)]
    assert same == [False, True, True, False]
