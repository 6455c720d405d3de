"""Problems and models that the tests of empirical defences share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import nn

import reticent as rt
from reticent.data.sampling import record_coins

N, CLASSES = 60, 3
INPUTS = torch.randn(N, 6, generator=torch.Generator().manual_seed(0))
TARGETS = INPUTS[:, :CLASSES].argmax(1)
SEED = 5


def table_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def dropping_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, CLASSES))


def image_net():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 16, CLASSES)
    )


class TokenNet(nn.Module):
    """A table of words, one recurrent layer, a classifier."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(20, 4)
        self.recurrent = nn.LSTM(4, 5, batch_first=True)
        self.last = nn.Linear(5, CLASSES)

    def forward(self, tokens):
        return self.last(self.recurrent(self.words(tokens))[0][:, -1])


def image_data():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(N, 1, 6, 6, generator=generator), TARGETS


def token_data():
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 20, (N, 7), generator=generator), TARGETS


KINDS = {
    "table": (table_net, lambda: (INPUTS.clone(), TARGETS.clone())),
    "images": (image_net, image_data),
    "tokens": (TokenNet, token_data),
}


def sgd(params):
    return torch.optim.SGD(params, lr=0.2, momentum=0.9)


def started(method, model=None, data=None, **changes):
    options = {
        "steps": 6,
        "optimizer": sgd,
        "device": "cpu",
        "coins": rt.Coins.from_seed(SEED),
        **changes,
    }
    model = table_net() if model is None else model
    # copies: some tests write over records while a training is under way
    data = (INPUTS.clone(), TARGETS.clone()) if data is None else data
    return rt.run(model, data, method=method, **options)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def ranks(n, stream, release, trial=0):
    """The order of the records that the run's coins give at an address."""
    return record_coins(n, rt.Coins.from_seed(SEED), stream, release, trial).argsort()


def step_by(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def overfitted(n=150):
    """Members and others with labels of which half are noise, to be learned by heart."""
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(2 * n, 20, generator=generator)
    noise = torch.randint(0, 5, (2 * n,), generator=generator)
    clean = torch.rand(2 * n, generator=generator) < 0.5
    return inputs, torch.where(clean, inputs[:, :5].argmax(1), noise)


def wide_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 5))


@torch.no_grad()
def attack_auc(model, members, others):
    """How well the loss alone tells members from others."""
    losses = [F.cross_entropy(model(x), y, reduction="none") for x, y in (members, others)]
    truth = [1] * len(losses[0]) + [0] * len(losses[1])
    return roc_auc_score(truth, -torch.cat(losses))


class OneByOne(torch.utils.data.Dataset):
    """The same records as a map-style data set."""

    def __len__(self):
        return N

    def __getitem__(self, index):
        return INPUTS[index], TARGETS[index]
