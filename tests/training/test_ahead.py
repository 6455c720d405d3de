"""Draws and batches fetched early leave every run what it is."""

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import reticent as rt
from reticent.data import DatasetRecords, ahead, poisson_draw
from reticent.data.records import HostRecords
from reticent.methods import build

from .problem import INPUTS, TARGETS, N, model, options, weights

HOST = {"method": rt.DPSGD(batch=30, clip=1.0, noise=2.0), "microbatch": 11}
DPSUR = build(
    "dpsur",
    batch=30,
    clip=1.0,
    clipping="flat",
    noise=4.0,
    valid_batch=20,
    valid_noise=1.3,
    beta=0.5,
)


@pytest.fixture
def other_branch(monkeypatch):
    """Draws as on a device, enqueued and with room to spare; the CPU is the device."""
    import math

    from reticent.data.sampling import DeviceDraws, masks_on

    begun = []

    def begin(n, rate, coins, stream, addresses, *, device, indices_on):
        begun.append((stream, *addresses[0]))
        threshold = math.floor(rate * 2**53) / 2**53
        masks = masks_on(torch.device("cpu"), n, threshold, coins, stream, addresses)
        return DeviceDraws(masks, len(addresses) * n * rate, to_host=True)

    monkeypatch.setattr(ahead, "begin_draws", begin)
    return begun


def dropout():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Dropout(0.5), nn.Linear(6, 2))


def host():
    return HostRecords(INPUTS, TARGETS)


class Pairs(Dataset):
    def __len__(self):
        return N

    def __getitem__(self, index):
        return INPUTS[index], TARGETS[index]


@pytest.mark.parametrize("net", [model, dropout])
@pytest.mark.parametrize("microbatch", [1, 11, 1000])
@pytest.mark.parametrize("made", [host, lambda: DatasetRecords(Pairs(), ahead=True)])
def test_records_fetched_ahead_give_the_same_run(other_branch, net, microbatch, made):
    plain = options(microbatch=microbatch)
    early = rt.train(net(), made(), **plain)
    assert other_branch == [("sampling", step, 0) for step in range(8)]  # each once, none beyond
    other = rt.train(net(), (INPUTS, TARGETS), **plain)
    assert torch.equal(weights(early), weights(other))


def test_pieces_are_expected_before_they_are_asked_for(monkeypatch):
    asked = []
    original = HostRecords._gather
    monkeypatch.setattr(
        HostRecords, "_gather", lambda self, i: asked.append(i.tolist()) or original(self, i)
    )
    rt.train(model(), host(), **options(**HOST))
    coins = rt.Coins.from_seed(5)
    pieces = [
        piece.tolist()
        for step in range(8)
        for piece in poisson_draw(N, 30 / N, coins, "sampling", step, 0).split(11)
    ]
    probed = [[0]] * (len(asked) - len(pieces))  # shapes, before training
    assert asked == probed + pieces  # each once: every expectation came true


@pytest.mark.parametrize("together", [1, 3])
def test_selection_with_records_on_the_host(other_branch, together):
    from dataclasses import replace

    method = replace(DPSUR, together=together)
    plain = options(method=method, budget=rt.Budget(500, 1e-3), microbatch=200, steps=6)
    early = rt.run(model(), host(), private_diagnostics=True, **plain)
    one = early.finish()
    assert sum(line["trials"] for line in early.run.diagnostics) > 6  # some were rejected
    assert len(other_branch) == len(set(other_branch))
    other = rt.train(model(), (INPUTS, TARGETS), **plain)
    assert torch.equal(weights(one), weights(other))


@pytest.mark.parametrize("stop", [1, 4])
@pytest.mark.parametrize("method", [HOST["method"], DPSUR], ids=["dpsgd", "dpsur"])
def test_resuming_after_a_guess_goes_on_bit_for_bit(tmp_path, other_branch, stop, method):
    def started(folder, resume=False):
        plain = options(method=method, microbatch=11, budget=rt.Budget(500, 1e-3))
        coins = None if resume else rt.Coins.from_seed(5)
        return rt.run(
            dropout(),
            host(),
            **{**plain, "folder": folder, "resume": resume, "coins": coins},
            checkpoint_every=0,
        )

    whole = started(tmp_path / "whole").finish()
    half = started(tmp_path / "half")
    for _, _ in zip(range(stop), half, strict=False):
        pass
    resumed = started(tmp_path / "half", resume=True).finish()
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.ledger.to_json() == whole.ledger.to_json()


def test_a_guess_does_not_count_as_drawn(other_branch):
    run = rt.run(model(), host(), **options()).run
    run.begin_release()
    run.sample(0.1)
    assert other_branch == [("sampling", 0, 0), ("sampling", 1, 0)]
    assert run._drawn == {("sampling", 0)}
    with pytest.raises(RuntimeError, match="drawn from already"):
        run.sample(0.1)
    run.state.step += 1
    run.begin_release()
    assert run._drawn == set()
    expected = poisson_draw(N, 0.2, run.coins, "sampling", 1, 0)
    assert torch.equal(run.sample(0.2), expected)  # another rate than the one guessed


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_empty_and_full_draws(other_branch, rate):
    run = rt.run(model(), host(), **options(microbatch=50)).run
    for step in range(3):
        run.state.step = step
        run.begin_release()
        total = run.clipped_sum(run.sample(rate), rt.DPSGD(batch=3).clipping)
        assert len(total.norms) == len(total.losses) == N * rate
        assert total.flat.dtype == torch.float64
