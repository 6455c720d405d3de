"""Shadow models: trained right, kept, found again, and never mixed up."""

import math

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.audit.shadow_plans import shadow_coins
from reticent.audit.shadows import (
    OneByOne,
    ShadowPlan,
    estimate,
    group_size,
    in_out,
    out_only,
)
from reticent.errors import DataError, OptionError
from reticent.training.optimizers import by_name

from .shadow_problem import MEMBERS, PLAN, POOL, K, N, build, drawn, files, same, shadows, weights

# -- what is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        PLAN,
        ShadowPlan(batch=8, steps=5, optimizer="adam", lr=0.05, schedule="linear"),
        ShadowPlan(batch=8, epochs=2, optimizer="adamw", weight_decay=0.1, clip=0.5, n=40),
    ],
)
def test_each_model_is_what_train_makes_of_its_records(plan):
    made = shadows(plan=plan, together=4)
    steps = plan.steps_for(MEMBERS)
    assert made.trained == K
    assert made.notes == ()
    for k in range(K):
        own = MEMBERS[k]
        single = build(k)
        rt.train(
            single, (POOL[0][own], POOL[1][own]), method=plan.method(), steps=steps, n=plan.n,
            coins=shadow_coins(plan.seed, k), scheduler=plan.scheduler(steps),
            average=plan.average, device="cpu",
            optimizer=by_name(plan.optimizer, lr=plan.lr, momentum=plan.momentum,
                              weight_decay=plan.weight_decay),
        )  # fmt: skip
        torch.testing.assert_close(weights(made.models[k]), weights(single), rtol=1e-4, atol=1e-5)


def test_noisy_shadow_models_differ_only_by_their_noise():
    quiet, noisy = (
        shadows(plan=ShadowPlan(batch=8, steps=1, lr=1.0, clip=0.1, noise=noise))
        for noise in (0.0, 2.0)
    )
    for k, (a, b) in enumerate(zip(quiet.models, noisy.models, strict=True)):
        moved = (weights(b) - weights(a)).double()
        noise = shadow_coins(0, k).normal((len(moved),), "noise", 0, 0, dtype=torch.float64)
        torch.testing.assert_close(moved, -2.0 * 0.1 / 8 * noise, rtol=1e-3, atol=1e-6)


def test_epochs_are_passes_over_what_a_model_has_on_average():
    assert ShadowPlan(batch=5, epochs=2).steps_for(MEMBERS) == 12  # 2 · 30 / 5
    assert ShadowPlan(batch=5, epochs=2, n=100).steps_for(MEMBERS) == 40
    assert ShadowPlan(batch=50, epochs=0.1).steps_for(MEMBERS) == 1


def test_the_size_of_the_groups_is_no_more_than_rounding():
    results = [shadows(together=size) for size in (1, 4, 6)]
    for made in results[1:]:
        for a, b in zip(made.models, results[0].models, strict=True):
            torch.testing.assert_close(weights(a), weights(b), rtol=1e-4, atol=1e-5)


def test_coins_belong_to_seed_and_number():
    plans = [ShadowPlan(batch=8, steps=3, seed=seed) for seed in (0, 0, 1)]
    one, again, other = (shadows(plan=plan, make=lambda k: build(0)) for plan in plans)
    assert same(one, again)
    assert not any(
        torch.equal(weights(a), weights(b)) for a, b in zip(one.models, other.models, strict=True)
    )
    first = {
        float(shadow_coins(seed, k).uniform((1,), "sampling"))
        for seed in range(3)
        for k in range(3)
    }
    assert len(first) == 9


def test_a_record_a_model_does_not_have_is_nothing_to_it():
    record = 17
    changed = (POOL[0].clone(), POOL[1].clone())
    changed[0][record] += 5
    one, other = shadows(), shadows(data=changed)
    for k in range(K):
        equal = torch.equal(weights(one.models[k]), weights(other.models[k]))
        assert equal or bool(MEMBERS[k, record])
    assert not same(one, other)


def test_models_that_cannot_be_mapped_are_reported():
    def random(k):
        torch.manual_seed(k)
        return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))

    made = shadows(make=random, members=MEMBERS[:2])
    assert len(made.notes) == 1
    assert "one after the other" in made.notes[0]
    found = made.logits(POOL[0])
    assert all(model.training for model in made.models)
    with torch.no_grad():
        alone = torch.stack([model.eval()(POOL[0]) for model in made.models])
    torch.testing.assert_close(found, alone)


# -- logits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 25, 10_000])
def test_logits_are_what_each_model_says(batch):
    made = shadows()
    made.models[0].train()
    made.models[1].eval()
    found = made.logits(POOL[0], batch=batch)
    with torch.no_grad():
        alone = torch.stack([model(POOL[0]) for model in made.models])
    assert found.shape == (K, N, 2)
    assert not found.requires_grad
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-6)
    assert made.models[0].training
    assert not made.models[1].training


