"""Models that several test files share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.errors import ModelError
from reticent.gradients import clipped_sum

from .oracle import close, flat_sum, gradients, norms_of, snapshot, unchanged

CE = nn.CrossEntropyLoss()


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


def rows(size=5, width=4):
    torch.manual_seed(1)
    return torch.randn(size, width, dtype=torch.float64), torch.randint(0, 3, (size,))


def falls_back(model, x, y, *words):
    """Auto gives the oracle's answer by the reference; fast refuses and names the culprit."""
    found = gradients(model, CE, x, y)
    before = snapshot(model)
    result = clipped_sum(model, CE, x, y, 0.1)
    assert result.path == "reference"
    close(result.norms, norms_of(found), 1e-9)
    for name, value in flat_sum(found, 0.1).items():
        close(result.grads[name], value, 1e-9, name)
    with pytest.raises(ModelError) as caught:
        clipped_sum(model, CE, x, y, 0.1, path="fast")
    for word in words:
        assert word in str(caught.value)
        assert word in result.reason
    unchanged(model, before)
