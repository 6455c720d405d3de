"""Models trained together against the same models trained one by one, with the same coins."""

import copy
import math

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.data import poisson_draw
from reticent.errors import DataError, ModelError, OptionError
from reticent.training.optimizers import ELEMENTWISE
from reticent.training.together import train_together

N, K = 90, 3
LOTS = rt.Budget(epsilon=1e6, delta=1e-5)
INF = math.inf


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


FLAT = (drawn(N, 6), (drawn(N, 6)[:, 0] > 0).long())
IMAGES = (drawn(N, 1, 8, 8), FLAT[1])
WORDS = (torch.randint(0, 11, (N, 7), generator=torch.Generator().manual_seed(3)), FLAT[1])


def mlp():
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.GroupNorm(2, 4),
        nn.Conv2d(4, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 2),
    )  # fmt: skip


class Text(nn.Module):
    """An embedding, and frozen parts that differ from model to model."""

    def __init__(self, tied=False):
        super().__init__()
        self.table = nn.Embedding(11, 4, padding_idx=0)
        self.back = nn.Linear(4, 11, bias=False)
        if tied:
            self.back.weight = self.table.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.register_buffer("shift", torch.randn(4))
        self.out = nn.Linear(11, 2)

    def forward(self, tokens):
        return self.out(self.back(self.frozen(self.table(tokens)).mean(1) + self.shift))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 4)
        self.mix = nn.Linear(4, 12)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens):
        q, k, v = self.mix(self.table(tokens)).chunk(3, -1)
        return self.out(nn.functional.scaled_dot_product_attention(q, k, v).mean(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.lstm = nn.Embedding(11, 3), nn.LSTM(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens):
        return self.out(self.lstm(self.table(tokens))[0][:, -1])


class Branching(nn.Module):
    """Fine for one model after the other; `vmap` refuses to ask a number for its sign."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 2)

    def forward(self, x):
        return self.one(x) if self.one.bias.detach().sum().item() > -1e9 else -self.one(x)


def make(build, count=K):
    torch.manual_seed(1)
    return [build() for _ in range(count)]


def uneven(count=K, n=N):
    """Records of each model, of different numbers and not in order."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randperm(n, generator=generator)[: n - 17 * k] for k in range(count)]


def sgd(params):
    return torch.optim.SGD(params, lr=0.4)


def weights(model):
    return torch.cat([v.detach().double().flatten() for v in model.state_dict().values()])


def compare(
    build=mlp, data=FLAT, *, clip=0.3, noise=0.0, batch=12, steps=9, subsets=None, optimizer=sgd,
    n=None, together=True, count=K, rtol=1e-4, atol=2e-5, how="auto", memory=None, **options,
):  # fmt: skip
    """Train both ways and compare every weight."""
    subsets = uneven(count) if subsets is None else subsets
    method = rt.DPSGD(batch=batch, clip=clip, noise=noise)
    models, alone = make(build, count), make(build, count)
    before = [weights(model) for model in models]
    done = train_together(
        models, data, method=method, optimizer=optimizer, steps=steps, subsets=subsets, n=n,
        coins=[rt.Coins.from_seed(40 + k) for k in range(count)], device="cpu", how=how,
        memory=memory, **options,
    )  # fmt: skip
    assert done.together is together, done.reason
    assert bool(done.reason) is not together
    assert all(a is b for a, b in zip(done.models, models, strict=True))
    for k, (model, single) in enumerate(zip(models, alone, strict=True)):
        rt.train(
            single, tuple(column[subsets[k]] for column in data), method=method,
            optimizer=optimizer, steps=steps, n=n, coins=rt.Coins.from_seed(40 + k),
            device="cpu", budget=LOTS if noise else None, microbatch=64, **options,
        )  # fmt: skip
        torch.testing.assert_close(weights(model), weights(single), rtol=rtol, atol=atol)
        assert model.training == single.training
        assert all(p.grad is None for p in model.parameters())
        if steps:
            assert float((weights(model) - before[k]).norm()) > 1e-3
    return models


# much noise on a wide bound would blow rounding up along with the weights
@pytest.mark.parametrize(("clip", "noise"), [(0.05, 0.0), (0.05, 0.7), (50.0, 0.0), (50.0, 0.01)])
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
