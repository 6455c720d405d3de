"""Random models and batches: in every precision, whole or in pieces, the fast path is right.

What is right comes from plain autograd in double precision, one example at a time. There the fast
path must agree to 1e-9. In a lower precision some models amplify rounding (a norm over two values
nearly cancels the gradient behind it), so how far off is too far is measured: plain autograd, one
example at a time in that precision, is off as well.

The draws are fixed (`derandomize`), so that a failure can be had again.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from copy import deepcopy

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from reticent.gradients import Automatic, Flat, Normalised, PerLayer, RepeatedSum, clipped_sum
from reticent.gradients.clipping import slack_for
from reticent.gradients.rounding import precision

from .oracle import gradients, norms_of

CE = nn.CrossEntropyLoss()
CLASSES = 3


def fixed(device):
    """Settings of the draws; fewer where every small operation is a launch."""
    return settings(
        max_examples=10 if device == "cuda" else 25,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


cuda = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
PRECISIONS = [
    ("cpu", "float64"),
    ("cpu", "float32"),
    ("cpu", "bf16"),
    pytest.param(("cuda", "float64"), marks=cuda),
    pytest.param(("cuda", "float32"), marks=cuda),
    pytest.param(("cuda", "tf32"), marks=cuda),
    pytest.param(("cuda", "bf16"), marks=cuda),
]
# One rounding, relative.
UNIT = {"float32": 2**-24, "tf32": 2**-11, "bf16": 2**-8}
# An example's gradient may be off by so many times the error of autograd in the same precision, and
# by so many roundings of its norm. Where one ill-conditioned sum decides, errors are like normal
# numbers, and one may be small by chance: the largest of WITNESSES counts. The chance that another
# exceeds this 4, 8 or 16 times is 1e-4, 9e-7 or 4e-9; few draws are of that kind.
TIMES = {"float32": 16, "tf32": 8, "bf16": 4}
ROUNDINGS = {"float32": 16, "tf32": 16, "bf16": 8}
WITNESSES = 8


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
        if math.prod(left) > 1 and draw(st.booleans()):
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
        # normalised, a single number is constant: what goes back through it is nothing but rounding
        norms = ["norm", "encoder"] if width > 1 else []
        kind = draw(st.sampled_from(["linear", "lstm", "gru", "rnn", *norms]))
        out = draw(st.integers(1, 5))
        if kind == "linear":
            layers += [nn.Linear(width, out, bias=draw(st.booleans())), nn.Tanh()]
            width = out
        elif kind == "norm":
            layers.append(nn.LayerNorm(width))
        elif kind == "encoder":
            # no kinks: what a rounding switches on or off is not a small error
            options = {"dropout": 0.0, "activation": "gelu", "batch_first": True}
            layers.append(nn.TransformerEncoderLayer(width, 1, out, **options))
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


def on(device, dtype, problem):
    """A copy of the model, inputs and targets, there and of this type."""
    model, inputs, targets, *_ = problem
    inputs = inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)
    return deepcopy(model).to(device, dtype), inputs, targets.to(device)


def inside(name, device):
    return nullcontext() if name == "float64" else precision(name, torch.device(device))


def factors_of(rows, style, slack):
    """{name: factors [B]} by the formulas, in double precision."""
    names = {name: name.rpartition(".")[0] if style.grouped else "" for name in rows}
    groups = set(names.values())
    bound = style.sensitivity / math.sqrt(len(groups)) * (1 - slack)
    found = {}
    for group in groups:
        norms = norms_of({name: rows[name] for name in rows if names[name] == group})
        if isinstance(style, Automatic):
            found[group] = bound / (norms + style.gamma)
        elif isinstance(style, Normalised):
            found[group] = torch.where(norms > 0, bound / norms, 0.0)
        else:
            found[group] = (bound / norms).clamp(max=1.0)
    return {name: found[group] for name, group in names.items()}


def allowed_by(truth, model, batch, name, device):
    """How far off each example's gradient may be in this precision, [B]."""
    norms = norms_of(truth)
    if name == "float64":
        return 1e-9 * norms
    errors = torch.zeros_like(norms)
    generator = torch.Generator().manual_seed(0)
    for moved in range(WITNESSES):
        witness = deepcopy(model)
        for parameter in witness.parameters() if moved else ():
            by = UNIT[name] * (2 * torch.rand(parameter.shape, generator=generator) - 1)
            parameter.data *= 1 + by.to(device)
        with inside(name, device):
            rows = gradients(witness, CE, *batch)
        off = norms_of({n: rows[n].double() - g for n, g in truth.items()})
        errors = torch.maximum(errors, off)
    # Norms from Gram matrices err to the safe side, by 4 units in the last place of the terms they
    # are made of. These exceed the gradient as far as its rounding is out of proportion.
    terms = 4 * errors / UNIT[name]
    safe = (norms.square() + 4 * 2**-23 * terms.square()).sqrt() - norms
    return TIMES[name] * errors + ROUNDINGS[name] * UNIT[name] * norms + safe


