"""Random models and batches: the fast path is the reference in every precision, whole or not.

The draws are fixed (`derandomize`), so that a failure can be had again.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import prod

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from reticent.gradients import Automatic, Flat, Normalised, PerLayer, RepeatedSum, clipped_sum
from reticent.gradients.rounding import precision

CE = nn.CrossEntropyLoss()
CLASSES = 3
fixed = settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PRECISIONS = [
    ("cpu", "float64", 1e-9),
    ("cpu", "float32", 2e-4),
    ("cpu", "bf16", 0.1),
    pytest.param(("cuda", "float64", 1e-9), marks=cuda),
    pytest.param(("cuda", "float32", 5e-4), marks=cuda),
    pytest.param(("cuda", "tf32", 2e-2), marks=cuda),
    pytest.param(("cuda", "bf16", 0.1), marks=cuda),
]


class Pooled(nn.Module):
    """Layers one after the other, then the mean over positions and a linear head."""

    def __init__(self, layers, width, last):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.head = nn.Linear(width, CLASSES)
        self.last = last  # whether channels are the last dimension

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            if isinstance(x, tuple):
                x = x[0]
        return self.head(x.flatten(1, -2).mean(1) if self.last else x.flatten(2).mean(2))


@st.composite
def convolutional(draw):
    """(model, shape of one example's input)."""
    dims = draw(st.sampled_from([1, 2, 2, 3]))
    sides = [draw(st.integers(3, 7)) for _ in range(dims)]
    width = start = draw(st.sampled_from([1, 2, 4]))
    layers: list[nn.Module] = []
    left = list(sides)
    for _ in range(draw(st.integers(1, 3))):
        groups = draw(st.sampled_from([1, 1, width]))
        out = draw(st.integers(1, 4)) * groups
        kernel = [draw(st.integers(1, min(3, side))) for side in left]
        stride = [draw(st.integers(1, 2)) for _ in left]
        padding = [draw(st.integers(0, k // 2)) for k in kernel]
        mode = draw(st.sampled_from(["zeros", "zeros", "circular", "replicate"]))
        kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[dims - 1]
        bias = draw(st.booleans())
        layers.append(
            kind(
                *(width, out, tuple(kernel), tuple(stride), tuple(padding)),
                **{"groups": groups, "bias": bias, "padding_mode": mode},
            )
        )
        left = [
            (n + 2 * p - k) // s + 1
            for n, k, s, p in zip(left, kernel, stride, padding, strict=True)
        ]
        width = out
        if prod(left) > 1 and draw(st.booleans()):
            layers.append(nn.GroupNorm(draw(st.sampled_from([1, width])), width))
        layers.append(draw(st.sampled_from([nn.Tanh(), nn.Softplus()])))
    return Pooled(layers, width, last=False), (start, *sides)


@st.composite
def sequential(draw):
    """(model, shape of one example's input), over positions."""
    length, width = draw(st.integers(1, 9)), draw(st.integers(1, 6))
    tokens = draw(st.booleans())
    layers: list[nn.Module] = [nn.Embedding(7, width)] if tokens else []
    shape = (length,) if tokens else (length, width)
    for _ in range(draw(st.integers(1, 2))):
        kind = draw(st.sampled_from(["linear", "norm", "lstm", "gru", "rnn", "encoder"]))
        out = draw(st.integers(1, 5))
        if kind == "linear":
            layers += [nn.Linear(width, out, bias=draw(st.booleans())), nn.Tanh()]
            width = out
        elif kind == "norm":
            layers.append(nn.LayerNorm(width))
        elif kind == "encoder":
            layers.append(nn.TransformerEncoderLayer(width, 1, out, dropout=0.0, batch_first=True))
        else:
            both = draw(st.booleans())
            rnn = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[kind]
            layers.append(rnn(width, out, batch_first=True, bidirectional=both))
            width = 2 * out if both else out
    return Pooled(layers, width, last=True), shape


@st.composite
def problems(draw):
    """A model, a batch, a mask or None, a clipping style and a size of pieces."""
    model, shape = draw(st.one_of(convolutional(), sequential()))
    seed = draw(st.integers(0, 2**16))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    size = draw(st.integers(1, 8))
    if isinstance(model.layers[0], nn.Embedding):
        inputs = torch.randint(0, 7, (size, *shape), generator=generator)
    else:
        inputs = torch.randn(size, *shape, generator=generator)
    targets = torch.randint(0, CLASSES, (size,), generator=generator)
    mask = torch.rand(size, generator=generator) < 0.7 if draw(st.booleans()) else None
    bound = draw(st.sampled_from([1e-3, 0.1, 1.0, 100.0]))
    style = draw(st.sampled_from([Flat, Automatic, Normalised, PerLayer]))(bound)
    return model, inputs, targets, mask, style, draw(st.integers(1, size))


@pytest.mark.parametrize("kind", PRECISIONS, ids=lambda kind: "-".join(map(str, kind[:2])))
def test_the_fast_path_is_the_reference_whole_and_in_pieces(kind):
    device, name, tolerance = kind

    @fixed
    @given(problems())
    def holds(problem):
        model, inputs, targets, mask, style, piece = problem
        dtype = torch.float64 if name == "float64" else torch.float32
        model = model.to(device, dtype)
        inputs = inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)
        targets = targets.to(device)
        mask = None if mask is None else mask.to(device)
        batch = (model, CE, inputs, targets, style)
        chosen = nullcontext() if name == "float64" else precision(name, torch.device(device))
        with chosen:
            fast = clipped_sum(*batch, path="fast", mask=mask)
            pieces = clipped_sum(*batch, path="fast", mask=mask, microbatch=piece)
            repeated = RepeatedSum(model, CE, style, path="fast")(inputs, targets, mask)
        # the head room below the bound goes with the precision
        same = name if name in ("float32", "tf32") else None
        with precision(same, torch.device(device)):
            wanted = clipped_sum(*batch, path="reference", mask=mask)
        assert wanted.path == "reference"
        counted = len(targets) if mask is None else int(mask.sum())
        # what was added up: each example's part has at most this size
        scale = style.sensitivity * max(counted, 1)
        for total in (fast, pieces, repeated):
            assert total.sensitivity == wanted.sensitivity
            error = (total.flat().double() - wanted.flat().double()).norm()
            assert float(error) <= tolerance * scale
            assert float(total.flat().double().norm()) <= scale * (1 + 1e-12)
            off = (total.norms.double() - wanted.norms.double()).abs().max()
            assert float(off) <= tolerance * max(float(wanted.norms.max()), 1e-6)

    holds()


@pytest.mark.parametrize("kind", PRECISIONS, ids=lambda kind: "-".join(map(str, kind[:2])))
def test_no_example_alone_exceeds_the_bound(kind):
    device, name, _ = kind

    @fixed
    @given(problems())
    def holds(problem):
        model, inputs, targets, _, style, _ = problem
        dtype = torch.float64 if name == "float64" else torch.float32
        model = model.to(device, dtype)
        inputs = inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)
        targets = targets.to(device)
        with nullcontext() if name == "float64" else precision(name, torch.device(device)):
            for i in range(len(targets)):
                one = clipped_sum(model, CE, inputs[i : i + 1], targets[i : i + 1], style)
                assert float(one.flat().double().norm()) <= style.sensitivity

    holds()
