"""Ordinary training: every record once an epoch, resumable, and without any promise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.training.run import Run

from .problem import INPUTS, TARGETS, N, network, sgd, started, weights


def run(batch=50, **changes):
    return started(rt.SGD(batch), **{"budget": None, "steps": 5, **changes})


@pytest.fixture
def drawn(monkeypatch):
    """The batches whose gradients are taken, in order."""
    seen = []
    inner = Run.batch_gradient

    def spy(run, indices, stream="model"):
        seen.append(indices.clone())
        return inner(run, indices, stream)

    monkeypatch.setattr(Run, "batch_gradient", spy)
    return seen


@pytest.mark.parametrize(("batch", "parts"), [(50, 2), (30, 4), (17, 7), (N, 1), (1, N)])
def test_every_record_is_used_once_an_epoch(drawn, batch, parts):
    run(batch, steps=2 * parts).finish()
    epochs = torch.cat(drawn[:parts]), torch.cat(drawn[parts:])
    for order in epochs:
        assert order.sort()[0].tolist() == list(range(N))
    assert not torch.equal(*epochs)
    sizes = {len(one) for one in drawn}
    assert max(sizes) - min(sizes) <= 1


def test_a_step_is_the_gradient_of_the_mean_loss(drawn):
    result = run(batch=40, steps=7, microbatch=9).finish()
    model = network()
    optimizer = sgd(model.parameters())
    for some in drawn:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(INPUTS[some]), TARGETS[some]).backward()
        optimizer.step()
    assert torch.allclose(weights(result.model), weights(model), atol=1e-6)


@pytest.mark.parametrize("killed", [2, 3, 4])
def test_a_resumed_run_goes_on_in_the_middle_of_an_epoch(tmp_path, killed):
    whole = run(batch=40, steps=8).finish()
    first = run(batch=40, steps=8, folder=tmp_path, checkpoint_every=0)
    for release in first:
        if release.step == killed:
            break
    second = run(
        batch=40, steps=8, folder=tmp_path, resume=True, coins=rt.Coins.from_seed(99)
    ).finish()
    assert torch.equal(weights(whole.model), weights(second.model))


def test_it_promises_nothing(tmp_path):
    result = run().finish()
    assert result.epsilon == float("inf")
    kept = result.to_json()
    assert (kept["guarantee"], kept["statement"]["epsilon"]) == ("none", None)
    with pytest.raises(rt.OptionError, match="sgd promises no differential privacy"):
        run(budget=rt.Budget(1, 1e-5))
    with pytest.raises(rt.OptionError, match="sgd promises no differential privacy"):
        rt.SGD(5).calibrated(rt.Budget(1, 1e-5), 10, 10, None)


def test_epochs_and_errors():
    assert run(batch=40, steps=None, epochs=2).steps == 6
    with pytest.raises(rt.OptionError, match="batch = 121: exceeds the number of records 120"):
        run(batch=121)
    with pytest.raises(rt.OptionError, match="batch = 0"):
        rt.SGD(0)
