from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from reticent.errors import ModelError
from reticent.gradients import clipped_sum
from reticent.gradients.rules.recurrent import Plain, unrolled

from ..oracle import agrees


class Reader(nn.Module):
    """A recurrent layer over [B, T, 4], classified from all outputs and the last states."""

    def __init__(self, kind, *, given=False, **options):
        super().__init__()
        self.rnn = kind(4, 5, **options)
        self.given = given
        directions = 2 if self.rnn.bidirectional else 1
        width = (self.rnn.proj_size or 5) * directions
        self.head = nn.Linear(width, 3)

    def forward(self, x):
        seq = x if self.rnn.batch_first else x.transpose(0, 1)
        state = None
        if self.given:
            count = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
            h = (x.mean((1, 2)) * torch.arange(1, count + 1).unsqueeze(1)).unsqueeze(2)
            hidden = h.expand(-1, -1, self.rnn.proj_size or 5).contiguous()
            cell = h.expand(-1, -1, 5).contiguous() * 2
            state = (hidden, cell) if isinstance(self.rnn, nn.LSTM) else hidden
        output, last = self.rnn(seq, state)
        output = output if self.rnn.batch_first else output.transpose(0, 1)
        states = last if isinstance(last, tuple) else (last,)
        ends = sum(state.mean((0, 2)) for state in states)
        return self.head(output.mean(1)) + ends.unsqueeze(1) * torch.arange(3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("batch", [0, 1, 4])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_agrees_with_the_oracle(dtype, reduction, batch, kind):
    torch.manual_seed(0)
    model = Reader(kind, batch_first=True).to(dtype)
    x, y = torch.randn(batch, 6, 4, dtype=dtype), torch.randint(0, 3, (batch,))
    agrees(model, nn.CrossEntropyLoss(reduction=reduction), x, y)


OPTIONS = [
    dict(zip(("batch_first", "bidirectional", "num_layers", "bias", "given"), values, strict=True))
    for values in itertools.product(
        [True, False], [True, False], [1, 2], [True, False], [True, False]
    )
]


@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: "-".join(str(v) for v in o.values()))
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "tanh", "relu", "proj"])
def test_options(kind, options):
    torch.manual_seed(0)
    extra = {"tanh": {"nonlinearity": "tanh"}, "relu": {"nonlinearity": "relu"}}.get(kind, {})
    if kind == "proj":
        extra = {"proj_size": 3}
    layer = {"LSTM": nn.LSTM, "GRU": nn.GRU, "proj": nn.LSTM}.get(kind, nn.RNN)
    model = Reader(layer, **options, **extra).double()
    x, y = torch.randn(2, 3, 4, dtype=torch.float64), torch.tensor([0, 2])
    agrees(model, nn.CrossEntropyLoss(), x, y, paths=("fast",))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_unrolled_equals_the_fused_kernel(kind):
    torch.manual_seed(0)
    rnn = kind(4, 5, 2, bidirectional=True).double()
    x = torch.randn(6, 3, 4, dtype=torch.float64)
    ours, theirs = unrolled(rnn, Plain(), x), rnn(x)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])


def test_dropout_between_layers_is_applied_only_in_training():
    torch.manual_seed(0)
    model = Reader(nn.LSTM, num_layers=2, dropout=0.5, batch_first=True).double()
    x, y = torch.randn(3, 5, 4, dtype=torch.float64), torch.tensor([0, 2, 1])
    first, second = (
        clipped_sum(model, nn.CrossEntropyLoss(), x, y, 1.0, path="fast").flat() for _ in range(2)
    )
    assert not torch.equal(first, second)
    model.eval()
    agrees(model, nn.CrossEntropyLoss(), x, y)


def test_called_twice_and_partly_frozen():
    class Twice(Reader):
        def forward(self, x):
            return super().forward(x) + super().forward(x.flip(1) * 2)

    torch.manual_seed(0)
    for kind in (nn.LSTM, nn.GRU):
        model = Twice(kind, batch_first=True).double()
        x, y = torch.randn(3, 4, 4, dtype=torch.float64), torch.tensor([0, 2, 1])
        agrees(model, nn.CrossEntropyLoss(), x, y)
        model.rnn.weight_ih_l0.requires_grad_(False)
        agrees(model, nn.CrossEntropyLoss(), x, y)
        model.rnn.bias_hh_l0.requires_grad_(False)
        agrees(model, nn.CrossEntropyLoss(), x, y)


@pytest.mark.parametrize("path", ["auto", "fast", "reference"])
def test_packed_sequences_are_refused_with_advice(path):
    class Packed(Reader):
        def forward(self, x):
            lengths = torch.full((x.shape[0],), 3)
            _, (h, _) = self.rnn(pack_padded_sequence(x, lengths, batch_first=True))
            return self.head(h[-1])

    model = Packed(nn.LSTM, batch_first=True)
    with pytest.raises(ModelError, match=r"padded tensor|vmap"):
        clipped_sum(
            model, nn.CrossEntropyLoss(), torch.randn(2, 3, 4), torch.tensor([0, 1]), 1.0, path=path
        )
