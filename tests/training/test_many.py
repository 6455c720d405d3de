"""Models trained at once with ledgers, against `reticent.train` with the same coins."""

import functools

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.audit.books import check_books
from reticent.gradients import Automatic, Flat, Normalised
from reticent.gradients.batches import trainable
from reticent.gradients.engine import bounds_of
from reticent.training import load_weights, read_run
from reticent.training.held_out import HeldOut
from reticent.training.many import train_many
from reticent.training.stacking import StackedGradients

from .many_together import BUDGET, TEST, agree, at_once, compare, one_by_one, sgd
from .models_together import FLAT, IMAGES, WORDS, Attention, Text, cnn, drawn, make, mlp, weights

NOISE = {"batch": 12, "clip": 0.3, "noise": 0.8}
METHODS = [
    rt.DPSGD(**NOISE),
    rt.SignSGD(**NOISE),
    rt.SignSGD(**NOISE, momentum=0.6),
    rt.SignAdam(**NOISE),
    rt.NoiseDecay(**NOISE, stage=2, rate=0.3),
    rt.NoiseDecay(**NOISE, schedule="step", rate=0.5, period=1, stage=4),
    rt.DPSGD(batch=12, clip=rt.Scheduled("linear", period=4, stage=2, initial=0.5), noise=0.8),
    rt.DPSGD(batch=12, clip=Automatic(0.2, gamma=0.05), noise=0.8),
    rt.DPSGD(batch=12, clip=Normalised(0.2), noise=0.8),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: f"{m.name}-{type(m.clip).__name__}")
def test_every_method_as_if_alone(method):
    small = isinstance(method, (rt.SignSGD, rt.SignAdam))
    compare(method=method, optimizer=sgd(0.02 if small else 0.3, momentum=0.5))


@pytest.mark.parametrize("batch", [12, 13, 90])
def test_plain_training(batch):
    """Batches of a shuffled epoch, and more than one epoch."""
    compare(method=rt.SGD(batch=batch), budget=None, steps=17)


def test_no_noise_and_no_bound():
    compare(method=rt.DPSGD(batch=12, clip=float("inf"), noise=0.0), budget=None)


@pytest.mark.parametrize(
    ("build", "data"), [(cnn, IMAGES), (Text, WORDS), (Attention, WORDS)], ids=lambda x: str(x)[:20]
)
def test_other_models(build, data):
    test = (data[0][:30], data[1][:30])
    compare(build, data, method=rt.DPSGD(batch=12, clip=0.1, noise=0.8), evaluation=HeldOut(test))
    compare(build, data, method=rt.SGD(batch=12), budget=None, evaluation=HeldOut(test))


def test_a_single_model():
    compare(count=1)


def test_settings_of_all_kinds_may_differ():
    results = compare(
        count=6,
        method=[
            rt.DPSGD(batch=12, clip=0.3, noise=0.8),
            rt.SignSGD(batch=12, clip=0.5, noise=1.1),
            rt.NoiseDecay(batch=12, clip=0.3, noise=0.9, stage=3),
            rt.DPSGD(batch=12, clip=0.6, noise=1.2),
            rt.SGD(batch=12),
            rt.DPSGD(batch=20, clip=0.6, noise=1.2),
        ],
        optimizer=[sgd(0.4), sgd(0.02), sgd(0.4), sgd(0.1, 0.9), sgd(0.2),
                   lambda params: torch.optim.Adam(params, lr=0.02)],
        budget=[BUDGET, rt.Budget(50, 1e-5), BUDGET, BUDGET, None, rt.Budget(80, 1e-3)],
        average=[None, 0.9, 0.9, 0.5, None, None],
        scheduler=[None, None, None,
                   lambda made: torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=9),
                   lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda t: 1 / (1 + t)),
                   None],
        every=[3, 2, None, 4, 5, 9],
        config=[{"seed": k} for k in range(6)],
    )  # fmt: skip
    assert [result.config for result in results] == [{"seed": k} for k in range(6)]
    assert len({result.epsilon for result in results}) >= 4


def test_schedules_that_cannot_be_compared_are_not_mixed_up():
    def falling(rate):
        return lambda made: torch.optim.lr_scheduler.LambdaLR(made, lambda t: rate**t)

    compare(count=4, scheduler=[falling(0.5), falling(0.9), None, falling(0.5)])


