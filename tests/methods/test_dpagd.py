"""DP-AGD: every query is paid, averages and restores by hand, the filter is never passed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import AccountingError, BudgetError, OptionError
from reticent.methods import build
from reticent.privacy import Ledger, SampledGaussian, SampledPure

from .problem import INPUTS, TARGETS, N, started, weights

METHOD = rt.DPAGD(batch=60, noise=6.0, candidates=4, longest=1.0)
# from the minimum every step is harmful: the data are fitted, and steps are huge
HARMFUL = rt.DPAGD(batch=60, noise=20.0, sizes=[50.0, 80.0], choice_epsilon=0.9, gamma=0.1)


def sgd(params):
    return torch.optim.SGD(params, lr=1.0)


def begun(method=METHOD, **changes):
    options = {"budget": rt.Budget(6, 1e-3), "steps": 12, "optimizer": sgd, **changes}
    return started(method, **options)


def fitted():
    """A model with nothing left to gain."""
    model = nn.Linear(5, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[0, 0], model.weight[1, 0] = -30.0, 30.0
        model.bias.zero_()
    return model


def failing(steps, **changes):
    options = {
        "method": HARMFUL,
        "budget": rt.Budget(40, 1e-3),
        "steps": steps,
        "optimizer": sgd,
        "n": N,
        "coins": rt.Coins.from_seed(5),
        "device": "cpu",
        **changes,
    }
    return rt.run(fitted(), (INPUTS, TARGETS), **options)


# -- every query is paid ----------------------------------------------------------------------


def test_a_run_whose_first_twenty_queries_fail_has_paid_for_twenty():
    training = failing(20)
    before = training.run.state.parameters.values.clone()
    spent = training.run.ledger.divergence_left()
    for _ in training:
        left = training.run.ledger.divergence_left()
        assert left < spent
        spent = left
    state = training.run.state
    assert state.step == 20
    assert torch.equal(state.parameters.values, before)
    ledger = training.result().ledger
    assert sum(e.count for e in ledger.entries if e.purpose == "step size") == 20
    assert all(e.adaptive for e in ledger.entries)
    measured = [e for e in ledger.entries if e.purpose.startswith("gradient")]
    assert [e.purpose for e in measured] == ["gradient"] + ["gradient, measured again"] * 19
    # ρ in all is that of one measurement at the last multiplier: growth is paid, nothing twice
    rho = sum(e.count / (2 * e.charge.multiplier**2) for e in measured)
    assert rho == pytest.approx(1.1**19 / (2 * 20.0**2), rel=1e-12)
    assert training.result().released["failures"] == 20
    assert ledger.statement(1e-3).accountant == "filter"
    assert ledger.epsilon(1e-3) == 40
    with pytest.raises(AccountingError, match="filter"):
        ledger.epsilon(1e-3, "pld")


def test_charges_come_before_what_they_pay_for():
    training = begun(steps=3)
    run, events = training.run, []
    pay, noisy, losses = run.pay, run.noisy, run._losses
    run.pay = lambda charge, purpose: events.append(purpose) or pay(charge, purpose)
    run.noisy = lambda *a: events.append("noise") or noisy(*a)
    run._losses = lambda *a: events.append("losses") or losses(*a)
    for _ in training:
        assert [e.split(",")[0] for e in events] == [
            *("gradient", "noise", "step size"),
            *["losses"] * 5,
        ]
        events.clear()


def test_a_success_keeps_the_grown_budget_and_drops_the_gradient():
    training = failing(4)
    releases = iter(training)
    next(releases), next(releases)
    kept = training.run.state.public["agd"]
    assert kept["failures"] == 2
    assert kept["gradient"] is not None
    with torch.no_grad():  # now there is something to gain: far off, to be found by large steps
        training.run.state.parameters.values.mul_(-1)
    next(releases)
    kept = training.run.state.public["agd"]
    assert kept["failures"] == 2
    assert kept["gradient"] is None
    next(releases)
    last = [e.charge for e in training.run.ledger.entries if e.purpose.startswith("gradient")][-1]
    assert last == SampledGaussian(60 / N, 20.0 * 1.1**-1)


# -- measuring again --------------------------------------------------------------------------


def test_averages_are_by_inverse_variance():
    training = failing(5)
    run, fresh = training.run, []
    noisy = run.noisy
    run.noisy = lambda total, m: fresh.append((m, noisy(total, m))) or fresh[-1][1]
    for number, _ in enumerate(training, start=1):
        weights_ = torch.tensor([m**-2 for m, _ in fresh], dtype=torch.float64)
        parts = torch.stack([released for _, released in fresh])
        expected = (weights_[:, None] * parts).sum(0) / weights_.sum()
        found = run.state.public["agd"]["gradient"]
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
        # its variance is that of one measurement at the grown budget
        assert float(weights_.sum()) ** -0.5 == pytest.approx(20.0 * 1.1 ** (-(number - 1) / 2))


def test_multipliers_by_hand():
    method = rt.DPAGD(batch=10, noise=4.0, gamma=0.21)
    assert method.multiplier(0, False) == 4.0
    assert method.multiplier(2, False) == pytest.approx(4.0 / 1.21)
    # ρ: 1/32 grows to 1.21/32; the difference is 0.21/32
    assert 1 / (2 * method.multiplier(1, True) ** 2) == pytest.approx(0.21 / 32)
    assert 1 / (2 * method.multiplier(2, True) ** 2) == pytest.approx(0.21 * 1.21 / 32)


# -- choosing ---------------------------------------------------------------------------------


def test_all_candidates_start_from_the_same_parameters_bit_for_bit():
    training = begun(steps=2)
    run, seen = training.run, []
    losses = run._losses
    run._losses = lambda *a: seen.append(run.state.parameters.values.clone()) or losses(*a)
    for _ in training:
        start, *others = seen
        step = others[0] - start
        for number, place in enumerate(others, start=1):
            torch.testing.assert_close(place - start, number * step, rtol=1e-4, atol=1e-6)
        assert torch.linalg.vector_norm(step) == pytest.approx(0.25, rel=1e-4)
        end = run.state.parameters.values
        assert any(torch.equal(end, place) for place in seen)
        seen.clear()


def test_moves_stand_for_the_sizes_that_were_scored():
    method = replace(METHOD, sizes=[0.5, 0.25], moves=[3.0, 1.0], adapt=2, stretch=0.0)
    training = begun(method, steps=6)
    run, seen, made = training.run, [], []
    losses = run._losses
    run._losses = lambda *a: seen.append(run.state.parameters.values.clone()) or losses(*a)
    for _ in training:
        start, near, far = seen
        torch.testing.assert_close(far - start, 2 * (near - start), rtol=1e-4, atol=1e-6)
        direction = (near - start) / torch.linalg.vector_norm(near - start)
        scale = float(torch.linalg.vector_norm(far - start)) / 0.5
        moved = run.state.parameters.values - start
        length = float(torch.linalg.vector_norm(moved))
        made.append(round(length / scale, 3))
        torch.testing.assert_close(moved, length * direction, rtol=1e-3, atol=1e-5)
        seen.clear()
    assert set(made) <= {0.0, 1.0, 3.0}
    assert len(set(made)) > 1
    assert method.released({})["longest_step"] == 3.0
    assert method.price(N) == replace(method, moves=None).price(N)


def test_shorter_candidates_make_shorter_moves():
    method = replace(METHOD, sizes=[0.25, 0.5], moves=[1.0, 3.0], adapt=9)
    training = begun(method, steps=12)
    run, releases = training.run, iter(training)
    lengths, taken = set(), set()
    for _ in range(5):
        next(releases)
        run.state.public["agd"] = {"failures": 0, "gradient": None, "scale": 0.5, "taken": []}
        before = run.state.parameters.values.clone()
        next(releases)
        moved = torch.linalg.vector_norm(run.state.parameters.values - before)
        lengths.add(round(float(moved), 3))
        taken |= set(run.state.public["agd"]["taken"])
    assert lengths <= {0.0, 0.5, 1.5}
    assert lengths != {0.0}
    assert taken <= {0.125, 0.25}  # what was scored, which the next candidates follow
    assert taken


def test_a_failed_round_leaves_everything_as_it_was():
    training = failing(3, average=0.9, scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 1))
    before = training.run.state.snapshot()
    list(training)
    after = training.run.state.snapshot()
    assert torch.equal(before.values, after.values)
    assert before.optimizer_groups == after.optimizer_groups
    assert before.scheduler == after.scheduler
    assert torch.equal(before.average[0], after.average[0])
    assert (before.step, after.step) == (0, 3)


def bounded_losses(run, draw, bound, stream):
    return replace(METHOD, objective_bound=bound)._score(run, draw, stream)


def test_losses_are_bounded_record_by_record():
    training = begun()
    run = training.run
    everyone = torch.arange(N)
    each = nn.functional.cross_entropy(run.model(INPUTS), TARGETS, reduction="none").double()
    found = bounded_losses(run, everyone, 0.6, "one")
    slack = 0.6 * 1e-4 * N
    assert float(found) == pytest.approx(float(each.detach().clamp(0, 0.6).sum()), abs=slack)
    # one record more adds between 0 and the bound, whatever it is
    for number in range(5):
        fewer = bounded_losses(run, everyone[everyone != number], 0.6, f"without {number}")
        assert -1e-9 <= float(found - fewer) <= 0.6
    assert float(bounded_losses(run, everyone[:0], 0.6, "nobody")) == 0


def test_losses_that_are_not_finite_count_as_the_bound():
    run = begun().run
    with torch.no_grad():
        run.state.parameters.values.fill_(math.nan)
    found = float(bounded_losses(run, torch.arange(10), 0.5, "broken"))
    assert 10 * 0.5 * (1 - 1e-3) < found <= 10 * 0.5


def test_the_longest_step_follows_those_taken():
    method = rt.DPAGD(batch=10, noise=4.0, candidates=4, longest=2.0, adapt=2, stretch=0.1)
    memory = {"failures": 0, "gradient": None, "scale": 1.0, "taken": []}
    memory = method._adapted(memory, 0.5)
    assert (memory["scale"], memory["taken"]) == (1.0, [0.5])
    memory = method._adapted(memory, 1.0)
    assert (memory["scale"], memory["taken"]) == (pytest.approx(1.1 / 2.0), [])
    memory = method._adapted(method._adapted(memory, 2.0), 2.0)
    assert memory["scale"] == 1.0  # never longer than at first
    assert method.released({"agd": memory})["longest_step"] == 2.0
    still = rt.DPAGD(batch=10, noise=4.0, adapt=0)
    assert still._adapted({**memory, "taken": [0.1] * 30}, 0.1)["scale"] == 1.0


# -- the budget -------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [None, 2.0, 12.0])
def test_the_run_never_passes_the_filter_and_ends_in_time(noise):
    budget = rt.Budget(3, 1e-3)
    training = begun(rt.DPAGD(batch=60, noise=noise, candidates=2), budget=budget, steps=60)
    order = training.run.ledger.filter_order
    for _ in training:
        assert training.run.ledger.divergence_left() >= -1e-9
    result = training.result()
    assert result.epsilon == 3
    assert result.ledger.epsilon_with((), "filter") <= 3
    assert result.ledger.filter_order == order
    if result.steps < 60:
        price = training.method._price(
            N,
            training.run.state.public["agd"]["failures"],
            training.run.state.public["agd"]["gradient"] is not None,
        )
        more = tuple((charge, 1) for charge, _ in price)
        assert result.ledger.epsilon_with(more, "filter") > 3
    assert (result.steps < 60) == (noise == 2.0)


def test_the_planned_rounds_take_their_share():
    budget = rt.Budget(3, 1e-5)
    for share in (0.5, 1.0):
        ledger = Ledger(budget)
        method = rt.DPAGD(batch=100, share=share).calibrated(budget, 1000, 50, ledger)
        price = [charge for charge, _ in method.price(1000)]
        room = ledger.divergence_left()
        cost = sum(float(charge.rdp((ledger.filter_order,))[0]) for charge in price)
        assert 0.98 * share < 50 * cost / room <= share
        assert price[1] == SampledPure(0.1, 1 / method.noise)
    with pytest.raises(BudgetError, match="affords no release"):
        rt.DPAGD(batch=1000, noise=0.1).calibrated(budget, 1000, 5, Ledger(budget))


def test_a_ledger_with_earlier_charges_leaves_less():
    budget = rt.Budget(3, 1e-5)
    paid = Ledger(budget)
    paid.charge(SampledGaussian(1.0, 4.0), "normalisation")
    fresh = rt.DPAGD(batch=100).calibrated(budget, 1000, 50, Ledger(budget))
    assert rt.DPAGD(batch=100).calibrated(budget, 1000, 50, paid).noise > fresh.noise
    fixed = Ledger(budget, filter_order=12.0)
    rt.DPAGD(batch=100).calibrated(budget, 1000, 50, fixed)
    assert fixed.filter_order == 12.0


@pytest.mark.parametrize("at", [1, 3, 6])
@pytest.mark.parametrize("fails", [False, True])
def test_a_resumed_run_is_the_same_run(at, fails, tmp_path):
    start = failing if fails else lambda steps, **more: begun(steps=steps, **more)
    whole = start(8).finish()
    broken = start(8, folder=tmp_path)
    releases = iter(broken)
    for _ in range(at):
        next(releases)
    broken.checkpoint()
    resumed = start(8, folder=tmp_path, resume=True, coins=None).finish()
    assert torch.equal(weights(resumed.model), weights(whole.model))
    assert resumed.ledger.to_json() == whole.ledger.to_json()
    assert resumed.released == whole.released


# -- what it takes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("optimizer", "named"),
    [
        (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), "momentum = 0.9"),
        (lambda p: torch.optim.SGD(p, lr=1.0, weight_decay=0.1), "weight_decay = 0.1"),
        (lambda p: torch.optim.Adam(p), "optimizer = 'Adam'"),
    ],
)
def test_other_optimizers_are_refused_before_anything_is_paid(optimizer, named):
    training = begun(optimizer=optimizer)
    with pytest.raises(OptionError, match=named):
        next(iter(training))
    assert training.run.ledger.entries == ()


def test_without_noise_it_descends():
    losses = []
    training = begun(rt.DPAGD(batch=N, noise=0.0, objective_bound=50.0), budget=None, steps=20)
    for _ in training:
        with torch.no_grad():
            losses.append(float(nn.functional.cross_entropy(training.run.model(INPUTS), TARGETS)))
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.3 * losses[0]
    assert math.isinf(training.result().ledger.epsilon(1e-5))


def test_options_by_name_and_what_is_refused():
    made = build("dpagd", batch=30, noise=4.0, sizes=[0.5, 0.1], gamma=0.2, normalise=False)
    assert made.sizes == (0.1, 0.5)
    assert made.options()["sizes"] == [0.1, 0.5]
    paired = replace(made, sizes=[0.5, 0.1], moves=[2, 3])  # each size keeps its move
    assert (paired.options()["sizes"], paired.options()["moves"]) == ([0.1, 0.5], [3, 2])
    for changes in (
        *({"gamma": 0}, {"objective_bound": -1.0}, {"candidates": 0}, {"longest": 0}),
        *({"sizes": []}, {"sizes": [0.0]}, {"sizes": "0.1"}, {"adapt": -1}, {"stretch": -0.1}),
        *({"share": 0.0}, {"share": 1.5}, {"objective_batch": 0}),
        *({"moves": [1.0]}, {"moves": [1.0, 2.0], "sizes": [1.0]}, {"moves": [-1.0]}),
        {"clip": rt.Quantile()},
        {"clip": rt.Scheduled()},
    ):
        with pytest.raises(OptionError, match=f"{next(iter(changes))} = "):
            rt.DPAGD(batch=30, **changes)
    with pytest.raises(OptionError, match="epsilon = 0"):
        rt.DPAGD(batch=30, choice_epsilon=0)
    with pytest.raises(OptionError, match="objective_batch = 500"):
        rt.DPAGD(batch=30, noise=1.0, objective_batch=500).price(N)
    with pytest.raises(OptionError, match="batch = 500"):
        rt.DPAGD(batch=500, noise=1.0).price(N)
