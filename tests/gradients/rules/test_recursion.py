"""The hand-written recursion against torch's own layers, one example at a time."""

from __future__ import annotations

import itertools
import random
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from reticent.errors import ModelError
from reticent.gradients import clipped_sum
from reticent.gradients.rules import fused, recurrent, recursion, sequences
from reticent.gradients.rules.base import NoFastPathError
from reticent.gradients.rules.recurrent import Plain, stepwise

from ..oracle import agrees, flat_sum, gradients

CE = nn.CrossEntropyLoss()
KINDS = {
    "LSTM": (nn.LSTM, {}),
    "GRU": (nn.GRU, {}),
    "tanh": (nn.RNN, {"nonlinearity": "tanh"}),
    "relu": (nn.RNN, {"nonlinearity": "relu"}),
}
USES = ["outputs", "h", "c", "all"]


class Reader(nn.Module):
    """A recurrent layer whose first states come from a trained layer, over [B, T, width]."""

    def __init__(self, kind, width=3, units=4, *, given=True, use="all", **options):
        super().__init__()
        layer, extra = KINDS[kind]
        self.rnn = layer(width, units, **extra, **options)
        self.count = self.rnn.num_layers * (2 if self.rnn.bidirectional else 1)
        self.start = nn.Linear(width, 2 * self.count * units) if given else None
        self.head = nn.Linear(units * (2 if self.rnn.bidirectional else 1), 3)
        self.use = use

    def first(self, x):
        if self.start is None:
            return None
        states = self.start(x[:, 0]).view(len(x), 2 * self.count, -1).transpose(0, 1)
        h, c = states.chunk(2)
        return (h, c) if isinstance(self.rnn, nn.LSTM) else h

    def forward(self, x):
        seq = x if self.rnn.batch_first else x.transpose(0, 1)
        output, last = self.rnn(seq, self.first(x))
        output = output if self.rnn.batch_first else output.transpose(0, 1)
        h, c = last if isinstance(last, tuple) else (last, last)
        weights = torch.arange(1.0, output.shape[1] + 1, dtype=x.dtype, device=x.device)
        scores = {
            "outputs": lambda: self.head((output * weights.view(-1, 1)).mean(1)),
            "h": lambda: h.transpose(0, 1).flatten(1)[:, :3],
            "c": lambda: c.transpose(0, 1).flatten(1)[:, -3:],
        }
        chosen = scores if self.use == "all" else [self.use]
        return sum(scores[name]() for name in chosen)


def batch(size=3, length=5, width=3, dtype=torch.float64, device="cpu"):
    x = torch.randn(size, length, width, dtype=dtype)
    return x.to(device), torch.randint(0, 3, (size,)).to(device)


def emulated_lstm(gates, hidden, c):
    """What CUDA's kernel computes, by its signature."""
    i, f, g, o = (gates + hidden).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    after = f * c + i * g
    return o * after.tanh(), after, torch.cat([i, f, g, o], 1)


def emulated_lstm_backward(dh, dc, before, after, work, has_bias):
    assert not has_bias
    i, f, g, o = work.chunk(4, 1)
    t = after.tanh()
    dc = dc + dh * o * (1 - t * t)
    gates = [dc * g * i * (1 - i), dc * before * f * (1 - f), dc * i * (1 - g * g)]
    return torch.cat([*gates, dh * t * o * (1 - o)], 1), dc * f, None


def emulated_gru(own, hidden, h):
    (a, b, c), (d, e, q) = own.chunk(3, 1), hidden.chunk(3, 1)
    r, z = (a + d).sigmoid(), (b + e).sigmoid()
    n = (c + r * q).tanh()
    return n + z * (h - n), torch.cat([r, z, n, h, q], 1)


def emulated_gru_backward(dh, work, has_bias):
    assert not has_bias
    r, z, n, h, q = work.chunk(5, 1)
    dn = dh * (1 - z) * (1 - n * n)
    dr, dz = dn * q * r * (1 - r), dh * (h - n) * z * (1 - z)
    return torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1), dh * z, None, None


@pytest.fixture(params=["plain", "short blocks", "single steps", "products before", "whole cells"])
def way(request, monkeypatch):
    """Every way to run the recursion; kernels for whole cells are emulated."""
    if request.param == "short blocks":
        monkeypatch.setattr(sequences, "CACHED", 4 * 150)
    if request.param == "single steps":
        monkeypatch.setattr(sequences, "CACHED", 0)
    if request.param == "products before":  # as on other devices
        monkeypatch.setattr(sequences, "CACHED", 4 * 150)
        for cell in recursion.CELLS.values():
            monkeypatch.setattr(cell, "by_step", False)
    if request.param == "whole cells":
        kernels = SimpleNamespace(
            _thnn_fused_lstm_cell=emulated_lstm,
            _thnn_fused_lstm_cell_backward_impl=emulated_lstm_backward,
            _thnn_fused_gru_cell=emulated_gru,
            _thnn_fused_gru_cell_backward=emulated_gru_backward,
        )
        monkeypatch.setattr(fused, "aten", kernels)
        cells = recursion.CELLS | recursion.FUSED
        monkeypatch.setattr(recurrent, "cell_for", lambda mode, device: cells[mode])
    return request.param


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_way_agrees_with_the_oracle(way, kind, bidirectional):
    if way == "whole cells" and kind in ("tanh", "relu"):
        pytest.skip("there is no such kernel")
    torch.manual_seed(0)
    for bias, length in itertools.product([True, False], [1, 2, 5]):
        model = Reader(kind, num_layers=2, bidirectional=bidirectional, bias=bias).double()
        agrees(model, CE, *batch(3, length), paths=("fast",))


