"""Whole audits: of what is private as stated, and of what is not."""

import copy
import json
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.audit.canaries import audit_canaries
from reticent.files import to_json
from reticent.gradients import Flat

INPUTS = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
TARGETS = (INPUTS[:, 0] > 0).long()


BROAD = rt.Budget(50, 1e-5)


def network():
    torch.manual_seed(0)
    return nn.Linear(5, 2)


def audited(**changes):
    options = {
        "method": rt.DPSGD(batch=1600, clip=1.0),
        "budget": rt.Budget(4, 1e-5),
        "steps": 1,
        "canaries": 1500,
        "n": 1600,
        "seed": 0,
        "device": "cpu",
        "microbatch": 2048,
        **changes,
    }
    return audit_canaries(network(), (INPUTS, TARGETS), **options)


@pytest.mark.parametrize("epsilon", [1, 4, 8])
def test_a_white_box_audit_reaches_half_of_epsilon_and_never_more_than_it(epsilon):
    m = 10_000
    report = audited(
        method=rt.DPSGD(batch=m, clip=1.0),
        budget=rt.Budget(epsilon, 1e-5),
        steps=2,
        canaries=m,
        n=m,
        guesses=624,
    )
    assert not report.refuted
    for family in ("gaussian", "ledger"):
        assert epsilon / 2 < report.bound(family).epsilon < report.upper.epsilon <= epsilon
    # without any assumption there is less to be had
    for family in ("closed-form", "approximate"):
        assert epsilon / 3 < report.bound(family).epsilon < report.bound("gaussian").epsilon


def test_at_high_confidence_nothing_exceeds_the_ledger():
    # each comparison fails for a correct method with probability 1e-8 at most, whatever the seed:
    # 6 audits of 4 bounds and one refutation, below 1e-6 together
    for epsilon in (1, 4, 8):
        for seed in range(2):
            report = audited(
                budget=rt.Budget(epsilon, 1e-5),
                steps=2,
                confidence=1 - 1e-8,
                seed=seed,
            )
            assert not report.refuted
            assert all(bound.epsilon <= report.upper.epsilon for bound in report.bounds)


def test_an_audit_sees_through_sampling():
    report = audited(
        budget=rt.Budget(8, 1e-5),
        method=rt.DPSGD(batch=5000, noise=0.815),
        steps=3,
        canaries=10_000,
        n=10_000,
        guesses=156,
    )
    assert not report.refuted
    assert 4 < report.bound("ledger").epsilon < report.upper.epsilon
    assert report.bound("gaussian").epsilon > 3


@dataclass(frozen=True)
class HalfTheNoise(rt.DPSGD):
    """Charges its noise, and adds half of it."""

    def noise_now(self, run):
        return super().noise_now(run) / 2


@dataclass(frozen=True)
class Unclipped(rt.DPSGD):
    """Noise for the bound, on a sum that nothing was clipped in."""

    def bound_now(self, run):
        return Flat(1e15)

    def step(self, run, total):
        super().step(run, replace(total, sensitivity=self.clipping.sensitivity))


@dataclass(frozen=True)
class Everyone(rt.DPSGD):
    """Charges for a sample, and takes all records."""

    def release(self, run):
        records = torch.arange(run.records.n, device=run.device)
        self.step(run, run.clipped_sum(records, self.bound_now(run)))


@pytest.mark.parametrize(
    ("kind", "batch", "steps"),
    [
        (HalfTheNoise, 10_000, 1),
        (HalfTheNoise, 10_000, 4),
        (Unclipped, 10_000, 1),
        (Unclipped, 10_000, 4),
        (Everyone, 1000, 1),
    ],
)
def test_what_breaks_its_promise_is_refuted(kind, batch, steps):
    options = {"canaries": 10_000, "n": 10_000, "steps": steps, "guesses": 624, "confidence": 0.99}
    noise = 2 * steps**0.5
    honest = audited(**options, budget=BROAD, method=rt.DPSGD(batch=batch, noise=noise))
    assert not honest.refuted
    report = audited(**options, budget=BROAD, method=kind(batch=batch, noise=noise))
    assert report.refuted
    assert report.tested == "ledger"
    assert report.upper.epsilon == honest.upper.epsilon  # the ledger does not know
    assert report.bound("ledger").number > 1
    assert report.bound("ledger").epsilon > report.upper.epsilon


METHODS = {
    "dpsgd": rt.DPSGD(batch=100, noise=1.0),
    "quantile": rt.DPSGD(batch=100, noise=1.0, clip=rt.Quantile()),
    "dpsur": rt.DPSUR(batch=100, noise=2.0, valid_batch=50, bound=0.01),
    "dpis": rt.DPIS(batch=50),
    "sign-sgd": rt.SignSGD(batch=100, noise=1.0),
    "sign-adam": rt.SignAdam(batch=100, noise=1.0),
    "noise-decay": rt.NoiseDecay(batch=100),
    "dpagd": rt.DPAGD(batch=100),
}