def test_logits_of_models_that_branch_on_numbers():
    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(4, 2)

        def forward(self, x):
            return self.one(x) if self.one.weight.sum().item() < 1e9 else x

    made = shadows(make=lambda k: Branching())
    with torch.no_grad():
        alone = torch.stack([model(POOL[0]) for model in made.models])
    torch.testing.assert_close(made.logits(POOL[0], batch=7), alone)


def test_logits_of_several_inputs_and_of_none():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(8, 2)

        def forward(self, a, b):
            return self.one(torch.cat([a, b], 1))

    inputs = {"a": POOL[0], "b": drawn(N, 4, seed=3)}
    made = shadows(make=lambda k: Two(), data=(inputs, POOL[1]))
    with torch.no_grad():
        alone = torch.stack([model(**inputs) for model in made.models])
    torch.testing.assert_close(made.logits(inputs, batch=11), alone)
    assert shadows().logits(POOL[0][:0]).shape == (K, 0, 2)


def test_logits_of_recurrent_models():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(1, 3, batch_first=True), nn.Linear(3, 2)

        def forward(self, x):
            return self.out(self.lstm(x.unsqueeze(2))[0][:, -1])

    made = shadows(make=lambda k: Recurrent(), members=MEMBERS[:2])
    assert "LSTM" in made.notes[0]
    with torch.no_grad():
        alone = torch.stack([model(POOL[0]) for model in made.models])
    torch.testing.assert_close(made.logits(POOL[0]), alone)


def test_logits_of_a_model_that_diverged():
    made = shadows()
    with torch.no_grad():
        made.models[2][0].weight.fill_(math.nan)
    found = made.logits(POOL[0])
    assert bool(found[2].isnan().all())
    assert bool(found[[0, 1, 3, 4, 5]].isfinite().all())


# -- any other method -----------------------------------------------------------------------------


def by_sign(calls):
    def one(model, data, k):
        calls.append(k)
        assert len(data[0]) == int(MEMBERS[k].sum())
        return rt.train(
            model, data, method=rt.SignSGD(batch=8, noise=1.0), steps=3, device="cpu",
            budget=rt.Budget(epsilon=100, delta=1e-3), coins=rt.Coins.from_seed(k),
            optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        ).model  # fmt: skip

    return one


def test_any_other_method_one_by_one(tmp_path):
    calls, seen = [], []
    plan = OneByOne(by_sign(calls), {"method": "signsgd", "steps": 3})
    made = shadows(plan=plan, folder=tmp_path, progress=lambda *at: seen.append(at))
    assert calls == list(range(K))
    assert seen == [(k + 1, K) for k in range(K)]
    single = by_sign([])(build(2), (POOL[0][MEMBERS[2]], POOL[1][MEMBERS[2]]), 2)
    assert torch.equal(weights(made.models[2]), weights(single))
    assert same(made, shadows(plan=plan, folder=tmp_path))
    assert len(calls) == K
    other = OneByOne(by_sign([]), {"method": "signsgd", "steps": 4})
    assert shadows(plan=other, folder=tmp_path).trained == K


def test_functions_that_cannot_work():
    with pytest.raises(OptionError, match="JSON"):
        OneByOne(by_sign([]), {"device": torch.device("cpu")})
    with pytest.raises(OptionError, match="must return the model"):
        shadows(plan=OneByOne(lambda model, data, k: None, {}))


# -- estimates ------------------------------------------------------------------------------------


def test_an_estimate_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "none"
    found = estimate(build, POOL, MEMBERS, PLAN, device="cpu", folder=folder, trial_steps=2)
    assert (found.models, found.steps) == (K, 5)
    assert 0 < found.seconds < 1e4
    assert not folder.exists()
    shadows(folder=folder)
    files(folder)[0].unlink()
    left = estimate(build, POOL, MEMBERS, PLAN, device="cpu", folder=folder, trial_steps=2)
    assert left.models == 1
    assert len(files(folder)) == K - 1
    shadows(folder=folder)
    assert estimate(build, POOL, MEMBERS, PLAN, device="cpu", folder=folder).seconds == 0


def test_an_estimate_counts_every_group_and_step(monkeypatch):
    """With a clock that goes by the steps made: 2 s for a group, 3 s for a step."""
    clock = [0.0]

    def pretend(models, data, *, steps, **options):
        clock[0] += 2 + 3 * steps
        return type("Done", (), {"reason": ""})

    monkeypatch.setattr("reticent.audit.shadows.train_together", pretend)
    monkeypatch.setattr("reticent.audit.shadows.time.perf_counter", lambda: clock[0])
    found = estimate(build, POOL, MEMBERS, PLAN, device="cpu", together=2)
    assert found.seconds == pytest.approx(3 * (2 + 3 * 5))