@pytest.mark.parametrize("seed", range(40))
def test_random_shapes_and_options(seed, monkeypatch):
    pick = random.Random(seed)
    torch.manual_seed(seed)
    monkeypatch.setattr(sequences, "CACHED", pick.choice([0, 400, 4000, 2**20]))
    width, units, length = pick.randint(1, 6), pick.randint(3, 7), pick.randint(1, 9)
    model = Reader(
        pick.choice(list(KINDS)),
        width,
        units,
        given=pick.random() < 0.5,
        use=pick.choice(USES),
        num_layers=pick.randint(1, 3),
        bidirectional=pick.random() < 0.5,
        bias=pick.random() < 0.7,
        batch_first=pick.random() < 0.5,
    ).double()
    agrees(model, CE, *batch(pick.randint(1, 6), length, width), paths=("fast",))


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_part_of_the_result_is_used(kind, use):
    torch.manual_seed(0)
    model = Reader(kind, use=use, bidirectional=True, batch_first=True).double()
    agrees(model, CE, *batch())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_results_are_those_of_torch(kind, dtype):
    torch.manual_seed(0)
    layer, extra = KINDS[kind]
    rnn = layer(4, 5, 2, bidirectional=True, **extra).to(dtype).requires_grad_(False)
    x = torch.randn(6, 3, 4, dtype=dtype)
    ours, theirs = stepwise(rnn, Plain(), x), rnn(x)
    torch.testing.assert_close(ours[0], theirs[0])
    torch.testing.assert_close(ours[1], theirs[1])


@pytest.mark.parametrize("kind", KINDS)
def test_masked_padding_and_microbatches(kind):
    torch.manual_seed(0)
    model = Reader(kind, bidirectional=True, batch_first=True).double()
    x, y = batch(7)
    rows = gradients(model, CE, x, y)
    expected = flat_sum(rows, 0.1)
    for size in (None, 1, 3):
        found = clipped_sum(model, CE, x, y, 0.1, path="fast", microbatch=size)
        for name, value in expected.items():
            torch.testing.assert_close(found.grads[name], value, rtol=1e-9, atol=1e-12)
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1])
    few = flat_sum({n: rows[n][mask == 1] for n in rows}, 0.1)
    x[1] = torch.nan
    found = clipped_sum(model, CE, x, y, 0.1, path="fast", mask=mask)
    for name, value in few.items():
        torch.testing.assert_close(found.grads[name], value, rtol=1e-9, atol=1e-12)
    assert int(found.nonfinite) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_that_is_not_finite_is_left_out_alone(way, kind):
    torch.manual_seed(0)
    model = Reader(kind, bidirectional=True, batch_first=True).double()
    if way == "whole cells" and kind in ("tanh", "relu"):
        pytest.skip("there is no such kernel")
    x, y = batch(4)
    expected = flat_sum(gradients(model, CE, x[[0, 1, 3]], y[[0, 1, 3]]), 0.1)
    for bad in (torch.nan, torch.inf):
        x[2, 1] = bad
        found = clipped_sum(model, CE, x, y, 0.1, path="fast")
        assert int(found.nonfinite) <= 1  # tanh and sigmoid may make infinity finite
        if int(found.nonfinite):
            for name, value in expected.items():
                torch.testing.assert_close(found.grads[name], value, rtol=1e-9, atol=1e-12)
        else:
            agrees(model, CE, x, y, bound=0.1, paths=("fast",))


@pytest.mark.parametrize("kind", KINDS)
def test_used_twice_and_tied(kind):
    class Siamese(Reader):
        def __init__(self, kind, **options):
            super().__init__(kind, **options)
            layer, extra = KINDS[kind]
            self.other = layer(3, 4, batch_first=True, **extra)
            self.other.weight_hh_l0 = self.rnn.weight_hh_l0

        def forward(self, x):
            output = self.other(x)[0].mean((1, 2)).unsqueeze(1)
            return super().forward(x) + super().forward(x.flip(1) * 2) + output

    torch.manual_seed(0)
    model = Siamese(kind, batch_first=True).double()
    agrees(model, CE, *batch())
    model.rnn.weight_ih_l0.requires_grad_(False)
    agrees(model, CE, *batch())


def test_dropout_between_layers_is_the_same_in_both_passes():
    torch.manual_seed(0)
    model = Reader("LSTM", num_layers=2, dropout=0.5, batch_first=True, given=False).double()
    x, y = batch(1, 6)
    torch.manual_seed(5)
    found = clipped_sum(model, CE, x, y, 1e9, path="fast")
    expected = torch.autograd.grad(CE(by_hand(model, x, seed=5), y), list(model.parameters()))
    for value, name in zip(expected, found.grads, strict=True):
        torch.testing.assert_close(found.grads[name], value, rtol=1e-9, atol=1e-12)