def test_every_method_of_the_catalog_is_here():
    private = {
        name
        for name in rt.methods.names()
        if rt.methods.describe(name).guarantee == "differential-privacy"
    }
    assert private <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("view", ["white-box", "black-box"])
def test_every_method_can_be_audited(name, view):
    report = audited(
        method=METHODS[name],
        view=view,
        budget=rt.Budget(8, 1e-5),
        steps=3,
        canaries=300,
        n=400,
        confidence=1 - 1e-8,  # a correct method fails this with probability 1e-8, and 5 bounds
        lr=0.5,
    )
    assert not report.refuted
    assert all(bound.epsilon <= report.upper.epsilon for bound in report.bounds)
    assert report.releases == 3
    assert report.tested == ("approximate" if name in ("dpis", "dpagd") else "ledger")
    assert report.scores["auc"] > (0.45 if name == "dpagd" else 0.52)  # something is seen


@pytest.mark.parametrize("view", ["white-box", "black-box"])
def test_canaries_in_input_space(view):
    torch.manual_seed(3)
    data = (torch.randn(300, 400), torch.randint(0, 2, (300,)))
    model = nn.Linear(400, 2)
    options = {
        "method": rt.DPSGD(batch=300, noise=1.0),
        "budget": rt.Budget(400, 1e-5),
        "steps": 20,
        "n": 300,
        "kind": "input",
        "view": view,
        "canaries": 150,
        "seed": 1,
        "device": "cpu",
    }
    own = audit_canaries(model, data, **options)
    given = audit_canaries(model, data, **options, records=(torch.randn(150, 400), data[1][:150]))
    for report in (own, given):
        assert report.scores["auc"] > 0.75  # weak noise: members are learned by heart
        assert not report.refuted
        assert report.bound("gaussian").epsilon > 0


def test_one_seed_is_one_audit_and_the_model_stays_as_it_is():
    model, seen = network(), []
    before = copy.deepcopy(model.state_dict())
    mode = model.training
    options = {
        "method": rt.DPSGD(batch=400, noise=2.0),
        "budget": BROAD,
        "steps": 2,
        "canaries": 200,
        "device": "cpu",
    }
    first, again, other = (
        audit_canaries(model, (INPUTS, TARGETS), **options, seed=seed, on_release=seen.append)
        for seed in (5, 5, 6)
    )
    assert first.to_json() == again.to_json() != other.to_json()
    assert [release.step for release in seen] == [1, 2] * 3
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training == mode
    fresh = audit_canaries(model, (INPUTS, TARGETS), **options)
    assert fresh.n == 400


def test_the_nominal_size_does_not_tell_how_many_canaries_are_in():
    reports = [
        audited(seed=seed, canaries=100, n=None, method=rt.DPSGD(batch=300)) for seed in (1, 2)
    ]
    assert reports[0].included != reports[1].included
    assert reports[0].n == reports[1].n == 300
    assert reports[0].method == reports[1].method


def test_a_report_is_plain_data():
    report = audited(canaries=200)
    data = json.loads(to_json(report.to_json()))
    assert data["canaries"] == report.canaries == 200
    assert [o["guesses"] for o in data["outcomes"]] == [o.guesses for o in report.outcomes]
    assert data["upper"]["epsilon"] == report.upper.epsilon
    assert {line["family"] for line in data["bounds"]} == {
        "closed-form",
        "approximate",
        "gaussian",
        "ledger",
    }
    assert all(line["assumes"] for line in data["bounds"])
    with pytest.raises(rt.OptionError, match="family"):
        report.bound("none")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"kind": "pixel"}, "kind"),
        ({"view": "grey-box"}, "view"),
        ({"canaries": 1}, "canaries"),
        ({"canaries": 250, "kind": "input"}, "canaries"),
        ({"guesses": 7}, "guesses"),
        ({"guesses": 4000}, "guesses"),
        ({"confidence": 1.0}, "confidence"),
        ({"lr": 0.0}, "lr"),
        ({"budget": None}, "budget"),
        ({"n": 0}, "n"),
        ({"steps": None}, "steps"),
        ({"coins": rt.Coins.from_seed(1)}, "coins"),
        ({"optimizer": torch.optim.Adam}, "optimizer"),
        ({"records": (INPUTS, TARGETS)}, "records"),
    ],
)
def test_options_that_cannot_work_are_named(changes, named):
    with pytest.raises(rt.OptionError) as caught:
        audited(**changes)
    assert caught.value.option == named