def test_a_budget_sets_the_noise_of_its_model():
    results = compare(
        count=2,
        method=[rt.DPSGD(batch=12, clip=0.3), rt.DPSGD(batch=12, clip=0.3, noise=0.8)],
        budget=[rt.Budget(2, 1e-4), BUDGET],
    )
    assert results[0].method["noise"] > 0.8
    assert results[0].epsilon <= 2 < results[1].epsilon


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.NAdam])
def test_whoever_is_done_leaves_and_the_others_go_on(kind):
    """Optimizer, averages and the method's own rows go with those that stay."""
    results = compare(
        count=5,
        steps=[9, 2, 6, 0, 6],
        method=[rt.SignAdam(**NOISE)] * 3 + [rt.DPSGD(**NOISE)] * 2,
        optimizer=lambda params: kind(params, lr=0.02),
        average=[0.9, 0.9, 0.9, 0.5, 0.5],
    )
    assert [result.steps for result in results] == [9, 2, 6, 0, 6]


def test_frozen_parts_stay_with_their_models():
    """They differ from model to model; the first to leave is the first of all."""
    compare(Text, WORDS, steps=[2, 9, 4], evaluation=HeldOut(WORDS))


def test_every_bound_leaves_room_for_rounding(monkeypatch):
    """Exactly as for one model: what the accountant was told is an upper bound."""
    seen = []
    plain = StackedGradients.clipped

    def clipped(self, batch, valid, piece, bounds=None):
        if bounds is not None:
            seen.append(bounds.flatten().tolist())
        return plain(self, batch, valid, piece, bounds)

    monkeypatch.setattr(StackedGradients, "clipped", clipped)
    method = [rt.DPSGD(batch=12, clip=clip, noise=0.8) for clip in (0.3, 7.0)]
    own = {"method": method, "budget": BUDGET, "steps": 2, "optimizer": sgd()}
    at_once(mlp, FLAT, 2, [1, 2], {}, own)
    expected = [bounds_of(Flat(clip), trainable(mlp()))[0][0] for clip in (0.3, 7.0)]
    assert seen == [torch.tensor(expected).tolist()] * 2
    assert expected[0] < 0.3


def test_a_budget_that_ends_earlier_ends_that_model_only():
    """With neither steps nor epochs, as many releases as the budget affords."""
    results = compare(
        method=rt.DPSGD(batch=12, clip=0.3, noise=2.0),
        steps=[None, 24, None],
        budget=[rt.Budget(1.2, 1e-4), BUDGET, rt.Budget(1.2, 1e-4)],
    )
    assert 0 < results[0].steps == results[2].steps < results[1].steps == 24


def test_a_ledger_that_holds_less_than_was_planned_ends_one_model():
    """What was paid meanwhile from the same ledger is missed: no release goes unpaid."""
    budget = rt.Budget(1.2, 1e-4)
    ledgers = [rt.Ledger(budget), rt.Ledger(budget)]
    charge = rt.DPSGD(batch=12, noise=2.0).price(90)[0][0]
    spent = []

    def spend(done, planned):
        if not spent:
            spent.append(ledgers[0].capacity(charge) - 2)
            ledgers[0].charge(charge, "something else", count=spent[0])

    results = train_many(
        make(mlp, 2), FLAT, method=rt.DPSGD(batch=12, clip=0.3, noise=2.0), budget=budget, steps=9,
        optimizer=sgd(), ledger=ledgers, device="cpu", how="together", on_step=spend,
    )  # fmt: skip
    assert [result.steps for result in results] == [3, 9]
    assert all(result.epsilon <= 1.2 for result in results)
    assert {entry.purpose: entry.count for entry in ledgers[0].entries} == {
        "training": 3,
        "something else": spent[0],
    }


def test_charges_paid_before_are_kept():
    ledgers = [[rt.Ledger(BUDGET, planned=True) for _ in range(2)] for _ in range(2)]
    charge = rt.DPSGD(batch=30, noise=2.0).price(90)[0][0]
    for some in ledgers:
        for count, ledger in enumerate(some, 1):
            ledger.charge(charge, "statistics", count=count)
    own = {"method": METHODS[0], "budget": BUDGET, "steps": 5, "optimizer": sgd()}
    together = at_once(mlp, FLAT, 2, [1, 2], {}, {**own, "ledger": ledgers[0]})
    alone = one_by_one(mlp, FLAT, 2, [1, 2], {}, {**own, "ledger": ledgers[1]})
    for one, other in zip(together, alone, strict=True):
        agree(one, other)
        assert one.to_json()["conduct"]["paid_before"]


