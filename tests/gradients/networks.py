"""Models that several test files share."""

from __future__ import annotations

import torch
from torch import nn


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(inplace=True),
        nn.GroupNorm(2, 4),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 3),
    ).to(dtype)


def batch(size=7, dtype=torch.float64):
    torch.manual_seed(1)
    return torch.randn(size, 1, 6, 6, dtype=dtype), torch.randint(0, 3, (size,))


class LoRA(nn.Linear):
    """A frozen linear layer with a trained low-rank correction."""

    def __init__(self, inner, outer, rank=2):
        super().__init__(inner, outer)
        self.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, inner))
        self.up = nn.Parameter(torch.randn(outer, rank))

    def forward(self, x):
        return super().forward(x) + x @ self.down.T @ self.up.T
