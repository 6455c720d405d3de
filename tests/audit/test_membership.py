"""Whole attacks on models and procedures."""

from __future__ import annotations

import json
import stat

import pytest
import torch
from torch import nn

import reticent as rt
from reticent import data as datasets
from reticent.audit import (
    Attacking,
    Evidence,
    OneByOne,
    ShadowPlan,
    Signals,
    attack_model,
    attack_procedure,
    attack_split,
    attacks,
)
from reticent.audit.attacks import NAMES
from reticent.audit.membership import _design
from reticent.audit.roc_figure import draw_roc
from reticent.training.planning import plan

N = 1200
GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(N, 12, generator=GENERATOR)
# labels that can only be learned by heart
LABELS = torch.randint(0, 3, (N,), generator=GENERATOR)
BY_HEART = ShadowPlan(batch=60, steps=150, lr=0.02, optimizer="adam")


def network(number):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, 3))


def test_nothing_learned_is_nothing_found():
    """Models that never saw a record. The intervals are at 1 − 1e-8, and there are 10 of them."""
    inputs = torch.randn(20_000, 4, generator=torch.Generator().manual_seed(2))
    labels = torch.randint(0, 3, (20_000,), generator=torch.Generator().manual_seed(3))

    def at_random(model, data, number):
        torch.manual_seed(number)
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))

    names = tuple(name for name in NAMES if name not in ("shadow", "white-box"))
    report = attack_procedure(
        (inputs, labels),
        build=at_random_start,
        plan=OneByOne(at_random, {}),
        attacking=Attacking(names, shadows=6, records=8000, confidence=1 - 1e-8),
        targets=2,
    )
    for name in names:
        for leakage in report.results[name]:
            assert leakage.chance, name
            assert leakage.auc.high - leakage.auc.low < 0.1


def test_shadow_models_do_not_know_the_target():
    """Their number with a record says nothing about the target's: it is the same for all."""
    members = _design(101, 3, Attacking(shadows=6))
    assert members.shape == (9, 101)
    assert members[:3].sum(1).tolist() == [50, 50, 50]
    assert members[3:].sum(0).unique().tolist() == [3]
    assert not torch.equal(members[0], members[1])


def at_random_start(number):
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


def test_what_was_learned_by_heart_is_found(tmp_path):
    told = []
    report = attack_procedure(
        (INPUTS, LABELS),
        build=network,
        plan=BY_HEART,
        attacking=Attacking(shadows=8, confidence=0.999),
        targets=2,
        folder=tmp_path,
        on_estimate=told.append,
    )
    assert set(report.results) == set(NAMES)
    for name, found in report.results.items():
        for leakage in found:
            assert leakage.auc.low > 0.5, name
    assert told[0].models == 10
    assert report.shadows == 8
    assert report.notes == ()
    combined = report.combined()
    assert combined["likelihood-ratio"]["auc"].count == 2
    json.dumps(report.to_json(), allow_nan=False)
    # all that was trained is kept for its owner, and nothing is trained again
    files = list(tmp_path.iterdir())
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in files)
    again = attack_procedure(
        (INPUTS, LABELS),
        build=network,
        plan=BY_HEART,
        attacking=Attacking(("population",), shadows=8),
        folder=tmp_path,
        targets=2,
        on_estimate=told.append,
    )
    assert told[1].models == 0
    (one, two) = (told.results["population"][0] for told in (again, report))
    assert one.auc.value == two.auc.value
    draw_roc(tmp_path / "roc.png", report.curves(), epsilon=1.0, delta=1e-5)
    assert (tmp_path / "roc.png").read_bytes()[:4] == b"\x89PNG"


