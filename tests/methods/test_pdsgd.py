"""PD-SGD against its algorithm told literally; what it leaves behind, and what it tells."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.methods.pdsgd import _Verdict
from reticent.training.run import Run

from .problem import INPUTS, TARGETS, N, network, sgd, started, weights

METHOD = rt.PDSGD(batches=7, sigma=0.1, gamma=3.0, threshold=3)
ALWAYS = replace(METHOD, gamma=1e9)
# a batch is plausible by chance with probability 1e-9
NEVER = replace(METHOD, gamma=1e-9)


def run(method=METHOD, **changes):
    return started(method, **{"budget": None, "steps": 30, **changes})


def accepted(training):
    return [line["accepted"] for line in training.run.diagnostics]


def literally(method, coins, steps):
    """Algorithm 1 with log-densities, every gradient computed, the same coins."""
    model, said = network(), []
    optimizer = sgd(model.parameters())
    normal = torch.distributions.Normal(0.0, torch.tensor(method.sigma, dtype=torch.float64))
    for step in range(steps):
        # coins come in blocks, of which the records take the first
        order = coins.uniform((N,), "partition", step, 0, 0).argsort()
        batches = order.tensor_split(method.batches)
        numbers = coins.uniform((method.batches,), "seed", step, 0).argsort().tolist()
        gradients = []
        for batch in batches:
            loss = nn.functional.cross_entropy(model(INPUTS[batch]), TARGETS[batch])
            parts = torch.autograd.grad(loss, list(model.parameters()))
            gradients.append(torch.cat([p.flatten() for p in parts]).double())
        seed = gradients[numbers[0]]
        drawn = coins.normal((len(seed),), "noise", step, 0, dtype=torch.float64)
        noisy, count, passed = seed + method.sigma * drawn, 0, False
        for j in numbers:
            own, theirs = (normal.log_prob(noisy - g).sum() for g in (seed, gradients[j]))
            count += bool((own - theirs).abs() <= method.gamma)
            if count >= method.threshold:
                passed = True
                break
        said.append(int(passed))
        if passed:
            begin = 0
            for parameter in model.parameters():
                part = noisy[begin : begin + parameter.numel()]
                parameter.grad = part.view_as(parameter).float()
                begin += parameter.numel()
            optimizer.step()
    return model, said


@pytest.mark.parametrize(
    "method",
    [
        METHOD,
        replace(METHOD, sigma=0.05, gamma=20.0),
        replace(METHOD, sigma=0.2, gamma=0.5, threshold=2),
        replace(METHOD, threshold=1, gamma=1e-6),
    ],
)
@pytest.mark.parametrize("group", [1, 2, 6])
def test_it_is_algorithm_1(method, group):
    training = run(replace(method, group=group))
    result = training.finish()
    model, said = literally(method, rt.Coins.from_seed(5), 30)
    assert accepted(training) == said
    assert torch.allclose(weights(result.model), weights(model), atol=2e-5)
    assert sum(said) == 30 if method.threshold == 1 else 2 < sum(said) < 28


@pytest.mark.parametrize("microbatch", [5, 17, 40, 500])
def test_the_size_of_pieces_changes_nothing_but_rounding(microbatch):
    one, three = (run(replace(METHOD, group=g), microbatch=microbatch) for g in (1, 3))
    ends = [training.finish().model for training in (one, three, run())]
    assert accepted(one) == accepted(three)
    assert all(torch.allclose(weights(ends[2]), weights(end), atol=2e-5) for end in ends[:2])


class Refusing(nn.Module):
    """A layer that torch.vmap does not take."""

    def forward(self, inputs):
        return inputs * (1.0 if float(inputs.detach().sum()) < 1e9 else 2.0)


def test_a_model_that_cannot_be_vectorised_is_told_what_to_do():
    torch.manual_seed(0)
    run = rt.run(
        nn.Linear(5, 2),
        (INPUTS, TARGETS),
        method=replace(ALWAYS, group=3),
        steps=1,
        optimizer=sgd,
        device="cpu",
    )
    run.run.model = nn.Sequential(run.run.model, Refusing())
    with pytest.raises(rt.ModelError, match=r"one by one \(group = 1\)"):
        run.run.batch_gradients([torch.arange(9), torch.arange(9, 17)], "model")


def kept(state):
    """All that a release may change but the counter, as comparable parts."""
    shot = state.snapshot()
    moments = {
        (number, name): value
        for number, parts in enumerate(shot.optimizer_state.values())
        for name, value in parts.items()
    }
    average = () if shot.average is None else shot.average
    tensors = [shot.values, *average[:1], *(v for v in moments.values() if torch.is_tensor(v))]
    gradients = [state.parameters.flat.grad.clone()]
    plain = [
        {name: value for name, value in moments.items() if not torch.is_tensor(value)},
        shot.optimizer_groups,
        shot.scheduler,
        average[1:],
        shot.public,
    ]
    return [*tensors, *gradients], plain


OPTIMIZERS = {
    "momentum": sgd,
    "adam": lambda params: torch.optim.Adam(params, lr=0.01),
    "adamw": lambda params: torch.optim.AdamW(params, lr=0.01, amsgrad=True),
    "views": lambda params: torch.optim.Rprop(params, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_rejection_leaves_no_trace(name):
    training = run(
        ALWAYS,
        optimizer=OPTIMIZERS[name],
        scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=1, gamma=0.9),
        average=0.9,
    )
    releases = iter(training)
    for _ in range(3):
        next(releases)
    training.method = NEVER
    tensors, plain = kept(training.run.state)
    updates = training.run.private["updates"].clone()
    for _ in range(4):
        next(releases)
    after, plain_after = kept(training.run.state)
    assert len(tensors) == len(after) > 3
    assert all(torch.equal(a, b) for a, b in zip(tensors, after, strict=True))
    assert plain == plain_after
    assert torch.equal(updates, training.run.private["updates"])
    assert training.run.state.step == 7
    assert accepted(training) == [1] * 3 + [0] * 4
    training.method = ALWAYS
    next(releases)
    assert not torch.equal(tensors[0], training.run.state.parameters.values)


def test_rejections_are_as_if_they_had_not_been():
    # the accepted steps alone, with their coins, make the same model
    training = run(METHOD, steps=40)
    result = training.finish()
    said = accepted(training)
    assert 5 < sum(said) < 35
    again = run(ALWAYS, steps=40)
    state = again.run.state
    for step, passed in enumerate(said):
        again.run.begin_release()
        assert again.run.release == step
        ALWAYS.release(again.run) if passed else state.hold()
    assert torch.equal(weights(result.model), state.parameters.values)


def test_with_a_threshold_of_one_nothing_is_rejected_or_compared():
    training = run(replace(NEVER, threshold=1), steps=20)
    training.finish()
    lines = training.run.diagnostics
    assert accepted(training) == [1] * 20
    assert {line["evaluated"] for line in lines} == {1}
    assert all("nearest" not in line for line in lines)


@pytest.mark.parametrize("threshold", [1, 2, 5, 7])
def test_it_stops_as_soon_as_the_outcome_is_known(threshold, monkeypatch):
    made = []
    inner = Run.batch_gradient
    monkeypatch.setattr(Run, "batch_gradient", lambda *told: made.append(told[1:]) or inner(*told))
    for method, count in ((ALWAYS, threshold), (NEVER, 7 - threshold + 2)):
        if method is NEVER and threshold == 1:
            continue
        made.clear()
        training = run(replace(method, threshold=threshold), steps=1)
        training.finish()
        (line,) = training.run.diagnostics
        assert len(made) == line["evaluated"] == count
        assert len({stream for _, stream in made}) == count  # no coins are used twice
        assert line["plausible"] == (threshold if method is ALWAYS else 1)


def test_all_batches_are_seeds_alike():
    training = run(replace(METHOD, threshold=1), steps=700)
    training.finish()
    counts = torch.tensor([line["seed"] for line in training.run.diagnostics]).bincount()
    # Hoeffding and a union over 7 batches: off by 100 of 700 with probability below 7·2·exp(−28)
    assert len(counts) == 7
    assert (counts - 100).abs().max() < 100


def test_what_is_no_number_is_not_plausible():
    verdict = _Verdict()
    for score in (math.nan, math.inf, -math.inf, 2.1, -2.1):
        verdict.add(score, math.nan, 2.0)
    assert (verdict.plausible, verdict.evaluated, verdict.nearest) == (1, 6, math.inf)
    for score in (2.0, -2.0, 0.0):
        verdict.add(score, 0.5, 2.0)
    assert (verdict.plausible, verdict.nearest) == (4, 0.5)


def test_a_batch_with_an_infinite_gradient_is_never_an_update():
    inputs = INPUTS.clone()
    inputs[0] = 3e38
    training = rt.run(
        nn.Linear(5, 2),
        (inputs, TARGETS),
        method=ALWAYS,
        steps=30,
        optimizer=sgd,
        coins=rt.Coins.from_seed(5),
        device="cpu",
        private_diagnostics=True,
    )
    result = training.finish()
    assert 15 < sum(accepted(training)) < 30
    assert bool(torch.isfinite(weights(result.model)).all())
    assert int(training.run.private["updates"][0]) == 0


def plain_sgd(params):
    return torch.optim.SGD(params, lr=0.1)


def test_the_test_alone_moves_by_the_gradient_itself():
    told = {"optimizer": plain_sgd, "steps": 1}
    both = {
        only: run(replace(ALWAYS, test_only=only), **told).finish().model for only in (False, True)
    }
    spy = run(replace(ALWAYS, threshold=1), **told)
    spy.run.begin_release()
    batches = METHOD.split(spy.run)
    seed = spy.run.order(7, "seed")[0]
    gradient = spy.run.batch_gradient(batches[seed])
    begin = weights(network())
    assert torch.allclose(weights(both[True]), begin - 0.1 * gradient, atol=1e-7)
    noise = (weights(both[False]) - weights(both[True])) / -0.1 / METHOD.sigma
    # a chi-square of 50 is between 5 and 150 but with probability below 1e-11
    assert 5 < float(noise @ noise) < 150
    # and the decisions are those of the noisy one, from the same parameters
    first = [accepted_first(replace(METHOD, gamma=8.0, test_only=only)) for only in (False, True)]
    assert first[0] == first[1]


def accepted_first(method):
    """The decision of a first step, for several coins."""
    found = []
    for seed in range(8):
        training = run(method, steps=1, coins=rt.Coins.from_seed(seed))
        training.finish()
        found += accepted(training)
    assert 0 < sum(found) < 8
    return found


@pytest.mark.parametrize("killed", [1, 6, 11])
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path, killed):
    told = {
        "steps": 15,
        "scheduler": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=2, gamma=0.9),
        "average": 0.9,
    }
    method = METHOD
    whole = run(method, **told)
    expected = whole.finish()
    assert 0 < sum(accepted(whole)[:6]) < 6
    first = run(method, **told, folder=tmp_path, checkpoint_every=0)
    for release in first:
        if release.step == killed:
            break
    second = run(method, **told, folder=tmp_path, resume=True, coins=rt.Coins.from_seed(99))
    result = second.finish()
    assert torch.equal(weights(expected.model), weights(result.model))
    assert torch.equal(whole.run.private["updates"], second.run.private["updates"])


def test_successful_updates_are_counted_by_record():
    training = run(METHOD)
    training.finish()
    updates = training.run.private["updates"]
    passed = sum(accepted(training))
    assert 17 * passed <= int(updates.sum()) <= 18 * passed  # 120 records in 7 batches
    last = training.run.diagnostics[-1]
    assert last["least_updates"] == int(updates.min())
    assert last["most_updates"] == int(updates.max()) <= passed
    assert last["mean_updates"] == pytest.approx(float(updates.sum()) / N)


def test_dropout_draws_from_secret_coins():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Linear(30, 2))
    ends = []
    for group in (1, 3):
        for seed in (1, 1, 2):
            fresh = nn.Sequential(nn.Linear(5, 30), nn.Dropout(0.5), nn.Linear(30, 2))
            fresh.load_state_dict(model.state_dict())
            result = rt.train(
                fresh,
                (INPUTS, TARGETS),
                method=replace(ALWAYS, group=group),
                steps=3,
                optimizer=sgd,
                coins=rt.Coins.from_seed(seed),
                device="cpu",
            )
            ends.append(weights(result.model))
    assert torch.equal(ends[0], ends[1])
    assert torch.equal(ends[3], ends[4])
    assert not torch.allclose(ends[0], ends[2])


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("data_on", ["device", "host"])
def test_on_a_device_groups_decide_alike(data_on):
    told = {"device": "cuda", "data_on": data_on}
    one, three = (run(replace(METHOD, group=group), **told) for group in (1, 3))
    ends = [training.finish().model for training in (one, three)]
    assert accepted(one) == accepted(three)
    assert torch.allclose(*(weights(model) for model in ends), atol=2e-5)
    assert one.run.private["updates"].device.type == "cuda"
