"""A small problem that the training tests share."""

import torch
from torch import nn

import reticent as rt

N = 120
INPUTS = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
BUDGET = rt.Budget(epsilon=3, delta=1e-3)
QUANTILE = rt.Quantile(initial=1.0, count_noise=5.0)


def model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def sgd(params):
    return torch.optim.SGD(params, lr=0.3, momentum=0.9)


def bare_sgd(params):
    return torch.optim.SGD(params, lr=1.0)


def options(**changes):
    return {
        "method": rt.DPSGD(batch=30, clip=1.0, noise=2.0),
        "budget": BUDGET,
        "steps": 8,
        "optimizer": sgd,
        "coins": rt.Coins.from_seed(5),
        "device": "cpu",
        **changes,
    }


def weights(result):
    return torch.cat([p.detach().flatten() for p in result.model.parameters()])
