"""Tensors that require grad without being parameters stand in nobody's way."""

from __future__ import annotations

import torch
from torch import nn

from .oracle import agrees

CE = nn.CrossEntropyLoss()


def batch():
    torch.manual_seed(1)
    return torch.randn(5, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1])


class Scaled(nn.Module):
    """The first layer's input depends on a tensor that is no parameter, and on nothing else."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)
        self.scale = torch.full((3,), 1.5, dtype=torch.float64, requires_grad=True)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x * self.scale)))


class Idle(nn.Module):
    """One layer's output goes nowhere."""

    def __init__(self):
        super().__init__()
        self.used, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        self.idle(x)
        return self.used(x)


def test_inputs_that_require_grad():
    torch.manual_seed(0)
    x, y = batch()
    agrees(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(), CE, x, y)
    x.requires_grad_()
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    agrees(model, CE, x, y)
    assert x.grad is None


def test_a_tensor_that_is_no_parameter():
    torch.manual_seed(0)
    model = Scaled().double()
    agrees(model, CE, *batch(), paths=("fast",))
    assert model.scale.grad is None


def test_a_layer_that_is_not_used_has_no_gradient():
    torch.manual_seed(0)
    agrees(Idle().double(), CE, *batch())
