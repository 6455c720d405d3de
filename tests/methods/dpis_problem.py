"""A small problem that the tests of DPIS share."""

import torch
from torch import nn

import reticent as rt

N = 6
INPUTS = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
INPUTS = INPUTS.double() * torch.tensor([0.05, 0.3, 1.0, 1.5, 3.0, 6.0]).unsqueeze(
    1
)  # norms spread out
TARGETS = torch.tensor([0, 1, 0, 1, 1, 0])
BUDGET = rt.Budget(epsilon=8, delta=1e-3)
QUIET = {"sum_noise": 8.0, "sum_rate": 1.0, "count_noise": 2.0}  # sums that leave a budget


def network():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def sgd(params):
    return torch.optim.SGD(params, lr=1.0)


def started(method, data=None, **changes):
    options = {
        "method": method,
        "budget": BUDGET,
        "steps": 6,
        "optimizer": sgd,
        "coins": rt.Coins.from_seed(5),
        "device": "cpu",
        **changes,
    }
    return rt.run(network(), data or (INPUTS, TARGETS), **options)
