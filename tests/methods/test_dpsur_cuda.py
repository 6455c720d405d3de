"""DPSUR on a device: candidates together, and how often the host waits."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.gradients import Flat

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

N = 4000


def started(**options):
    torch.manual_seed(0)
    inputs = torch.randn(N, 20)
    model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 2))
    return rt.run(
        model,
        (inputs, (inputs[:, 0] > 0).long()),
        method=rt.DPSUR(batch=200, noise=4.0, valid_batch=50, bound=0.01, **options),
        budget=rt.Budget(8, 1e-5),
        steps=12,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
        coins=rt.Coins.from_seed(2),
        device="cuda",
        private_diagnostics=True,
    )


def test_candidates_together_are_the_candidates_one_by_one():
    one, many = started(together=1), started(together=4)
    first, second = one.finish(), many.finish()
    assert one.run.diagnostics == many.run.diagnostics
    assert sum(line["trials"] for line in one.run.diagnostics) > 12
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("together", [1, 4])
def test_the_host_waits_for_sizes_and_for_the_accept_bit(together):
    training = started(together=together)
    releases = iter(training)
    next(releases)  # cuBLAS and the like wait once
    training.run.diagnostics.clear()
    with warnings.catch_warnings(record=True) as waits:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(8):
                next(releases)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    counted = [w for w in waits if "synchronizing" in str(w.message)]
    trials = sum(line["trials"] for line in training.run.diagnostics)
    groups = sum(-(-line["trials"] // together) for line in training.run.diagnostics)
    # one bit a trial; for each group of candidates, the sizes of two kinds of draws
    assert trials <= len(counted) <= trials + 4 * groups


def test_padding_counts_for_nothing():
    run = started().run
    run.begin_release()
    drawn = torch.arange(37, device="cuda")
    padded, mask = run._padded(drawn)
    assert len(padded) == 38
    assert mask is not None
    assert int(mask.sum()) == 37
    whole = run.clipped_sum(drawn, Flat(0.1))
    run.begin_release()
    (grouped,) = run.clipped_sums([drawn], Flat(0.1))
    run._padded = lambda indices: (indices, None)
    run.begin_release()
    bare = run.clipped_sum(drawn, Flat(0.1))
    for found in (whole, grouped):
        torch.testing.assert_close(found.flat, bare.flat, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(found.norms, bare.norms, rtol=1e-4, atol=1e-6)
        assert int(found.nonfinite) == 0
