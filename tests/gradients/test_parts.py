"""Several sums from one pass, each against a pass of its own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.errors import OptionError
from reticent.gradients import Flat, PerLayer, clipped_sum, clipped_sums

from .networks import batch, network

CE = nn.CrossEntropyLoss()


@pytest.mark.parametrize("path", ["fast", "reference"])
@pytest.mark.parametrize("sizes", [[7], [3, 4], [0, 2, 0, 5], [1] * 7])
@pytest.mark.parametrize("microbatch", [None, 1, 2, 5])
@pytest.mark.parametrize("style", [Flat(0.1), PerLayer(0.2)])
def test_each_part_is_what_it_is_alone(path, sizes, microbatch, style):
    model, (x, y) = network(), batch(7)
    found = clipped_sums(model, CE, x, y, style, sizes, path=path, microbatch=microbatch)
    start = 0
    for size, part in zip(sizes, found, strict=True):
        alone = clipped_sum(
            model, CE, x[start : start + size], y[start : start + size], style, path=path
        )
        torch.testing.assert_close(part.flat(), alone.flat())
        torch.testing.assert_close(part.norms, alone.norms)
        torch.testing.assert_close(part.losses, alone.losses)
        assert part.sensitivity == alone.sensitivity
        start += size


@pytest.mark.parametrize("path", ["fast", "reference"])
def test_what_is_not_finite_is_counted_where_it_is(path):
    model, (x, y) = network(), batch(7)
    x[5] = torch.nan
    first, second = clipped_sums(model, CE, x, y, 0.1, [4, 3], path=path)
    assert (int(first.nonfinite), int(second.nonfinite)) == (0, 1)
    assert second.flat().isfinite().all()


def test_shared_layers():
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 2)).double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])
    parts = clipped_sums(model, CE, x, y, 0.1, [2, 4])
    for part, rows in zip(parts, (slice(0, 2), slice(2, 6)), strict=True):
        torch.testing.assert_close(
            part.flat(), clipped_sum(model, CE, x[rows], y[rows], 0.1).flat()
        )


def test_sizes_must_add_up():
    with pytest.raises(OptionError, match=r"sizes = \[3, 3\]: must add up to 7"):
        clipped_sums(network(), CE, *batch(7), 0.1, [3, 3])


def test_no_examples():
    parts = clipped_sums(network(), CE, *batch(0), 0.1, [0, 0])
    assert [part.path for part in parts] == ["empty", "empty"]
