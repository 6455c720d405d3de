"""A small problem that the tests of the audits share."""

from __future__ import annotations

import torch
from torch import nn

import reticent as rt

N = 120
INPUTS = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()
DATA = (INPUTS, TARGETS)
SELECTING = {"batch": 30, "noise": 2.0, "valid_batch": 40, "valid_noise": 1.0, "bound": 0.01}
SAMPLING = {"batch": 30, "noise": 2.0}
_SUMS = {"sum_noise": 20.0, "count_noise": 21.0}
HONEST = {
    "dpsgd": rt.DPSGD(**SAMPLING),
    "dpsgd per layer": rt.DPSGD(**SAMPLING, clip=rt.gradients.PerLayer(1.0)),
    "dpsgd quantile": rt.DPSGD(**SAMPLING, clip=rt.Quantile()),
    "dpsgd, everybody": rt.DPSGD(batch=N, noise=9.0),
    "noise-decay": rt.NoiseDecay(batch=30, noise=3.0, schedule="step", rate=0.8, stage=3, period=1),
    "sign-sgd": rt.SignSGD(**SAMPLING),
    "sign-adam": rt.SignAdam(**SAMPLING),
    "dpagd": rt.DPAGD(batch=60, noise=6.0, candidates=3, longest=1.0),
    "dpis": rt.DPIS(batch=20, k=2.0, adapt=True, **_SUMS),
    "dpis, sums sampled": rt.DPIS(batch=20, k=2.0, sum_rate=0.5, adapt=True, **_SUMS),
    "dpis, equal noise": rt.DPIS(batch=20, k=2.0, sum_noise=20.0, count_noise=20.0),
    "dpsur": rt.DPSUR(**SELECTING),
    "dpsur padded": rt.DPSUR(**SELECTING, pad=4),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2))


def options_for(method):
    momentum = 0.0 if method.name == "dpagd" else 0.9
    return {
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.3, momentum=momentum),
        "budget": rt.Budget(100, 1e-3),
        "average": 0.9,
    }
