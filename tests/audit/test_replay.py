"""The replay's own parts: forced coins, worlds that can be set back, what is compared."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import reticent as rt
from reticent import data as datasets
from reticent import models
from reticent.audit.records import neighbours
from reticent.audit.replay import replay
from reticent.audit.watching import ForcedCoins, World, differences
from reticent.data.sampling import BLOCK, poisson_draw, record_coins
from reticent.methods.published import PublishedDPSUR

from .problem import DATA, HONEST, INPUTS, SELECTING, TARGETS, N, network, options_for

KEY = bytes(32)


@pytest.mark.parametrize("n", [5, BLOCK + 3])
def test_forced_coins_decide_about_one_record(n):
    free, forced = rt.Coins(KEY), ForcedCoins(KEY, position=n)
    forced.chosen = lambda address: address == ("sampling", 4, 1)
    for release, trial in ((4, 1), (4, 0), (5, 1)):
        drawn = poisson_draw(n + 1, 0.3, forced, "sampling", release, trial)
        others = poisson_draw(n, 0.3, free, "sampling", release, trial)
        assert torch.equal(drawn[drawn < n], others)
        assert bool((drawn == n).any()) == ((release, trial) == (4, 1))
    # nobody escapes a rate of 1
    assert len(poisson_draw(n + 1, 1.0, forced, "sampling", 0, 0)) == n + 1
    # other uses of the same coins are left alone
    assert torch.equal(forced.uniform((2, 9), "choice", 4, 1), free.uniform((2, 9), "choice", 4, 1))


def test_a_record_in_front_leaves_the_others_their_coins():
    free, forced = rt.Coins(KEY), ForcedCoins(KEY, position=0)
    forced.chosen = lambda address: address[1] == 4
    for release in (3, 4):
        others = poisson_draw(300, 0.3, free, "sampling", release, 0)
        drawn = poisson_draw(301, 0.3, forced, "sampling", release, 0)
        assert torch.equal(drawn[drawn > 0] - 1, others)
        assert bool((drawn == 0).any()) == (release == 4)
    forced.salt = "other "
    assert not torch.equal(forced.normal((3,), "noise", 1), free.normal((3,), "noise", 1))


def test_alone_means_nobody_else():
    forced = ForcedCoins(KEY, position=7)
    forced.alone = True
    assert len(poisson_draw(8, 0.9, forced, "sampling", 0, 0)) == 0
    forced.chosen = lambda address: True
    assert poisson_draw(8, 0.9, forced, "sampling", 0, 0).tolist() == [7]
    assert float(record_coins(8, forced, "flips", 0, 0)[:7].min()) > 0.99


@pytest.mark.parametrize("name", ["dpsgd", "dpis", "dpagd", "dpsur"])
def test_a_world_can_be_set_back(name):
    method = HONEST[name]
    coins = rt.Coins.from_seed(3)
    made = rt.run(network(), DATA, method=method, steps=6, coins=coins, **options_for(method))
    world = World(made)
    world.release()
    kept = world.keep()
    first = world.release()
    after, ledger = world.public(), world.run.ledger.to_json()
    world.release()
    world.back_to(kept)
    again = world.release()
    assert differences(after, world.public(), 0.0) == {}
    assert world.run.ledger.to_json() == ledger
    assert list(first.noised) == list(again.noised)
    assert [draw.address for draw in first.draws] == [draw.address for draw in again.draws]


def test_pinned_values_replace_the_runs_own():
    method = HONEST["dpsgd"]
    worlds = [
        World(
            rt.run(
                network(),
                DATA,
                method=method,
                steps=3,
                coins=rt.Coins.from_seed(seed),
                **options_for(method),
            )
        )
        for seed in (1, 2)
    ]
    seen = worlds[0].release()
    worlds[1].release(pinned=seen)
    assert differences(worlds[0].public(), worlds[1].public(), 0.0) == {}
    seen = worlds[0].release()
    worlds[1].release()
    gaps = differences(worlds[0].public(), worlds[1].public(), 1e-8)
    assert set(gaps) == {
        "parameters",
        "optimizer state of all parameters: momentum_buffer",
        "weight average",
    }


def test_differences_are_named():
    one = {"a": torch.ones(3), "b": torch.tensor(0.0), "c": "x", "d": torch.ones(2)}
    other = {"a": torch.ones(3) + 1e-10, "b": torch.tensor(1.0), "c": "y", "d": torch.ones(3)}
    assert set(differences(one, other, 1e-8)) == {"b", "c", "d"}
    assert set(differences(one, {**one, "e": torch.zeros(1)}, 0.0)) == {"e"}
    nan = {"a": torch.tensor([math.nan])}
    assert set(differences(nan, nan, 1.0)) == {"a"}


def test_neighbours_differ_in_one_record():
    without, with_it, n = neighbours(DATA, 50)
    assert n == 50
    assert torch.equal(with_it[0][:-1], without[0])
    assert torch.equal(without[0], INPUTS[:50].double())
    assert torch.equal(with_it[0][-1], 100 * INPUTS[0].double())
    assert with_it[1][-1] != TARGETS[0]
    _, first, _ = neighbours(DATA, 50, first=True)
    assert torch.equal(first[0][1:], without[0])
    assert torch.equal(first[0][0], with_it[0][-1])
    # the candidate with the longest gradient, whatever that is
    _, longest, _ = neighbours(DATA, 50, norms=lambda x, y: -x.sum(1) + y)
    assert longest[0][-1].sum() == min(
        100 * INPUTS[0].double().sum(), -100 * INPUTS[0].double().sum()
    )
    assert longest[1][-1] == 1
    assert neighbours(DATA, 10 * N)[2] == N
    _, with_own, _ = neighbours(DATA, 50, (torch.zeros(5), torch.tensor(1)))
    assert float(with_own[0][-1].abs().sum()) == 0
    with pytest.raises(rt.DataError, match="record"):
        neighbours(DATA, 50, (torch.zeros(4), torch.tensor(1)))


def test_the_published_leak_is_caught_on_a_real_model():
    splits = datasets.load("digits")
    inputs, targets = splits.train
    model = models.build("digits-cnn", classes=10, input_shape=tuple(inputs.shape[1:]), seed=0)
    report = replay(
        model,
        (inputs, targets),
        method=PublishedDPSUR(**SELECTING, stale_validation=False),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.9),
    )
    assert not report.passed
    assert report.rejected
    assert {leak.kind for leak in report.leaks} == {"unpaid trials"}
    assert any("momentum" in leak.what for leak in report.leaks)
    assert "unpaid trials" in str(report.leaks[0])
    sound = replay(
        model,
        (inputs, targets),
        method=rt.DPSUR(**SELECTING),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.9),
        budget=rt.Budget(100, 1e-3),
    )
    assert sound.passed
    assert sound.rejected
    json.dumps([report.to_json(), sound.to_json()], allow_nan=False)


def test_token_models_are_replayed_too():
    torch.manual_seed(0)

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(20, 4), nn.Linear(4, 2)

        def forward(self, tokens):
            return self.head(self.embedding(tokens).mean(1))

    data = (torch.randint(0, 20, (40, 6)), torch.randint(0, 2, (40,)))
    seen = []
    report = replay(
        Bag(),
        data,
        method=rt.DPSGD(batch=10, noise=1.0),
        releases=2,
        on_release=lambda made, of: seen.append((made, of)),
        optimizer=lambda params: torch.optim.Adam(params, lr=0.1),
        budget=rt.Budget(50, 1e-3),
    )
    assert report.passed
    assert report.draws == 4  # z after the others, and before them
    assert seen == [(1, 2), (2, 2)] * 2


def test_bad_options_are_named():
    options = options_for(HONEST["dpsgd"])
    with pytest.raises(rt.OptionError, match="releases"):
        replay(network(), DATA, method=HONEST["dpsgd"], releases=0, **options)
    with pytest.raises(rt.OptionError, match="device"):
        replay(network(), DATA, method=HONEST["dpsgd"], device="cpu", **options)
    with pytest.raises(rt.OptionError, match="records"):
        replay(network(), DATA, method=HONEST["dpsgd"], records=1, **options)
