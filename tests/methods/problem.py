"""A small problem that the tests of DPSUR share."""

from __future__ import annotations

import torch
from torch import nn

import reticent as rt

N = 120
INPUTS = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
METHOD = rt.DPSUR(batch=30, clip=1.0, noise=2.0, valid_batch=40, valid_noise=1.0, bound=0.01)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def sgd(params):
    return torch.optim.SGD(params, lr=0.3, momentum=0.9)


def started(method=METHOD, data=(INPUTS, TARGETS), **changes):
    options = {
        "method": method,
        "budget": rt.Budget(8, 1e-3),
        "steps": 4,
        "optimizer": sgd,
        "n": N,
        "coins": rt.Coins.from_seed(5),
        "device": "cpu",
        "private_diagnostics": True,
        **changes,
    }
    return rt.run(network(), data, **options)


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def options_with(changes):
    names = ("batch", "clip", "noise", "valid_batch", "valid_noise", "bound")
    return {**{name: getattr(METHOD, name) for name in names}, **changes}
