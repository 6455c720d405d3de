"""DPSUR against a plain re-telling of Algorithm 2, and what a rejection may leave behind."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from scipy import stats
from torch import nn

import reticent as rt
from reticent.errors import OptionError, TrialsExhaustedError
from reticent.methods import build
from reticent.methods.published import PublishedDPSUR
from reticent.privacy.selective_tilts import passing
from reticent.training.run import Run

from .problem import INPUTS, METHOD, TARGETS, N, network, options_with, sgd, started, weights


def retold(seed, steps, method=METHOD):
    """Algorithm 2, one example at a time, on copies of a plain model and optimizer."""
    coins, model = rt.Coins.from_seed(seed), network()
    optimizer = sgd(model.parameters())
    loss_fn, trials = nn.CrossEntropyLoss(), []

    def drawn(rate, stream, step, trial):
        coin = coins.uniform((1 << 16,), stream, step, trial, 0)[:N]
        return (coin < rate).nonzero().squeeze(1)

    for step in range(steps):
        for trial in range(10_000):
            candidate, moved = copy.deepcopy((model, optimizer))
            total = torch.zeros(weights(model).numel(), dtype=torch.float64)
            for i in drawn(method.batch / N, "sampling", step, trial):
                loss = loss_fn(candidate(INPUTS[i : i + 1]), TARGETS[i : i + 1])
                grads = torch.autograd.grad(loss, list(candidate.parameters()))
                flat = torch.cat([g.flatten() for g in grads]).double()
                total += flat * min(1.0, method.clip * (1 - 5e-5) / float(flat.norm()))
            noise = coins.normal(total.shape, "noise", step, trial, dtype=torch.float64)
            gradient = (total + method.noise * method.clip * noise) / method.batch
            start = 0
            for p in candidate.parameters():
                p.grad = gradient[start : start + p.numel()].view(p.shape).float()
                start += p.numel()
            moved.step()
            judges = drawn(method.valid_batch / N, "validation", step, trial)
            with torch.no_grad():
                change = loss_fn(candidate(INPUTS[judges]), TARGETS[judges]) - loss_fn(
                    model(INPUTS[judges]), TARGETS[judges]
                )
            change = min(max(float(change), -method.bound), method.bound)
            noise = coins.normal((), "validation-noise", step, trial, dtype=torch.float64)
            if change + 2 * method.bound * method.valid_noise * float(noise) < (
                method.beta * method.bound
            ):
                model, optimizer = candidate, moved
                trials.append(trial + 1)
                break
    return model, trials


def test_releases_are_those_of_algorithm_2():
    training = started(coins=rt.Coins.from_seed(5))
    result = training.finish()
    expected, trials = retold(5, 4)
    assert [line["trials"] for line in training.run.diagnostics] == trials
    assert sum(trials) > len(trials)  # some were rejected
    torch.testing.assert_close(weights(result.model), weights(expected), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("replays", [False, True])
@pytest.mark.parametrize("changes", [{"together": 3}, {"pad": 4}, {"pad": 3, "together": 5}])
def test_together_and_padded_are_the_same_releases(changes, replays, monkeypatch):
    plain, other = started(), started(build("dpsur", **options_with(changes)))
    first = plain.finish()
    monkeypatch.setattr(type(other.run), "replays", replays)  # each sum in its turn, as on a GPU
    second = other.finish()
    assert plain.run.diagnostics == other.run.diagnostics
    torch.testing.assert_close(weights(first.model), weights(second.model), rtol=1e-4, atol=1e-5)


def test_padding_makes_up_to_a_multiple(monkeypatch):
    made = []
    original = rt.DPSUR._accepts

    def counting(self, run, candidate):
        made.append(run.release)
        return original(self, run, candidate)

    monkeypatch.setattr(rt.DPSUR, "_accepts", counting)
    started(build("dpsur", **options_with({"pad": 4}))).finish()
    assert {made.count(release) % 4 for release in range(4)} == {0}


# -- a rejection leaves nothing -----------------------------------------------------------------

OPTIMIZERS = {
    "momentum": sgd,
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9),
}


def everything(state):
    """All that a release can change, as bytes and plain values."""
    moments = [
        {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in values.items()}
        for values in state.optimizer.state.values()
    ]
    groups = [{k: v for k, v in g.items() if k != "params"} for g in state.optimizer.param_groups]
    average = (state.average.values.clone(), state.average.count)
    return {
        "values": state.parameters.values.clone(),
        "moments": moments,
        "groups": copy.deepcopy(groups),
        "scheduler": copy.deepcopy(state.scheduler.state_dict()),
        "average": average,
        "public": dict(state.public),
        "step": state.step,
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def left_behind(monkeypatch, optimizer, method, test="_accepts"):
    """Which parts of the state differ before one trial and before the next."""
    seen, changed = {}, set()
    original = getattr(type(method), test)

    def watching(self, run, *args):
        now = everything(run.state)
        if run.trial:
            before = seen[run.release]
            changed.update(key for key in now if not same(now[key], before[key]))
        seen[run.release] = now
        passed = original(self, run, *args)
        return passed and run.trial >= 2  # at least two rejections a release

    monkeypatch.setattr(type(method), test, watching)
    training = started(
        method,
        optimizer=OPTIMIZERS[optimizer],
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.9),
        average=0.9,
        budget=None if isinstance(method, PublishedDPSUR) else rt.Budget(8, 1e-3),
    )
    training.finish()
    assert len(seen) == 4
    return changed


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("style", ["flat", "quantile"])
def test_a_rejection_leaves_nothing_behind(monkeypatch, optimizer, style):
    method = build("dpsur", **{**options_with({}), "clipping": style, "batch": 60})
    assert left_behind(monkeypatch, optimizer, method) == set()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_that_test_finds_the_published_leak(monkeypatch, optimizer):
    method = PublishedDPSUR(**options_with({}), stale_validation=False)
    assert left_behind(monkeypatch, optimizer, method, "_passes") == {"moments"}


def neighbours(method, **changes):
    """Runs on D and D ∪ {z}, same coins, z drawn in rejected trials only: are they equal?"""
    extra = (torch.cat([INPUTS, INPUTS[:1] * 3]), torch.cat([TARGETS, 1 - TARGETS[:1]]))
    for seed in range(200):
        coins = rt.Coins.from_seed(seed)
        without = started(method, coins=coins, steps=2, **changes)
        accepted = without.finish()
        trials = [line["trials"] for line in without.run.diagnostics]
        z = [
            {
                t
                for t in range(count)
                for stream, batch in (("sampling", 30), ("validation", 40))
                if float(coins.uniform((1 << 16,), stream, step, t, 0)[N]) < batch / N
            }
            for step, count in enumerate(trials)
        ]
        if not any(z) or any(count - 1 in drawn for count, drawn in zip(trials, z, strict=True)):
            continue
        within = started(method, data=extra, coins=coins, steps=2, **changes)
        other = within.finish()
        if [line["trials"] for line in within.run.diagnostics] == trials:
            return torch.equal(weights(accepted.model), weights(other.model))
    raise AssertionError("no such run among the seeds")


def test_a_record_drawn_in_rejected_trials_only_changes_no_release():
    assert neighbours(METHOD)
    leaky = PublishedDPSUR(**options_with({}), stale_validation=False)
    assert not neighbours(leaky, budget=None)


# -- the test itself ----------------------------------------------------------------------------


class Bench:
    """Stands in for a run: the noise is what it is told to be."""

    def __init__(self, noise=0.0):
        self.noise = noise

    def noisy(self, total, multiplier, stream):
        self.asked = (float(total.flat), total.sensitivity, multiplier)
        return total.flat + self.noise * multiplier * total.sensitivity


@pytest.mark.parametrize(
    ("change", "clipped"),
    [(0.004, 0.004), (5.0, 0.01), (-5.0, -0.01), (math.nan, 0.01), (-math.inf, 0.01), (0.0, 0.0)],
)
def test_the_change_is_clipped_and_noised(change, clipped):
    bench = Bench(noise=1.0)
    noisy = METHOD._noisy_change(bench, torch.tensor(change, dtype=torch.float64))
    assert bench.asked == (pytest.approx(clipped), 0.02, 1.0)
    assert float(noisy) == pytest.approx(clipped + 0.02)


def test_no_judges_and_a_diverged_model_are_within_the_theorem():
    run = started().run
    empty, some = run.mean_losses([torch.arange(0), torch.arange(3)], "model before")
    assert float(empty) == 0.0
    assert float(some) > 0
    # a candidate whose loss is not finite passes as rarely as the worst one, not never or always
    wild = started(optimizer=lambda p: torch.optim.SGD(p, lr=1e30), steps=3).finish()
    assert wild.steps == 3


def test_records_are_drawn_at_the_rates_that_are_charged(monkeypatch):
    asked = set()
    original = Run.samples

    def spy(self, rate, stream, count):
        asked.add((stream, rate))
        return original(self, rate, stream, count)

    monkeypatch.setattr(Run, "samples", spy)
    (entry,) = started().finish().ledger.entries
    charge = entry.charge
    assert charge.rate != charge.valid_rate
    assert asked == {("sampling", charge.rate), ("validation", charge.valid_rate)}


def test_the_loss_is_the_mean_over_the_records_drawn():
    run = started(microbatch=4).run
    draws = [torch.tensor([3, 50, 7]), torch.tensor([], dtype=torch.long), torch.arange(20, 31)]
    found = run.mean_losses(draws, "model before")
    with torch.no_grad():
        each = nn.functional.cross_entropy(run.model(INPUTS), TARGETS, reduction="none").double()
    for mean, draw in zip(found, draws, strict=True):
        assert float(mean) == pytest.approx(float(each[draw].sum()) / max(len(draw), 1), rel=1e-5)


@pytest.mark.parametrize("change", [-1.0, 1.0])
def test_candidates_pass_as_often_as_the_theorem_says(change):
    """4000 tests of the worst and the best change (two-sided false alarm 1e-6)."""
    run = started().run
    low, high = passing(METHOD.beta, METHOD.valid_noise)
    passed = 0
    for run.release in range(4000):
        run._drawn.clear()
        noisy = METHOD._noisy_change(run, torch.tensor(change, dtype=torch.float64))
        passed += bool(noisy < METHOD.beta * METHOD.bound)
    expected = high if change < 0 else low
    assert stats.binomtest(passed, 4000, expected).pvalue > 1e-6


def test_trials_run_out(monkeypatch):
    def never(self, run, candidate):
        self.step(run, candidate.total)
        return False

    monkeypatch.setattr(rt.DPSUR, "_accepts", never)
    method = build("dpsur", **options_with({"trials": 60}))
    training = started(method, steps=1)
    before = training.run.state.parameters.values.clone()
    with pytest.raises(TrialsExhaustedError, match="trials = 60: no candidate of release 0"):
        training.finish()
    assert torch.equal(before, training.run.state.parameters.values)
    assert len(training.run.ledger.entries) == 1  # paid all the same


def test_a_cap_that_is_hit_too_often_leaves_nothing_of_delta():
    method = build("dpsur", **options_with({"trials": 3}))
    with pytest.raises(OptionError, match="trials = 3: all of them fail with probability"):
        started(method, steps=1)
