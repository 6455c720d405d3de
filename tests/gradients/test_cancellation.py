"""One example whose own terms cancel must not disturb the others' values in the sum."""

import pytest
import torch
from torch import nn

from reticent.gradients import Automatic, Flat, Normalised, PerLayer, clipped_sum
from reticent.gradients.norms import LEAST_SHARE
from reticent.gradients.rules.conv import ConvRule, _windows

STYLES = [Flat(1.0), PerLayer(1.0), Automatic(1.0), Normalised(1.0)]


class WeightedBag(nn.Module):
    """Tokens summed with weights of the record's own: +K and -K on one token cancel."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 2)

    def forward(self, tokens, weights):
        return self.head((self.table(tokens) * weights.unsqueeze(-1)).sum(1))


class Siamese(nn.Module):
    """A layer used twice, and the difference taken: equal inputs cancel."""

    def __init__(self, layer, width):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(width, 2)

    def forward(self, a, b):
        return self.head((self.layer(a) - self.layer(b)).flatten(1))


def bag(size):
    inputs = (torch.randint(0, 10, (64, 2)), torch.randn(64, 2))
    return WeightedBag(), inputs, (torch.tensor([[7, 7]]), torch.tensor([[size, -size]]))


def conv(size):
    inputs = (torch.randn(64, 2, 6, 6), torch.randn(64, 2, 6, 6))
    extra = torch.full((1, 2, 6, 6), size)
    return Siamese(nn.Conv2d(2, 3, 3), 48), inputs, (extra, extra)


def linear(size):
    inputs = (torch.randn(64, 5), torch.randn(64, 5))
    return Siamese(nn.Linear(5, 4), 4), inputs, (torch.full((1, 5), size),) * 2


@pytest.mark.parametrize("style", STYLES, ids=lambda style: type(style).__name__)
@pytest.mark.parametrize("size", [1.0, 1e4, 1e8, 1e15, 1e30])
@pytest.mark.parametrize("make", [bag, conv, linear])
def test_cancelling_terms_do_not_swallow_the_other_examples(make, size, style):
    torch.manual_seed(0)
    model, inputs, extra = make(size)
    targets = torch.randint(0, 2, (64,))
    loss_fn = nn.CrossEntropyLoss()
    without = clipped_sum(model, loss_fn, inputs, targets, style, path="fast")
    # in the middle of the batch, where a sum over it passes through the large terms
    joined = tuple(torch.cat([a[:32], b, a[32:]]) for a, b in zip(inputs, extra, strict=True))
    labels = torch.cat([targets[:32], targets[:1], targets[32:]])
    total = clipped_sum(model, loss_fn, joined, labels, style, path="fast")
    moved = (total.flat().double() - without.flat().double()).norm()
    assert float(moved) <= style.sensitivity


def test_ordinary_examples_are_not_touched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    inputs, targets = torch.randn(16, 3, 20, 20), torch.randint(0, 8, (16,))
    total = clipped_sum(model, nn.CrossEntropyLoss(), inputs, targets, Normalised(1.0), path="fast")
    reference = clipped_sum(
        model, nn.CrossEntropyLoss(), inputs, targets, Normalised(1.0), path="reference"
    )
    torch.testing.assert_close(total.flat(), reference.flat(), rtol=1e-4, atol=1e-5)
    assert LEAST_SHARE < 1 / 100


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    ("stride", "dilation", "padding"), [(1, 1, 0), (2, 1, 1), (1, 2, 2), (2, 2, 1), (3, 1, 0)]
)
def test_mass_of_a_convolution_bounds_the_sum_over_windows(stride, dilation, padding, groups):
    torch.manual_seed(0)
    layer = nn.Conv2d(4, 6, (3, 2), stride, padding, dilation, groups)
    x = torch.randn(3, 4, 9, 8)
    g = torch.randn_like(layer(x))
    x[1, :, ::2], g[1, :, 1:] = 0, 0  # some windows large, some outputs large
    mass = ConvRule().mass(layer, x, g, ("weight", "bias"))
    windows = _windows(layer, x, g).reshape(3, groups, -1, g.shape[2:].numel()).norm(dim=2)
    heights = g.reshape(3, groups, 6 // groups, -1).norm(dim=2)
    terms = (windows * heights).sum((1, 2))
    assert (mass["weight"] >= terms * (1 - 1e-6)).all()
    assert (mass["weight"] <= 8 * terms)[[0, 2]].all()
    assert (mass["bias"] >= g.flatten(2).norm(dim=1).sum(1) * (1 - 1e-6)).all()
    assert (mass["bias"] <= 8 * heights.sum((1, 2)))[[0, 2]].all()
