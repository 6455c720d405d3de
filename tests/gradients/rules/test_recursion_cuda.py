from __future__ import annotations

import itertools

import pytest
import torch

from reticent.gradients import clipped_sum
from reticent.gradients.rules import recurrent, recursion
from reticent.gradients.rules.recurrent import Plain, stepwise

from ..oracle import agrees
from .test_recursion import CE, KINDS, Reader, batch

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_agrees_with_the_oracle(kind, bidirectional):
    torch.manual_seed(0)
    for bias, length in itertools.product([True, False], [1, 5]):
        model = Reader(kind, num_layers=2, bidirectional=bidirectional, bias=bias)
        agrees(model.double().cuda(), CE, *batch(4, length, device="cuda"), paths=("fast",))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_whole_cells_equal_plain_operations(kind, monkeypatch):
    torch.manual_seed(0)
    model, (x, y) = Reader(kind, bidirectional=True).double().cuda(), batch(device="cuda")
    fused = clipped_sum(model, CE, x, y, 0.1, path="fast").flat()
    monkeypatch.setattr(recurrent, "cell_for", lambda mode, device: recursion.CELLS[mode])
    plain = clipped_sum(model, CE, x, y, 0.1, path="fast").flat()
    torch.testing.assert_close(fused, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_by_autocast(kind):
    torch.manual_seed(0)
    model = Reader(kind, bidirectional=True).cuda()
    x, y = batch(dtype=torch.float32, device="cuda")
    exact = clipped_sum(model, CE, x, y, 0.1, path="fast")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        half = clipped_sum(model, CE, x, y, 0.1, path="fast")
    torch.testing.assert_close(half.norms, exact.norms, rtol=0.1, atol=1e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_takes_few_kernels_and_never_waits(kind):
    model = Reader(kind, bidirectional=True, batch_first=True, use="outputs").cuda()
    count = {}
    for length in (10, 20):
        # 7 divides neither length: where a length could be the batch, one example is run again
        x, y = batch(7, length, dtype=torch.float32, device="cuda")
        clipped_sum(model, CE, x, y, 0.1, path="fast")
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as p:
                clipped_sum(model, CE, x, y, 0.1, path="fast")
        finally:
            torch.cuda.set_sync_debug_mode("default")
        count[length] = sum(e.count for e in p.key_averages() if e.self_device_time_total > 0)
    assert count[20] - count[10] <= 10 * 6, count


@pytest.mark.parametrize("kind", KINDS)
def test_can_be_captured_in_a_graph(kind):
    torch.manual_seed(0)
    layer, extra = KINDS[kind]
    rnn = layer(3, 4, bidirectional=True, **extra).cuda().requires_grad_(False)
    x = torch.randn(6, 2, 3, device="cuda", requires_grad=True)

    def step():
        return torch.autograd.grad(stepwise(rnn, Plain(), x)[0].square().sum(), x)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    with torch.no_grad():
        x.copy_(torch.randn(6, 2, 3))
    graph.replay()
    torch.testing.assert_close(found, step())
