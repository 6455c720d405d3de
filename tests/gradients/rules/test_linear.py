from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from reticent.gradients.rules.linear import LINEAR, gram_measures

from ..oracle import agrees


class Pooled(nn.Module):
    """Mean over all middle dimensions."""

    def forward(self, x):
        return x.flatten(1, -2).mean(1) if x.ndim > 2 else x


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch", [0, 1, 5])
@pytest.mark.parametrize("middle", [(), (3,), (2, 3), (40,)])
@pytest.mark.parametrize("bias", [True, False])
def test_agrees_with_the_oracle(dtype, reduction, batch, middle, bias):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 6, bias=bias), nn.Tanh(), nn.Linear(6, 3, bias=bias), Pooled()
    ).to(dtype)
    x, y = torch.randn(batch, *middle, 4, dtype=dtype), torch.randint(0, 3, (batch,))
    agrees(model, nn.CrossEntropyLoss(reduction=reduction), x, y)


@pytest.mark.parametrize("bound", [1e-6, 0.1, 1e3, float("inf")])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_bounds_from_tiny_to_infinite(bound, dtype):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).to(dtype)
    x, y = torch.randn(7, 4, dtype=dtype), torch.randint(0, 3, (7,))
    agrees(model, nn.CrossEntropyLoss(), x, y, bound=bound)


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 6), st.integers(1, 6))
def test_both_ways_of_taking_norms(batch, positions, inner, outer):
    generator = torch.Generator().manual_seed(batch * 1000 + positions * 100 + inner * 10 + outer)
    x = torch.randn(batch, positions, inner, generator=generator, dtype=torch.float64)
    g = torch.randn(batch, positions, outer, generator=generator, dtype=torch.float64)
    module = nn.Linear(inner, outer)
    written = LINEAR.per_example(module, x, g, ("weight", "bias"))
    norms = LINEAR.squared_norms(module, x, g, ("weight", "bias"))
    sums = LINEAR.weighted_sum(module, x, g, ("weight", "bias"))
    expected = torch.einsum("bto,bti->boi", g, x)
    torch.testing.assert_close(written["weight"], expected)
    torch.testing.assert_close(norms["weight"], expected.flatten(1).square().sum(1))
    torch.testing.assert_close(gram_measures(x @ x.mT, g @ g.mT)[0], norms["weight"])
    torch.testing.assert_close(norms["bias"], g.sum(1).square().sum(1))
    torch.testing.assert_close(sums["weight"], expected.sum(0))
    torch.testing.assert_close(sums["bias"], g.sum((0, 1)))


def test_cancelling_positions_do_not_hide_a_gradient():
    # two positions that cancel to a millionth: float32 Gram sums alone would often say 0
    torch.manual_seed(0)
    a, g = torch.randn(64, 1, 50), torch.randn(64, 1, 40)
    x = torch.cat([a, a], 1) * 1e3
    out = torch.cat([g, -g * (1 + 1e-6)], 1) * 1e3
    true = torch.einsum("bto,bti->boi", out.double(), x.double()).flatten(1).square().sum(1)
    assert (gram_measures(x @ x.mT, out @ out.mT)[0].double() >= true).all()


def test_gram_is_chosen_when_smaller():
    module = nn.Linear(64, 64)
    assert not LINEAR.instantiates(module, torch.zeros(2, 8, 64), torch.zeros(2, 8, 64))
    assert LINEAR.instantiates(module, torch.zeros(2, 64, 64), torch.zeros(2, 64, 64))
    assert not LINEAR.instantiates(module, torch.zeros(2, 64), torch.zeros(2, 64))
    # smaller, but four times the arithmetic
    assert LINEAR.instantiates(module, torch.zeros(2, 40, 512), torch.zeros(2, 40, 10))
