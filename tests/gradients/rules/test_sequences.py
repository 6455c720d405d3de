"""Memory in the order of time, against the sequences it stands for."""

from __future__ import annotations

import pytest
import torch

from reticent.gradients.rules import sequences
from reticent.gradients.rules.leases import Lease

LIKE = torch.empty(0)


def stepped(parts):
    """[B, T, G] of each direction as [T, D, B, G], the second flipped."""
    turned = [part.flip(1) if d else part for d, part in enumerate(parts)]
    return torch.stack([part.transpose(0, 1) for part in turned], 1)


@pytest.fixture(params=[0, 4 * 50, 2**20])
def cached(request, monkeypatch):
    monkeypatch.setattr(sequences, "CACHED", request.param)


@pytest.mark.parametrize("lease", [None, Lease()])
def test_a_step_is_contiguous_and_steps_are_no_power_of_two_apart(lease):
    found = sequences.memory(LIKE, lease, 5, 2, 8, 16)
    assert found.shape == (5, 2, 8, 16)
    assert all(step.is_contiguous() for step in found.unbind())
    assert found.stride(0) == 2 * 8 * 16 + 16
    found.copy_(torch.arange(found.numel()).view_as(found))  # no two entries share a place
    assert torch.equal(found.flatten(), torch.arange(found.numel(), dtype=found.dtype))


@pytest.mark.parametrize("directions", [1, 2])
def test_there_and_back(cached, directions):
    torch.manual_seed(0)
    parts = [torch.randn(3, 7, 5) for _ in range(directions)]
    bias = torch.randn(directions, 5)
    whole = stepped(parts)
    assert torch.equal(sequences.filled(parts), whole)
    torch.testing.assert_close(sequences.filled(parts, bias), whole + bias[:, None])
    assert all(map(torch.equal, sequences.given(whole), parts))
    assert torch.equal(sequences.together(whole), torch.cat(parts, 2))
    torch.testing.assert_close(sequences.added(whole), torch.stack(parts).sum(0))
    assert sequences.added(whole).is_contiguous()
    seen = sequences.views(whole)
    assert all(map(torch.equal, seen, [p.flip(1) if d else p for d, p in enumerate(parts)]))
    assert all(view.data_ptr() == whole[:, d].data_ptr() for d, view in enumerate(seen))


@pytest.mark.parametrize("ones", [True, False])
@pytest.mark.parametrize("directions", [1, 2])
def test_rows_of_states_and_inputs(directions, ones):
    torch.manual_seed(0)
    first, x = torch.randn(directions, 3, 4), torch.randn(3, 6, 2)
    rows = sequences.with_inputs(first, x, ones=ones)
    assert rows.shape == (7, directions, 3, 4 + 2 + ones)
    assert torch.equal(rows[0, ..., :4], first)
    assert torch.equal(rows[:-1, ..., 4:6], stepped([x] * directions))
    assert bool((rows[:-1, ..., 6:] == 1).all())