def test_private_models_of_real_records_are_at_chance():
    """ε = 1 on the digits. Intervals at 1 − 1e-4, seven of them; the seeds are fixed."""
    splits = datasets.load("digits")
    records = tuple(torch.cat([a, b]) for a, b in zip(splits.train, splits.test, strict=True))
    n = (len(records[1]) - len(records[1]) // 6) // 2
    budget = rt.Budget(1.0, 1e-5)
    method, steps = plan(rt.DPSGD(batch=250), budget, n, 30, None, rt.Ledger(budget))
    report = attack_procedure(
        records,
        build=lambda number: nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        plan=ShadowPlan(batch=250, steps=steps, lr=1.0, clip=1.0, noise=method.noise, n=n),
        attacking=Attacking(shadows=8, confidence=1 - 1e-4),
    )
    assert report.notes == ()
    for name, (leakage,) in report.results.items():
        assert leakage.chance, name


def trained_on(rows):
    model = network(0)
    result = rt.train(
        model,
        (INPUTS[rows], LABELS[rows]),
        method=rt.DPSGD(batch=60, clip=1e9, noise=0.0),
        steps=200,
        optimizer=lambda params: torch.optim.Adam(params, lr=0.02),
        device="cpu",
    )
    return result.model


def test_one_model_is_attacked_as_it_is():
    train, held_out = slice(0, 600), slice(600, None)
    report = attack_model(
        trained_on(train),
        (INPUTS[train], LABELS[train]),
        (INPUTS[held_out], LABELS[held_out]),
        build=network,
        plan=BY_HEART,
        attacking=Attacking(shadows=8),
    )
    for name, (leakage,) in report.results.items():
        assert leakage.auc.low > 0.5, name
        assert leakage.n_members == leakage.n_nonmembers or name == "white-box"
    # no shadow models are trained where nobody asks for them

    def refuse(number):
        raise AssertionError("no shadow model is needed")

    alone = attack_model(
        trained_on(train),
        (INPUTS[train], LABELS[train]),
        (INPUTS[held_out], LABELS[held_out]),
        build=refuse,
        plan=BY_HEART,
        attacking=Attacking(("population", "white-box")),
    )
    assert alone.shadows == 0
    assert set(alone.results) == {"population", "white-box"}


def test_the_split_of_the_papers():
    attacked = attack_split(
        (INPUTS, LABELS), build=network, plan=BY_HEART, attacking=Attacking(shadows=8)
    )
    assert attacked.notes == ()
    for name, (leakage,) in attacked.results.items():
        assert leakage.auc.low > 0.5, name
        # as many members as non-members: a sixth of the records each
        assert leakage.n_members + leakage.n_nonmembers in (400, 200)


def test_the_classifier_learns_from_the_shadow_part_alone():
    """Where shadow models saw a part of the population, the audited records teach nothing."""
    said = Signals(torch.randn(60, 3), torch.randint(0, 3, (60,)))
    logits, members = torch.randn(4, 60, 3), torch.rand(4, 60) < 0.5
    population = Signals(torch.randn(80, 3), torch.randint(0, 3, (80,)))
    beside, known = torch.randn(4, 80, 3), torch.rand(4, 80) < 0.5

    def scores(members):
        evidence = Evidence(said, torch.arange(60) < 30, logits, members, population, beside, known)
        return attacks.build("shadow").score(evidence).values

    assert torch.equal(scores(members), scores(~members))


def test_copies_are_left_out_or_reported():
    train = INPUTS[:600], LABELS[:600]
    held_out = torch.cat([INPUTS[:100], INPUTS[600:]]), torch.cat([LABELS[:100], LABELS[600:]])
    model = trained_on(slice(0, 600))

    def attacked(duplicates):
        return attack_model(
            model,
            train,
            held_out,
            build=network,
            plan=BY_HEART,
            attacking=Attacking(("population",), population=100, duplicates=duplicates),
        )

    excluded, reported = attacked("exclude"), attacked("report")
    assert excluded.duplicates["near_across"] == reported.duplicates["near_across"] == 100
    assert excluded.results["population"][0].n_nonmembers == 500
    assert reported.results["population"][0].n_nonmembers == 600
    with pytest.raises(rt.DataError, match="nobody to compare"):
        attack_model(model, train, train, build=network, plan=BY_HEART)


def test_labels_and_options_are_checked():
    with pytest.raises(rt.DataError, match="labels"):
        attack_procedure((INPUTS, INPUTS[:, 0]), build=network, plan=BY_HEART)
    for options, name in (
        ({"attacks": ("guess",)}, "attack"),
        ({"attacks": ()}, "attacks"),
        ({"shadows": 3}, "shadows"),
        ({"records": 1}, "records"),
        ({"population": 0}, "population"),
        ({"duplicates": "keep"}, "duplicates"),
    ):
        with pytest.raises(rt.OptionError, match=name):
            Attacking(**options)
    with pytest.raises(rt.OptionError, match="targets"):
        attack_procedure((INPUTS, LABELS), build=network, plan=BY_HEART, targets=0)
