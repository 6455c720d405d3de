from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from reticent.gradients import clipped_sum
from reticent.gradients.rules import conv as conv_rules
from reticent.gradients.rules.conv import ConvRule

from ..oracle import agrees

KINDS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class Mean(nn.Module):
    def forward(self, x):
        return x.flatten(2).mean(2)


def network(dims, **options):
    return nn.Sequential(KINDS[dims](4, 6, **options), nn.Tanh(), Mean())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch", [0, 1, 3])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_agrees_with_the_oracle(dtype, reduction, batch, dims):
    torch.manual_seed(0)
    model = network(dims, kernel_size=3, padding=1, stride=2).to(dtype)
    x = torch.randn(batch, 4, *[7, 6, 5][:dims], dtype=dtype)
    agrees(model, nn.CrossEntropyLoss(reduction=reduction), x, torch.randint(0, 6, (batch,)))


@pytest.mark.parametrize("mode", ["zeros", "reflect", "replicate", "circular"])
@pytest.mark.parametrize("padding", [0, 2, "same", "valid"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
def test_padding_and_groups(mode, padding, groups, bias):
    torch.manual_seed(0)
    for dims, kernel in ((1, 4), (2, (4, 3)), (3, 2)):
        model = network(
            dims, kernel_size=kernel, padding=padding, padding_mode=mode, groups=groups, bias=bias
        ).double()
        x = torch.randn(2, 4, *[6, 7, 5][:dims], dtype=torch.float64)
        agrees(model, nn.CrossEntropyLoss(), x, torch.tensor([1, 4]), paths=("fast",))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    dims=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.integers(0, 2),
    groups=st.sampled_from([1, 2, 4]),
    size=st.integers(3, 7),
    mode=st.sampled_from(["zeros", "replicate", "circular"]),
)
def test_every_way_of_taking_norms(dims, kernel, stride, dilation, padding, groups, size, mode):
    assume(size + 2 * padding >= dilation * (kernel - 1) + 1)
    torch.manual_seed(dims * 7 + kernel)
    layer = KINDS[dims](
        4, 8, kernel, stride, padding, dilation, groups, padding_mode=mode, dtype=torch.float64
    )
    x = torch.randn(3, 4, *[size, size + 1, size][:dims], dtype=torch.float64)
    y = layer(x)
    g = torch.randn_like(y)
    rule = ConvRule()
    expected = torch.stack(
        [torch.autograd.grad(layer(x[i : i + 1]), layer.weight, g[i : i + 1])[0] for i in range(3)]
    )
    written = rule.per_example(layer, x, g, ("weight", "bias"))
    torch.testing.assert_close(written["weight"], expected)
    true = expected.flatten(1).square().sum(1)
    norms = rule.squared_norms(layer, x, g, ("weight", "bias"))
    torch.testing.assert_close(norms["weight"], true)
    split = conv_rules._split(layer, g)
    windows = conv_rules._windows(layer, x, g).reshape(3, groups, -1, split.shape[3])
    gram = conv_rules._gram(layer, x, g)
    torch.testing.assert_close(gram, windows.mT @ windows)
    torch.testing.assert_close(conv_rules._pixel_gram(layer, x, g), windows.mT @ windows)
    torch.testing.assert_close(conv_rules.gram_measures(gram, split.mT @ split)[0].sum(1), true)
    torch.testing.assert_close(
        rule.weighted_sum(layer, x, g, ("weight", "bias"))["weight"], expected.sum(0)
    )
    sums = g.flatten(2).sum(2)
    torch.testing.assert_close(written["bias"], sums)
    torch.testing.assert_close(norms["bias"], sums.square().sum(1))


def test_grams_agree_with_the_oracle_in_a_network():
    # few positions and many weights: norms by Gram matrices, of pixels for stride 1
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 8, 2), Mean())
    x = torch.randn(3, 16, 3, 3)
    agrees(model.double(), nn.CrossEntropyLoss(), x.double(), torch.tensor([1, 4, 0]))


def test_inputs_with_any_memory_layout():
    torch.manual_seed(0)
    model = network(2, kernel_size=3, stride=2, padding=1).double()
    x = torch.randn(3, 4, 6, 6, dtype=torch.float64).to(memory_format=torch.channels_last)
    agrees(model, nn.CrossEntropyLoss(), x, torch.tensor([1, 4, 0]))
    agrees(model, nn.CrossEntropyLoss(), x.mT, torch.tensor([1, 4, 0]))


def test_an_input_without_batch_is_not_taken_for_one():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 3, 2)

        def forward(self, x):  # [B, 4, 5] read as one image of B... channels
            return self.conv(x.unsqueeze(0).expand(4, -1, -1, -1)[:, :, 0]).mean((1, 2))

    x, y = torch.randn(4, 4, 5), torch.tensor([0, 1, 2, 0])
    with pytest.raises(Exception, match=r"batch dimension|conv"):
        clipped_sum(Odd(), nn.CrossEntropyLoss(), x, y, 1.0, path="fast")
