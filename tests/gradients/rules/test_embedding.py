from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from reticent.gradients import clipped_sum

from ..oracle import agrees


class Bag(nn.Module):
    """Tokens, embedded, mixed non-linearly over time, classified."""

    def __init__(self, vocabulary=7, width=5, **options):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width, **options)
        self.head = nn.Linear(width, 3)

    def forward(self, tokens):
        h = torch.tanh(self.table(tokens))
        return self.head(h.flatten(1, -2).mean(1) if h.ndim > 2 else h)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (5, 9), (5,), (3, 2, 4)])
@pytest.mark.parametrize("padding", [None, 0, -1])
def test_agrees_with_the_oracle(dtype, reduction, shape, padding):
    torch.manual_seed(0)
    model = Bag(padding_idx=padding).to(dtype)
    tokens = torch.randint(0, 7, shape)
    agrees(model, nn.CrossEntropyLoss(reduction=reduction), tokens, torch.randint(0, 3, shape[:1]))


def test_repeated_tokens_are_added_before_squaring():
    torch.manual_seed(0)
    agrees(Bag().double(), nn.CrossEntropyLoss(), torch.full((3, 6), 2), torch.tensor([0, 1, 2]))


def test_sparse_tables_are_summed_densely():
    torch.manual_seed(0)
    model = Bag(sparse=True).double()
    tokens, y = torch.randint(0, 7, (4, 5)), torch.tensor([0, 1, 2, 0])
    result = clipped_sum(model, nn.CrossEntropyLoss(), tokens, y, 0.1, path="fast")
    dense = Bag().double()
    dense.load_state_dict(model.state_dict())
    expected = clipped_sum(dense, nn.CrossEntropyLoss(), tokens, y, 0.1, path="reference")
    torch.testing.assert_close(result.grads["table.weight"], expected.grads["table.weight"])


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for each in result if isinstance(result, tuple | list) else [result]:
            if isinstance(each, torch.Tensor):
                self.numel = max(self.numel, each.numel())
        return result


def test_a_large_vocabulary_is_never_multiplied_by_the_batch():
    model = Bag(vocabulary=100_000, width=8)
    tokens, y = torch.randint(0, 100_000, (64, 20)), torch.randint(0, 3, (64,))
    with Largest() as spy:
        result = clipped_sum(model, nn.CrossEntropyLoss(), tokens, y, 1.0, path="fast")
    assert spy.numel <= 100_000 * 8
    assert result.grads["table.weight"].shape == (100_000, 8)


class LanguageModel(nn.Module):
    """Input and output share one table."""

    def __init__(self, padding=None, bias=False):
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=padding)
        self.mix = nn.Linear(6, 6)
        self.head = nn.Linear(6, 11, bias=bias)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.table(tokens)))).transpose(1, 2)


@pytest.mark.parametrize("padding", [None, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_table_tied_to_the_output_layer(padding, bias, dtype):
    torch.manual_seed(0)
    model = LanguageModel(padding, bias).to(dtype)
    tokens, y = torch.randint(0, 11, (4, 7)), torch.randint(0, 11, (4, 7))
    agrees(model, nn.CrossEntropyLoss(), tokens, y)


def test_tied_tables_are_not_written_out():
    class Big(LanguageModel):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(3000, 6)
            self.head = nn.Linear(6, 3000, bias=False)
            self.head.weight = self.table.weight

    tokens = torch.randint(0, 3000, (16, 2))
    with Largest() as spy:
        clipped_sum(Big(), nn.CrossEntropyLoss(), tokens, tokens, 1.0, path="fast")
    assert spy.numel < 16 * 3000 * 6


def test_a_table_read_twice_and_shared_between_modules():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Embedding(7, 4)
            self.two = nn.Embedding(7, 4, padding_idx=1)
            self.two.weight = self.one.weight
            self.head = nn.Linear(4, 3)

        def forward(self, a, b):
            both = torch.tanh(self.one(a)).mean(1) * torch.tanh(self.two(b)).mean(1)
            return self.head(both + self.one(b[:, 0]))

    torch.manual_seed(0)
    a, b = torch.randint(0, 7, (4, 5)), torch.randint(0, 7, (4, 3))
    agrees(Twice().double(), nn.CrossEntropyLoss(), (a, b), torch.tensor([0, 1, 2, 0]))