def by_hand(model, x, seed):
    """The same model with its layers as separate modules and dropout in between."""
    rnn, layers = model.rnn, []
    for number, width in enumerate((3, 4)):
        one = nn.LSTM(width, 4, batch_first=True).double()
        for name in list(one._parameters):
            del one._parameters[name]
            setattr(one, name, getattr(rnn, name.replace("l0", f"l{number}")))
        one._flat_weights = [getattr(one, name) for name in one._flat_weights_names]
        layers.append(one)
    torch.manual_seed(seed)
    middle, (h1, c1) = layers[0](x)
    output, (h2, c2) = layers[1](nn.functional.dropout(middle, 0.5, training=True))
    weights = torch.arange(1.0, x.shape[1] + 1, dtype=x.dtype).view(-1, 1)
    h, c = torch.cat([h1, h2]), torch.cat([c1, c2])
    ends = h.transpose(0, 1).flatten(1)[:, :3] + c.transpose(0, 1).flatten(1)[:, -3:]
    return model.head((output * weights).mean(1)) + ends


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_may_be_written_to(kind):
    class Writes(Reader):
        def forward(self, x):
            output, _ = self.rnn(x)
            return self.head(output.mul_(2).relu_().mean(1))

    torch.manual_seed(0)
    model = Writes(kind, batch_first=True, given=False).double()
    x, y = batch()
    found = clipped_sum(model, CE, x, y, 1e9, path="fast")

    class Reads(Writes):
        def forward(self, x):
            output, _ = self.rnn(x)
            return self.head((output * 2).relu().mean(1))

    model.__class__ = Reads
    expected = flat_sum(gradients(model, CE, x, y), 1e9)
    for name, value in expected.items():
        torch.testing.assert_close(found.grads[name], value, rtol=1e-9, atol=1e-12)


def test_inside_a_checkpoint():
    class Checkpointed(Reader):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    torch.manual_seed(0)
    for kind in KINDS:
        model = Checkpointed(kind, bidirectional=True).double()
        agrees(model, CE, *batch(), paths=("fast",))


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_and_half_precision(kind):
    torch.manual_seed(0)
    model = Reader(kind, bidirectional=True, batch_first=True)
    x, y = batch(dtype=torch.float32)
    exact = clipped_sum(model, CE, x, y, 0.1, path="fast")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = clipped_sum(model, CE, x, y, 0.1, path="fast")
    torch.testing.assert_close(half.norms, exact.norms, rtol=0.1, atol=1e-2)
    whole = clipped_sum(model.bfloat16(), CE, x.bfloat16(), y, 0.1, path="fast")
    torch.testing.assert_close(whole.norms, exact.norms, rtol=0.2, atol=2e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_can_be_walked_twice_but_not_differentiated(kind):
    torch.manual_seed(0)
    layer, extra = KINDS[kind]
    rnn = layer(3, 4, **extra).double().requires_grad_(False)
    x = torch.randn(5, 2, 3, dtype=torch.float64, requires_grad=True)
    output, _ = stepwise(rnn, Plain(), x)
    (first,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    (second,) = torch.autograd.grad(output.sum(), x, retain_graph=True)
    assert torch.equal(first, second)
    with pytest.raises(NoFastPathError, match="differentiated"):
        torch.autograd.grad(output.sum(), x, create_graph=True)


def test_a_gradient_penalty_is_refused_rather_than_ignored():
    class Penalised(Reader):
        def forward(self, x):
            x = x.clone().requires_grad_()
            output, _ = self.rnn(x)
            slope = torch.autograd.grad(output.sum(), x, create_graph=True)[0]
            return self.head(output.mean(1)) + slope.square().sum((1, 2)).unsqueeze(1)

    model = Penalised("LSTM", given=False, batch_first=True).double()
    with pytest.raises(ModelError, match="itself differentiated"):
        clipped_sum(model, CE, *batch(), 1.0, path="fast")


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize("name", ["weight_hh_l0", "weight_ih_l0"])
def test_weights_computed_from_others_are_not_dropped(name):
    torch.manual_seed(0)
    model = Reader("LSTM", given=False).double()
    nn.utils.weight_norm(model.rnn, name)
    x, y = batch()
    with pytest.raises(ModelError, match="fast path"):
        clipped_sum(model, CE, x, y, 1.0, path="fast")


def test_odd_shapes_are_refused():
    rnn = nn.GRU(3, 4, batch_first=True)
    with pytest.raises(ModelError, match="h_0 of shape"):
        stepwise(rnn, Plain(), torch.randn(2, 5, 3), torch.zeros(1, 1, 4))
    with pytest.raises(ModelError, match="length 0"):
        stepwise(rnn, Plain(), torch.randn(2, 0, 3))
    with pytest.raises(ModelError, match="needs a batch"):
        stepwise(rnn, Plain(), torch.randn(5, 3))
