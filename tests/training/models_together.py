"""Small models and records that the tests of training together share."""

import math

import torch
from torch import nn

import reticent as rt
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
