from __future__ import annotations

import copy
import weakref
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from reticent.gradients import (
    Automatic,
    Flat,
    Normalised,
    PerLayer,
    RepeatedSum,
    clipped_sum,
    kernels,
)
from reticent.gradients.capturing import MOST_GRAPHS, Captured

CE = nn.CrossEntropyLoss()
STYLES = [Flat(0.1), Automatic(0.2, gamma=0.05), Normalised(0.3), PerLayer(0.2)]
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, cuda])]


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(96, 3),
    )


def batch(size, device, seed=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 2, 4, 4, generator=generator)
    return x.to(device), torch.randint(0, 3, (size,), generator=generator).to(device)


def same(a, b, tolerance=1e-5):
    for left, right in ((a.flat(), b.flat()), (a.norms, b.norms), (a.losses, b.losses)):
        torch.testing.assert_close(left, right, rtol=tolerance, atol=1e-6)
    assert a.sensitivity == b.sensitivity
    assert list(a.grads) == list(b.grads)
    assert int(a.nonfinite) == int(b.nonfinite)


@pytest.mark.parametrize("device", DEVICES)
def test_least_norms_come_with_each_call(device):
    model = network().to(device)
    repeated = RepeatedSum(model, CE, Normalised(0.3))
    for seed in (1, 2, 3):
        x, y = batch(9, device, seed)
        norms = clipped_sum(model, CE, x, y, 1.0).norms
        same(repeated(x, y), clipped_sum(model, CE, x, y, Normalised(0.3)))
        least = torch.where(torch.arange(9, device=device) % 2 == 0, 0.9 * norms, 1.1 * norms)
        same(
            repeated(x, y, least=least), clipped_sum(model, CE, x, y, Normalised(0.3), least=least)
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("style", STYLES, ids=lambda s: type(s).__name__)
def test_each_call_is_the_clipped_sum_of_its_batch(device, style):
    model = network().to(device)
    repeated = RepeatedSum(model, CE, style)
    kept = []
    for size, seed in ((7, 1), (7, 2), (12, 3), (7, 4), (1, 5), (0, 6), (12, 7)):
        x, y = batch(size, device, seed)
        mask = None if seed % 2 else torch.arange(size, device=device) < size - 2
        total = repeated(x, y, mask)
        wanted = clipped_sum(model, CE, x, y, style, mask=mask)
        same(total, wanted)
        kept.append((total, total.flat().clone(), total.norms.clone()))
    assert not repeated.reason
    for total, flat, norms in kept:  # results of earlier calls are not written over
        assert torch.equal(total.flat(), flat)
        assert torch.equal(total.norms, norms)


@pytest.mark.parametrize("device", DEVICES)
def test_bounds_may_change_and_so_may_weights_and_modes(device):
    model = network(dropout=0.5).to(device).eval()
    repeated = RepeatedSum(model, CE)
    x, y = batch(9, device)
    for bound in (1.0, 0.3, 1e-2, torch.inf):
        same(repeated(x, y, clip=bound), clipped_sum(model, CE, x, y, bound))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    for seed in (1, 2, 1):
        results = []
        for call in (repeated, lambda x, y: clipped_sum(model, CE, x, y, 1.0)):
            model.train()
            torch.manual_seed(seed)
            results.append(call(x, y))
            model.eval()
        same(*results)
    model[0].weight.requires_grad_(False)
    assert "0.weight" not in repeated(x, y).grads
    same(repeated(x, y), clipped_sum(model, CE, x, y, 1.0))
    model.double()
    same(repeated(x.double(), y), clipped_sum(model, CE, x.double(), y, 1.0), 1e-10)


@pytest.mark.parametrize("device", DEVICES)
def test_a_record_that_is_not_finite_is_left_out(device):
    model = network().to(device)
    repeated = RepeatedSum(model, CE, 0.1)
    x, y = batch(6, device)
    repeated(x, y)
    x[3] = torch.nan
    total = repeated(x, y)
    assert int(total.nonfinite) == 1
    rest = [0, 1, 2, 4, 5]
    wanted = clipped_sum(model, CE, x[rest], y[rest], 0.1)
    torch.testing.assert_close(total.flat(), wanted.flat(), rtol=1e-4, atol=1e-6)


class Tempered(nn.Module):
    """Its output depends on a number that a schedule may change."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.temperature = 1.0

    def forward(self, x):
        return self.linear(x) / self.temperature


@pytest.mark.parametrize("device", DEVICES)
def test_plain_numbers_of_a_module_may_change(device):
    torch.manual_seed(0)
    model = Tempered().to(device)
    repeated = RepeatedSum(model, CE)
    x, y = torch.randn(5, 4, device=device), torch.tensor([0, 1, 2, 0, 1], device=device)
    for temperature in (1.0, 2.0, 0.5, 1.0):
        model.temperature = temperature
        same(repeated(x, y), clipped_sum(model, CE, x, y, 1.0))


class Counting(nn.Module):
    """Scales by how often it was called."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.linear(x) * self.calls


class Asking(nn.Module):
    """Looks at a value on the way, which a graph cannot."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x) if float(self.linear.weight.sum()) < 1e9 else self.linear(-x)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [Counting, Asking])
def test_a_model_that_cannot_be_replayed_is_computed_each_time(device, kind):
    torch.manual_seed(0)
    model = kind().to(device)
    twin = copy.deepcopy(model)
    repeated = RepeatedSum(model, CE)
    torch.manual_seed(1)
    x, y = torch.randn(5, 4, device=device), torch.tensor([0, 1, 2, 0, 1], device=device)
    for _ in range(3):
        same(repeated(x, y), clipped_sum(twin, CE, x, y, 1.0))
    if device == "cuda":
        assert ("calls" if kind is Counting else "CUDA graph") in repeated.reason


@pytest.mark.parametrize("device", DEVICES)
def test_nested_inputs(device):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, left, right):
            return self.a(left) + self.b(right)

    torch.manual_seed(0)
    model = Two().to(device)
    repeated = RepeatedSum(model, CE, 0.2)
    left, right = torch.randn(5, 3, device=device), torch.randn(5, 4, device=device)
    y = torch.tensor([0, 1, 1, 0, 1], device=device)
    for inputs in ((left, right), {"left": left, "right": right}):
        same(repeated(inputs, y), clipped_sum(model, CE, inputs, y, 0.2))


@pytest.mark.cuda
@cuda
def test_parameters_that_move_are_followed():
    model = network().cuda()
    repeated = RepeatedSum(model, CE, 0.1)
    x, y = batch(6, "cuda")
    repeated(x, y)
    for parameter in model.parameters():
        parameter.data = parameter.data.clone() * 2
    same(repeated(x, y), clipped_sum(model, CE, x, y, 0.1))


@pytest.mark.cuda
@cuda
def test_graphs_make_room_for_new_ones():
    captured = Captured(lambda x: (x * 2,))
    for size in range(1, MOST_GRAPHS + 5):
        x = torch.arange(size, device="cuda")
        assert torch.equal(captured(x)[0], 2 * x)
    assert len(captured._graphs) == MOST_GRAPHS


@pytest.mark.cuda
@cuda
def test_autocast_is_part_of_what_is_recorded():
    model = network().cuda()
    repeated = RepeatedSum(model, CE, 0.1)
    x, y = batch(16, "cuda")
    plain = repeated(x, y)
    with torch.autocast("cuda", torch.bfloat16):
        half = repeated(x, y)
        same(half, clipped_sum(model, CE, x, y, 0.1), 1e-2)
    assert not torch.equal(plain.norms, half.norms)
    same(repeated(x, y), plain)
    assert kernels._triton() is not None


@pytest.mark.cuda
@cuda
def test_a_recording_that_fails_leaves_random_numbers_in_order(monkeypatch):
    model = network(dropout=0.5).cuda()
    x, y = batch(8, "cuda")
    good = RepeatedSum(model, CE)
    torch.manual_seed(3)
    first = good(x, y)
    # as if the host's question had not been noticed before the recording
    monkeypatch.setattr("reticent.gradients.capturing._never_waiting", nullcontext)
    bad = Captured(lambda x: (x * float(x.sum()),))
    assert torch.equal(bad(x)[0], x * float(x.sum()))
    assert "CUDA graph" in bad.reason
    torch.randn(3, device="cuda")
    for _ in range(2):
        torch.manual_seed(3)
        same(good(x, y), first)


def test_nothing_of_a_recording_that_failed_is_in_memory_when_the_function_is_called(monkeypatch):
    for name in ("get_rng_state", "set_rng_state", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    left = []

    def recording(tensors, device):
        activations = torch.zeros(3)
        left.append(weakref.ref(activations))
        raise torch.OutOfMemoryError("no memory for the rest")

    def function(x):
        seen.append([ref() for ref in left])
        return (x * 2,)

    class OnCuda:
        device, shape, dtype = torch.device("cuda"), (3,), torch.float32

        def __mul__(self, factor):
            return factor

    seen: list = []
    captured = Captured(function)
    monkeypatch.setattr(captured, "_capture", recording)
    assert captured(OnCuda()) == [2]
    assert seen == [[None]]
    assert "no memory" in captured.reason
    assert captured(OnCuda()) == [2]
    assert len(left) == 1  # not tried again
