"""A small pool of records and a plan that the tests of shadow models share."""

from __future__ import annotations

import torch
from torch import nn

from reticent.audit.shadows import ShadowPlan, in_out, train_shadows

N, K = 60, 6


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


POOL = (drawn(N, 4), (drawn(N, 4)[:, 1] > 0).long())
PLAN = ShadowPlan(batch=8, steps=5, lr=0.3, momentum=0.5, schedule="cosine", average=0.9)
MEMBERS = in_out(N, K, seed=1)


def build(k):
    torch.manual_seed(100 + k)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))


def shadows(*, make=build, data=POOL, members=MEMBERS, plan=PLAN, **options):
    return train_shadows(make, data, members, plan, device="cpu", **options)


def weights(model):
    return torch.cat([v.detach().flatten() for v in model.state_dict().values()])


def same(one, other):
    return all(
        torch.equal(weights(a), weights(b)) for a, b in zip(one.models, other.models, strict=True)
    )


def files(folder):
    return sorted(folder.glob("shadow-*.safetensors"))