# -- designs --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "count"), [(1, 2), (50, 4), (333, 16)])
def test_every_record_is_in_exactly_half_of_the_models(n, count):
    members = in_out(n, count, seed=2)
    assert members.shape == (count, n)
    assert members.dtype == torch.bool
    assert members.sum(0).tolist() == [count // 2] * n
    assert torch.equal(members, in_out(n, count, seed=2))


def test_the_half_design_is_random():
    members = in_out(2000, 4, seed=0)
    # each of the six halves of four models has 2000/6 records: a deviation of 16.7, and seven of
    # them are exceeded with probability below 1e-10
    kinds = (members.long() * torch.tensor([[1], [2], [4], [8]])).sum(0).bincount(minlength=16)
    for kind in (3, 5, 6, 9, 10, 12):
        assert abs(int(kinds[kind]) - 2000 / 6) < 7 * 16.7
    assert not torch.equal(members, in_out(2000, 4, seed=1))


@pytest.mark.parametrize("mask", [False, True])
def test_out_only_models_have_no_audited_record(mask):
    audited = torch.tensor([3, 8, 20, 21])
    if mask:
        audited = torch.zeros(40, dtype=torch.bool).index_fill(0, audited, True)
    members = out_only(40, 5, audited, share=0.25, seed=3)
    assert members.sum(1).tolist() == [9] * 5
    assert not bool(members[:, audited].any())
    assert len({tuple(row.tolist()) for row in members}) == 5
    assert bool(out_only(40, 5, audited, share=1.0).any(0).logical_or(members.any(0)).sum() == 36)


# -- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"steps": None}, "steps = None"),
        ({"epochs": 2}, "steps = 5"),
        ({"steps": 0}, "steps = 0"),
        ({"batch": 0}, "batch = 0"),
        ({"lr": -1}, "lr = -1"),
        ({"optimizer": "lion"}, "optimizer = 'lion'"),
        ({"schedule": "steps"}, "schedule = 'steps'"),
        ({"noise": 1.0}, "clip.*finite"),
        ({"clip": math.nan}, "clip = nan"),
        ({"seed": -3}, "seed = -3"),
    ],
)
def test_plans_that_cannot_work(arguments, words):
    with pytest.raises(OptionError, match=words):
        ShadowPlan(**{"batch": 8, "steps": 5, **arguments})


def test_a_plan_is_plain_data():
    assert PLAN.to_json()["clip"] is None
    assert ShadowPlan(batch=8, steps=5, clip=2.0).to_json()["clip"] == 2.0
    assert rt.files.to_json(PLAN.to_json())


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"members": MEMBERS.float()}, OptionError, "memberships"),
        ({"members": MEMBERS[:, 1:]}, OptionError, r"memberships = .*\(models, 60\)"),
        ({"members": MEMBERS[0]}, OptionError, "memberships"),
        ({"members": MEMBERS[:0]}, OptionError, "at least one row"),
        ({"members": MEMBERS & (torch.arange(K) != 4)[:, None]}, DataError, "model 4 has no"),
        ({"plan": ShadowPlan(batch=55, steps=1)}, OptionError, "batch = 55"),
        ({"data": (POOL[0] / 0, POOL[1])}, DataError, "NaN or infinite"),
        ({"together": 0}, OptionError, "together = 0"),
    ],
)
def test_arguments_that_cannot_work(options, kind, words):
    with pytest.raises(kind, match=words):
        shadows(**options)


def test_build_must_make_new_models(tmp_path):
    model = build(0)
    with pytest.raises(OptionError, match="new model"):
        shadows(make=lambda k: model)
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(OptionError, match="not a folder"):
        shadows(folder=blocked)
    for call in (lambda: in_out(9, 3), lambda: in_out(9, 0), lambda: in_out(0, 2)):
        with pytest.raises(OptionError):
            call()
    with pytest.raises(OptionError, match="share"):
        out_only(9, 2, torch.arange(9))
    with pytest.raises(OptionError, match="audited"):
        out_only(9, 2, torch.ones(8, dtype=torch.bool))


def test_groups_fit_into_memory():
    cpu, small, large = torch.device("cpu"), nn.Linear(4, 2), nn.Linear(2000, 2000)
    assert group_size(small, 3, cpu) == 3
    assert group_size(small, 100, cpu) == 16
    assert group_size(small, 100, torch.device("cuda")) == 64
    assert group_size(large, 100, cpu) == 4
    assert group_size(nn.Linear(20_000, 2000), 100, cpu) == 1
