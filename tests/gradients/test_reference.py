from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.errors import ModelError
from reticent.gradients import clipped_sum, per_example

from .oracle import gradients, snapshot, unchanged

CE = nn.CrossEntropyLoss()


def test_per_example_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.LSTM(5, 3)).double()

    class Last(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x.transpose(0, 1))[0][-1]

    model = Last(model)
    x, y = torch.randn(3, 6, 4, dtype=torch.float64), torch.tensor([0, 2, 1])
    before = snapshot(model)
    rows = per_example(model, CE, x, y)
    for name, expected in gradients(model, CE, x, y).items():
        torch.testing.assert_close(rows[name], expected)
    assert not any(g.requires_grad for g in rows.values())
    unchanged(model, before)
    assert per_example(model, CE, x[:0], y[:0])["inner.0.weight"].shape == (0, 5, 4)


def test_buffers_are_read_and_not_written():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))
            self.register_buffer("scale", torch.full((3,), 2.0))
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x):
            self.calls += 1
            return x * self.w * self.scale

    model = Counter()
    x, y = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    rows = per_example(model, CE, x, y)
    assert model.calls == 0
    torch.testing.assert_close(rows["w"], gradients(model, CE, x, y)["w"])


def test_what_vmap_cannot_run_is_said_clearly():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.randn(3))

        def forward(self, x):
            return x * self.w if x.sum() > 0 else x - self.w

    with pytest.raises(ModelError, match=r"Branches .*register_rule"):
        clipped_sum(Branches(), CE, torch.randn(4, 3), torch.tensor([0, 1, 2, 0]), 1.0)


def test_compiled_wrappers_are_looked_into():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3))
    wrapped = torch.compile(model, backend="eager")
    x, y = torch.randn(4, 4), torch.tensor([0, 1, 2, 0])
    for path in ("fast", "reference"):
        result = clipped_sum(wrapped, CE, x, y, 0.1, path=path)
        assert list(result.grads) == [n for n, _ in wrapped.named_parameters()]
        torch.testing.assert_close(result.flat(), clipped_sum(model, CE, x, y, 0.1).flat())