def right(total, truth, allowed, counted, style, slack):
    """Norms and sum are no further off than is allowed.

    To first order an error e of a gradient moves the clipped one by at most its factor times e:
    across the gradient by just that, along it by less (0 where the length is cut to the bound).
    """
    norms, factors = norms_of(truth), factors_of(truth, style, slack)
    allowed = allowed * counted
    assert bool(((total.norms.double() - norms * counted).abs() <= allowed).all())
    wanted = [(factors[n] * counted) @ g.double().flatten(1) for n, g in truth.items()]
    off = float((total.flat().double() - torch.cat(wanted)).norm())
    assert off <= float((torch.stack(list(factors.values())).amax(0) * allowed).sum())
    assert total.sensitivity == style.sensitivity
    most = style.sensitivity * int(counted.sum())
    assert float(total.flat().double().norm()) <= most * (1 + 1e-12)


@pytest.mark.parametrize("kind", PRECISIONS, ids="-".join)
def test_the_fast_path_is_right_whole_and_in_pieces(kind):
    device, name = kind

    @fixed(device)
    @given(problems())
    def holds(problem):
        *_, mask, style, piece = problem
        mask = None if mask is None else mask.to(device)
        model, *batch = on(device, torch.float64, problem)
        truth = gradients(model, CE, *batch)
        counted = torch.ones_like(batch[1], dtype=torch.bool) if mask is None else mask
        for each in dict.fromkeys(("float64", name)):  # the formulas, then the rounding
            dtype = torch.float64 if each == "float64" else torch.float32
            model, *batch = on(device, dtype, problem)
            case = (model, CE, *batch, style)
            with inside(each, device):
                slack = slack_for(dtype, torch.device(device))
                totals = [
                    clipped_sum(*case, path="fast", mask=mask),
                    clipped_sum(*case, path="fast", mask=mask, microbatch=piece),
                    RepeatedSum(model, CE, style, path="fast")(*batch, mask),
                ]
                if each == "float64":
                    totals.append(clipped_sum(*case, path="reference", mask=mask))
            allowed = allowed_by(truth, model, batch, each, device)
            for total in totals:
                right(total, truth, allowed, counted, style, slack)

    holds()


@pytest.mark.parametrize("kind", PRECISIONS, ids="-".join)
def test_no_example_alone_exceeds_the_bound(kind):
    device, name = kind

    @fixed(device)
    @given(problems())
    def holds(problem):
        style = problem[4]
        dtype = torch.float64 if name == "float64" else torch.float32
        model, inputs, targets = on(device, dtype, problem)
        with inside(name, device):
            for i in range(len(targets)):
                one = clipped_sum(model, CE, inputs[i : i + 1], targets[i : i + 1], style)
                assert float(one.flat().double().norm()) <= style.sensitivity

    holds()
