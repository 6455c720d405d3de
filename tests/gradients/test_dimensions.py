"""Which dimension holds the examples, when another has the same size."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.errors import ModelError
from reticent.gradients import clipped_sum

from .networks import batch, network
from .oracle import agrees, close, flat_sum, gradients, norms_of

CE = nn.CrossEntropyLoss()


def test_time_that_equals_batch_is_not_taken_for_it():
    class TimeFirst(nn.Module):
        """Keeps [time, batch, width] inside, as many models do."""

        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            h = torch.tanh(self.inner(x.transpose(0, 1)))
            return self.head(h.transpose(0, 1).mean(1))

    torch.manual_seed(0)
    model = TimeFirst().double()
    for size in (1, 4, 5, 6):  # time is 5
        x = torch.randn(size, 5, 4, dtype=torch.float64)
        y = torch.randint(0, 3, (size,))
        rows = gradients(model, CE, x, y)
        result = clipped_sum(model, CE, x, y, 0.1)
        close(result.norms, norms_of(rows), 1e-9)
        for name, value in flat_sum(rows, 0.1).items():
            close(result.grads[name], value, 1e-9, name)
        if size > 1:
            assert result.path == "reference"
            assert "inner" in result.reason
            with pytest.raises(ModelError, match="inner"):
                clipped_sum(model, CE, x, y, 0.1, path="fast")


def test_outputs_with_time_first_are_not_taken_for_examples():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(4, 4)

        def forward(self, x):
            return self.head(x).transpose(0, 1)

    x = torch.randn(4, 4, 4)
    with pytest.raises(ModelError):
        clipped_sum(Sequence(), lambda o, t: (o * t).sum(), x, torch.randn(4, 4), 1.0, path="fast")


def test_a_batch_as_large_as_the_image_still_takes_the_fast_path():
    model = network()
    x, y = batch(6)  # images are 6 x 6
    agrees(model, CE, x, y)