def test_draws_that_are_often_empty():
    small = tuple(column[:3] for column in FLAT)
    compare(
        data=small, method=rt.DPSGD(batch=1, clip=0.3, noise=0.8), steps=20,
        budget=rt.Budget(1e3, 1e-3),
    )  # fmt: skip


def test_pieces_of_one_example_give_the_same():
    compare(more={"memory": 1}, count=2)
    compare(more={"memory": 1}, count=2, method=rt.SGD(batch=12), budget=None)


def test_a_nominal_size_sets_the_rates():
    results = compare(n=120, count=2)
    assert all("real size" not in note for r in results for note in r.ledger.notes)


def test_epochs_mean_passes():
    assert compare(steps=None, epochs=1.5)[0].steps == round(1.5 * 90 / 12)


def test_other_losses():
    data = (FLAT[0], drawn(90, 2, seed=8))
    for loss in (nn.MSELoss(), lambda o, t: (o - t).abs().pow(1.5).mean()):
        compare(data=data, loss_fn=loss, evaluation=HeldOut(data, loss), count=2)


# -- evaluation -----------------------------------------------------------------------------------


def test_evaluations_of_all_kinds_agree():
    plain = compare(evaluation=lambda model: rt.evaluate(model, TEST), every=2)
    partial = compare(evaluation=functools.partial(rt.evaluate, data=TEST), every=2)
    mapped = compare(evaluation=HeldOut(TEST), every=2, average=None)
    for one, two, three in zip(plain, partial, mapped, strict=True):
        assert [line["step"] for line in one.metrics] == [2, 4, 6, 8, 9]
        for lines in zip(one.metrics, two.metrics, three.metrics, strict=True):
            assert pytest.approx(lines[0]) == lines[1] == lines[2]
        assert one.accuracy == three.accuracy


class Halved(nn.Module):
    """Another function when it is evaluated."""

    def __init__(self):
        super().__init__()
        self.one = nn.Linear(6, 2)

    def forward(self, x):
        return self.one(x) * (1.0 if self.training else 0.5)


@pytest.mark.parametrize("build", [mlp, Halved])
def test_held_out_records_are_looked_at_for_all_models_at_once(build):
    calls = []

    class Counted(torch.utils.data.Dataset):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            calls.append(index)
            return TEST[0][index], TEST[1][index]

    compare(build, every=2)
    at_once(
        build,
        FLAT,
        3,
        [1, 2, 3],
        {"evaluation": HeldOut(Counted())},
        {"method": METHODS[0], "budget": BUDGET, "steps": 4, "optimizer": sgd(), "every": 2},
    )
    assert calls.count(7) == 2 + 1  # two evaluations, and one model by itself to compare with


def test_a_model_that_is_another_one_when_evaluated_is_measured_by_itself():
    class Sly(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(6, 2)

        def forward(self, x):
            mapped = torch._C._functorch.is_functorch_wrapped_tensor(x)
            return self.one(x) * (-1 if mapped and not self.training else 1)

    compare(Sly)


# -- what is saved --------------------------------------------------------------------------------


def test_saved_runs_pass_the_check_of_the_books(tmp_path):
    results = compare(
        count=4,
        method=[METHODS[0], METHODS[1], METHODS[4], rt.SGD(batch=12)],
        budget=[BUDGET, BUDGET, BUDGET, None],
        optimizer=sgd(0.05),
    )
    for k, result in enumerate(results):
        folder = result.save(tmp_path / str(k))
        report = check_books(folder)
        assert report.passed, report.checks
        told = read_run(folder)
        assert len(told.pop("model_sha256")) == 64
        assert told == result.to_json() | {"microbatch": None}
        torch.testing.assert_close(
            weights(load_weights(mlp(), folder)), weights(result.model), rtol=0, atol=0
        )
    assert [check_books(r.to_json()).epsilon is None for r in results] == [False] * 3 + [True]
