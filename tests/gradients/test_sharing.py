"""Parameters used several times: tied weights, modules called twice, modules under two names."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.gradients import clipped_sum

from .networks import LoRA, falls_back, rows
from .oracle import agrees

CE = nn.CrossEntropyLoss()


def test_tied_linear_layers_and_reused_modules():
    class Reused(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.c.bias = self.a.bias
            self.norm = nn.LayerNorm(4)
            self.conv = nn.Conv1d(1, 1, 3, padding=1)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            h = self.norm(torch.tanh(self.a(x)))
            h = self.norm(self.b(h)) + x
            h = self.a(torch.stack([h, x], 1)).sum(1)
            h = self.conv(self.conv(h.unsqueeze(1)).tanh()).squeeze(1)
            return self.head(self.c(h))

    torch.manual_seed(0)
    model = Reused().double()
    agrees(model, CE, *rows())
    assert "b.weight" not in clipped_sum(model, CE, *rows(), 1.0).grads


def test_weight_tied_between_different_kinds_of_layer():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.group = nn.LayerNorm(4), nn.GroupNorm(2, 4)
            self.group.weight = self.norm.weight
            self.conv, self.other = nn.Conv1d(4, 4, 1), nn.Conv1d(4, 4, 1, stride=2)
            self.other.weight = self.conv.weight
            self.head = nn.Linear(4, 3)
            self.lora = LoRA(4, 4)
            self.lora.bias = self.norm.bias

        def forward(self, x):
            h = self.group(torch.tanh(self.norm(x)))
            seq = torch.stack([h, x, h * x], 2)
            h = self.conv(seq).mean(2) + self.other(seq).sum(2)
            return self.head(self.lora(h))

    torch.manual_seed(0)
    model = Mixed().double()
    agrees(model, CE, *rows())


def test_one_module_under_two_names():
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.ReLU(inplace=True), nn.Linear(4, 3))
    agrees(model.double(), CE, *rows())


class Holder(nn.Module):
    """Has a parameter of its own and uses a layer that belongs to someone else, too."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.scale = nn.Parameter(torch.randn(4))

    def forward(self, x):
        return torch.tanh(self.layer(x)) * self.scale + self.layer(x * 2)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Sequential(nn.LayerNorm(4))])
def test_a_layer_shared_with_a_custom_module_is_counted_once(first, layer):
    torch.manual_seed(0)
    parts = [layer, Holder(layer)]
    model = nn.Sequential(*(parts if first else parts[::-1]), nn.Linear(4, 3)).double()
    if first:
        agrees(model, CE, *rows())
    else:
        falls_back(model, *rows(), "outside")


def test_a_shared_layer_used_only_inside():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.holder = Holder(self.layer)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.holder(x))

    torch.manual_seed(0)
    agrees(Twice().double(), CE, *rows())


def test_a_custom_module_that_registers_a_layer_twice():
    class Aliased(Holder):
        def __init__(self, layer):
            super().__init__(layer)
            self.alias = layer
            self.register_buffer("shift", torch.ones(4))
            self.tied = nn.Linear(4, 4)
            self.tied.weight = layer.weight

        def forward(self, x):
            return super().forward(x) + self.tied(self.alias(x)) + self.shift

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Aliased(nn.Linear(4, 4)), nn.Linear(4, 3)).double()
    agrees(model, CE, *rows())


class Translator(nn.Module):
    """Source, target and output share one table; each embedding has a padding token of its own."""

    def __init__(self, first, second):
        super().__init__()
        self.source = nn.Embedding(11, 5, padding_idx=first)
        self.target = nn.Embedding(11, 5, padding_idx=second)
        self.out = nn.Linear(5, 11, bias=False)
        self.target.weight = self.out.weight = self.source.weight
        with torch.no_grad():
            self.out.weight.mul_(0.05)
            self.out.weight[1:] *= 3

    def forward(self, source, target):
        return self.out(torch.tanh(self.source(source).mean(1) + self.target(target).mean(1)))


@pytest.mark.parametrize("padding", [(0, None), (None, 0), (0, 1), (0, 0), (None, None)], ids=str)
def test_tied_tables_with_padding_of_their_own(padding):
    torch.manual_seed(1)
    model = Translator(*padding)
    inputs = torch.randint(0, 3, (9, 4)), torch.randint(0, 3, (9, 4))
    inputs[0][0], inputs[1][0] = 0, 0  # nothing but what one of them takes for padding
    targets = torch.randint(0, 11, (9,))
    loss = nn.CrossEntropyLoss()
    fast = clipped_sum(model, loss, inputs, targets, 1e-3, path="fast")
    slow = clipped_sum(model, loss, inputs, targets, 1e-3, path="reference")
    assert torch.allclose(fast.norms, slow.norms, rtol=1e-4)
    assert torch.allclose(fast.flat(), slow.flat(), rtol=1e-3, atol=1e-9)
    for i in range(9):
        one = [part[i : i + 1] for part in inputs]
        alone = clipped_sum(model, loss, tuple(one), targets[i : i + 1], 1e-3)
        assert float(alone.flat().norm()) <= 1e-3
