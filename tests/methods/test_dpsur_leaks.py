"""Ways in which a rejected candidate, a test or a trial could leave a trace; each is closed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

import reticent as rt
from reticent.errors import ModelError, OptionError
from reticent.gradients import Flat

N = 120
INPUTS = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()


def started(model=None, method=None, **changes):
    torch.manual_seed(0)
    options = {
        "method": method
        or rt.DPSUR(batch=30, noise=3.0, valid_batch=20, valid_noise=1.0, bound=0.01),
        "budget": rt.Budget(8, 1e-3),
        "steps": 3,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9),
        "n": N,
        "coins": rt.Coins.from_seed(5),
        "device": "cpu",
        **changes,
    }
    return rt.run(model or nn.Linear(5, 2), (INPUTS, TARGETS), **options)


class Lookahead(torch.optim.Optimizer):
    """Wraps another optimizer and keeps it in an attribute, as many wrappers do."""

    def __init__(self, params):
        params = list(params)
        super().__init__(params, {})
        self.inner = torch.optim.SGD(params, lr=0.1, momentum=0.9)

    def step(self, closure=None):
        return self.inner.step()


class Bare(Lookahead):
    """A wrapper that skips its base class, and borrows what it needs."""

    def __init__(self, params):
        self.inner = torch.optim.SGD(params, lr=0.1, momentum=0.9)
        self.param_groups, self.state, self.slow = self.inner.param_groups, self.inner.state, {}

    def step(self, closure=None):
        self.slow["count"] = self.slow.get("count", 0) + 1
        return self.inner.step()


class Counting(torch.optim.SGD):
    """Counts its steps beside the state."""

    calls = 0

    def step(self, closure=None):
        self.calls += 1
        return super().step()


@pytest.mark.parametrize("optimizer", [Lookahead, Bare, lambda p: Counting(p, lr=0.1)])
def test_optimizers_that_keep_more_than_their_state(optimizer):
    with pytest.raises(OptionError, match="outside its state: a rejected candidate would leave"):
        started(optimizer=optimizer)
    plain = rt.DPSGD(batch=30, noise=2.0)  # every step of it is released
    started(method=plain, optimizer=optimizer).finish()


def test_step_hooks():
    def hooked(params):
        optimizer = torch.optim.SGD(params, lr=0.1)
        optimizer.register_step_post_hook(lambda *args: None)
        return optimizer

    with pytest.raises(OptionError, match="has step hooks"):
        started(optimizer=hooked)
    handle = register_optimizer_step_post_hook(lambda *args: None)
    try:
        with pytest.raises(OptionError, match="has step hooks"):
            started()
    finally:
        handle.remove()


@pytest.mark.parametrize(
    "scheduler",
    [
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=10),
        lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.1, 1.0),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [
                torch.optim.lr_scheduler.ConstantLR(o, 0.5),
                torch.optim.lr_scheduler.CosineAnnealingLR(o, 5),
            ],
            [2],
        ),
    ],
)
def test_schedulers_of_pytorch_pass(scheduler):
    assert started(scheduler=scheduler, average=0.9).finish().steps == 3


class Remembers(nn.Module):
    """Keeps what it is evaluated on."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)
        self.seen = torch.zeros(1)

    def forward(self, x):
        if not self.training:
            self.seen = x
        return self.layer(x)


class Counts(Remembers):
    """Counts how often it is evaluated."""

    def forward(self, x):
        if not self.training:
            self.seen = self.seen + 1
        return self.layer(x)


@pytest.mark.parametrize("kind", [Remembers, Counts])
def test_models_that_take_something_up_when_evaluated(kind):
    with pytest.raises(ModelError, match="'seen' changes in a forward pass of the evaluated"):
        started(kind())
    started(kind(), method=rt.DPSGD(batch=30, noise=2.0)).finish()


class AlwaysDropping(nn.Module):
    """Random even when evaluated."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 2)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.3, training=True)


def test_tests_draw_nothing_from_the_public_generator():
    training = started(AlwaysDropping())
    before = torch.get_rng_state()
    training.finish()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("microbatch", [8, 512])
def test_every_trial_has_its_own_coins_for_the_model(monkeypatch, microbatch):
    """Computed together or not, no two trials of a release share a mask."""
    asked = []
    original = rt.Coins.seed

    def spy(self, stream, *counters):
        asked.append((stream, *counters))
        return original(self, stream, *counters)

    monkeypatch.setattr(rt.Coins, "seed", spy)
    method = rt.DPSUR(batch=30, noise=3.0, valid_batch=20, valid_noise=1.0, bound=0.01, together=4)
    net = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    started(net, method, microbatch=microbatch).finish()
    assert asked
    assert len(asked) == len(set(asked))


def test_coins_of_the_model_are_not_used_twice():
    run = started().run
    run.begin_release()
    run.clipped_sum(torch.arange(3), Flat(1.0))
    with pytest.raises(RuntimeError, match="coins used twice are no coins"):
        run.clipped_sum(torch.arange(3), Flat(1.0))
    run.clipped_sum(torch.arange(3), Flat(1.0), "model again")


def test_the_running_time_is_not_reported(tmp_path):
    result = started(folder=tmp_path).finish()
    assert result.seconds is None
    assert result.to_json()["seconds"] is None
    plain = started(method=rt.DPSGD(batch=30, noise=2.0)).finish()
    assert plain.seconds > 0


@pytest.mark.parametrize("pad", [None, 4])
def test_no_gradient_but_the_released_one_can_be_seen(pad):
    method = rt.DPSUR(batch=30, noise=3.0, valid_batch=20, valid_noise=1.0, bound=0.01, pad=pad)
    net = nn.Linear(5, 2)
    training = started(net, method, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    before = training.run.state.parameters.values.clone()
    for _ in training:
        after = training.run.state.parameters.values.clone()
        seen = [p.grad for p in net.parameters()]
        if pad is None:
            moved = torch.cat([g.flatten() for g in seen])
            torch.testing.assert_close(before - after, moved)
        else:
            assert seen == [None, None]
            assert not training.run.state.parameters.flat.grad.any()
        before = after


def test_an_interrupted_release_leaves_the_last_one(monkeypatch):
    training = started()
    releases = iter(training)
    next(releases)
    before = training.run.state.parameters.values.clone()

    def interrupted(self, run, change):
        raise KeyboardInterrupt

    monkeypatch.setattr(rt.DPSUR, "_noisy_change", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(releases)
    assert torch.equal(before, training.run.state.parameters.values)
    with pytest.raises(RuntimeError, match="failed half-way"):
        training.result()


def test_buffers_that_are_not_saved_are_watched_too():
    net = nn.Linear(5, 2)
    net.register_buffer("seen", torch.zeros(3), persistent=False)
    run = started(net).run
    before = run.frozen_fingerprint()
    net.seen += 1
    assert run.frozen_fingerprint() != before
