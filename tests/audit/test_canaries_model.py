"""Canaries in gradient space and in input space, and the scores that look for them."""

import math

import pytest
import torch
from scipy.stats import norm
from sklearn.metrics import roc_auc_score
from torch import nn

import reticent as rt
from reticent import gradients
from reticent.audit.canaries_model import (
    SCALE,
    CanaryLoss,
    WithCanaries,
    fair_coins,
    mislabelled,
    plant_gradients,
    plant_inputs,
    tensor_records,
)
from reticent.audit.scores import (
    AlignmentWatch,
    Charges,
    TraceWatch,
    checked_guesses,
    likelihood_ratio,
    losses_of,
    outcomes,
    sampled_gaussian,
    separation,
)
from reticent.privacy import Ledger, SampledGaussian, SampledPure, SelectiveGaussian

COINS = rt.Coins.from_seed(3)
INPUTS = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
TARGETS = torch.arange(30) % 3


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def planted(canaries=6, included=None):
    if included is None:
        included = torch.arange(canaries) % 2 == 0
    records = tensor_records((INPUTS, TARGETS))
    return plant_gradients(network(), nn.CrossEntropyLoss(), records, included)


def test_a_canary_moves_its_own_number_by_the_bound_and_nothing_else():
    made = planted()
    inputs, targets = made.canaries
    for path in ("fast", "reference"):
        total = gradients.clipped_sum(
            made.model,
            made.loss_fn,
            (inputs[0][2:3], inputs[1][2:3]),
            (targets[0][2:3], targets[1][2:3]),
            0.7,
            path=path,
        )
        assert total.norms.tolist() == [SCALE]
        assert total.losses.tolist() == [0]
        found = dict(total.grads)
        trace = found.pop("traces.weight").flatten()
        assert trace[3] == pytest.approx(0.7, rel=1e-4)
        trace[3] = 0
        assert all(not part.any() for part in (trace, *found.values()))


def test_ordinary_records_are_as_without_canaries():
    made, plain = planted(), network()
    ids = torch.zeros(30, dtype=torch.long)
    with torch.no_grad():
        made.model.traces.weight.fill_(5.0)
    for loss_fn in (nn.CrossEntropyLoss(), nn.CrossEntropyLoss(reduction="sum")):
        wanted = gradients.clipped_sum(plain, loss_fn, INPUTS, TARGETS, 0.5)
        found = gradients.clipped_sum(
            made.model, CanaryLoss(loss_fn), (INPUTS, ids), (TARGETS, ids), 0.5
        )
        assert torch.allclose(found.norms, wanted.norms, rtol=1e-5)
        assert torch.allclose(found.losses, wanted.losses, rtol=1e-5)
        assert not found.grads["traces.weight"].any()
        for name, part in wanted.grads.items():
            assert torch.allclose(found.grads[f"inner.{name}"], part, atol=1e-5)


def test_the_loss_of_a_canary_is_0_wherever_its_number_is():
    made = planted()
    with torch.no_grad():
        made.model.traces.weight.fill_(-3.25)
    assert losses_of(made.model, made.loss_fn, made.canaries).tolist() == [0.0] * 6


def test_only_included_canaries_are_among_the_records():
    included = torch.tensor([False, True, True, False])
    made = planted(4, included)
    (inputs, ids), (targets, again) = made.data
    assert ids.tolist() == [0] * 30 + [2, 3]
    assert torch.equal(ids, again)
    assert torch.equal(inputs[:30], INPUTS)
    assert torch.equal(targets[:30], TARGETS)
    assert made.canaries[0][1].tolist() == [1, 2, 3, 4]


def test_records_may_be_trees():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, first, second):
            return self.linear(first + second)

    for inputs in ((INPUTS, INPUTS), {"first": INPUTS, "second": INPUTS}):
        made = plant_gradients(
            Two(), nn.CrossEntropyLoss(), tensor_records((inputs, TARGETS)), torch.ones(3).bool()
        )
        total = gradients.clipped_sum(made.model, made.loss_fn, *made.data, 1.0)
        assert total.norms[-3:].tolist() == [SCALE] * 3


def test_any_data_set_can_be_audited():
    pairs = torch.utils.data.TensorDataset(INPUTS, TARGETS)
    listed = [pairs[i] for i in range(30)]

    class Listed(torch.utils.data.Dataset):
        def __len__(self):
            return 30

        def __getitem__(self, index):
            return listed[index]

    for data in (pairs, Listed()):
        records = tensor_records(data)
        assert torch.equal(records.inputs, INPUTS)
        assert torch.equal(records.targets, TARGETS)


def test_inclusion_is_by_fair_coins():
    # a fair coin gives less than 4500 or more than 5500 of 10000 with probability below 1e-22
    included = fair_coins(10_000, COINS)
    assert 4500 < int(included.sum()) < 5500
    assert not torch.equal(included, fair_coins(10_000, rt.Coins.from_seed(4)))


def test_mislabelled_canaries_are_taken_out_of_the_records():
    left, (inputs, wrong) = mislabelled(network(), tensor_records((INPUTS, TARGETS)), 12, COINS)
    assert left.n == 18
    everyone = torch.cat([left.inputs, inputs])
    assert torch.equal(everyone.sort(0).values, INPUTS.sort(0).values)
    for row, label in zip(inputs, wrong, strict=True):
        was = int(TARGETS[(row == INPUTS).all(1)])
        assert int(label) != was
        assert 0 <= int(label) < 3
    for row, label in zip(left.inputs, left.targets, strict=True):
        assert int(TARGETS[(row == INPUTS).all(1)]) == int(label)


def test_labels_that_cannot_be_wrong_are_refused():
    float_targets = tensor_records((INPUTS, TARGETS.float()))
    for records, model in (
        (float_targets, network()),
        (tensor_records((INPUTS, TARGETS)), nn.Linear(4, 1)),
    ):
        with pytest.raises(rt.DataError, match="give the canaries"):
            mislabelled(model, records, 5, COINS)
    with pytest.raises(rt.OptionError, match="canaries"):
        mislabelled(network(), tensor_records((INPUTS, TARGETS)), 30, COINS)
    with pytest.raises(rt.DataError, match="5 canaries"):
        plant_inputs(
            network(), None, float_targets, torch.ones(4).bool(), (INPUTS[:5], TARGETS[:5])
        )


# -- scores -----------------------------------------------------------------------------------


def test_the_likelihood_ratio_is_that_of_the_densities():
    rate, noise, unit = 0.3, 0.9, 0.02
    generator = torch.Generator().manual_seed(0)
    took = torch.rand(200_000, generator=generator) < rate / 2
    x = took + noise * torch.randn(200_000, generator=generator, dtype=torch.float64)
    found = likelihood_ratio(unit * x, rate, noise)
    x = x.numpy()
    inside = (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise)
    wanted = torch.log(torch.from_numpy(inside / norm.pdf(x, 0, noise)))
    # the unit is estimated, from 200,000 moves to about 0.2 %
    assert torch.allclose(found, wanted, atol=0.05)
    full = likelihood_ratio(unit * torch.from_numpy(x), 1.0, noise)
    assert bool(full.isfinite().all())
    assert torch.equal(full.argsort(), torch.from_numpy(x).argsort())


def test_the_least_noise_speaks_for_a_release():
    charges = [SampledGaussian(1.0, 50.0), SampledPure(0.5, 0.1), SampledGaussian(0.2, 3.0)]
    assert sampled_gaussian(charges) == (0.2, 3.0)
    assert sampled_gaussian([SelectiveGaussian(0.2, 3.0, 0.1, 1.3, -1.0, 400)]) == (0.2, 3.0)
    assert sampled_gaussian([SampledPure(0.5, 0.1)]) is None


def test_charges_of_a_release_are_what_the_ledger_gained():
    ledger, one, two = Ledger(), SampledGaussian(0.1, 1.0), SampledGaussian(0.1, 2.0)
    ledger.charge(one, "before")
    charges = Charges(ledger)
    assert charges.since(ledger) == []
    ledger.charge(one, "training")
    assert charges.since(ledger) == [one]
    ledger.charge(one, "training")
    ledger.charge(two, "training")
    assert charges.since(ledger) == [one, two]
    assert charges.since(ledger) == []


def test_a_watch_adds_up_what_the_releases_say():
    made = planted(4)
    watch = TraceWatch(made.model.traces)
    moves = torch.tensor([[0.3, 0.0, 0.2, -0.1], [0.1, -0.2, 0.4, 0.0]], dtype=torch.float64)
    wanted = torch.zeros(4, dtype=torch.float64)
    for charge, move in zip(
        ([SampledGaussian(0.5, 2.0)], [SampledGaussian(0.9, 1.0)]), moves, strict=True
    ):
        with torch.no_grad():
            made.model.traces.weight[1:, 0] -= move.float()
        watch.release(charge)
        wanted += likelihood_ratio(move, charge[0].rate, charge[0].multiplier)
    assert torch.allclose(watch.scores, wanted, rtol=1e-4)
    assert watch.log_odds
    watch.release([SampledGaussian(0.5, 2.0)])  # nothing moved
    assert torch.allclose(watch.scores, wanted, rtol=1e-4)
    with torch.no_grad():
        made.model.traces.weight[1:, 0] -= moves[0].float()
    watch.release([])
    assert torch.allclose(watch.scores, wanted + moves[0] / moves[0].std(), rtol=1e-4)
    assert not watch.log_odds


def test_alignments_are_products_with_the_gradients_before_the_step():
    model, loss_fn = network(), nn.CrossEntropyLoss()
    watch = AlignmentWatch(model, loss_fn, (INPUTS[:7], TARGETS[:7]))
    wanted = torch.zeros(7, dtype=torch.float64)
    for _ in range(2):
        steps = [0.1 * torch.randn_like(p) for p in model.parameters()]
        for i in range(7):
            found = torch.autograd.grad(
                loss_fn(model(INPUTS[i : i + 1]), TARGETS[i : i + 1]), list(model.parameters())
            )
            flat = torch.cat([g.flatten() for g in found])
            step = torch.cat([s.flatten() for s in steps])
            wanted[i] -= float(step @ flat / flat.norm())
        with torch.no_grad():
            for parameter, step in zip(model.parameters(), steps, strict=True):
                parameter += step
        watch.release([])
    assert torch.allclose(watch.scores, wanted, atol=1e-5)


def test_guesses_are_counted_as_by_hand():
    scores = torch.tensor([5.0, -4.0, 3.0, 2.0, -1.0, 0.5], dtype=torch.float64)
    included = torch.tensor([True, True, False, True, False, False])
    # highest: 5 (in), 3 (out), 2 (in); lowest: -4 (in), -1 (out), 0.5 (out)
    extremes = outcomes(scores, included, (2, 4, 6), COINS)
    assert [o.correct for o in extremes] == [1, 2, 4]
    # from the (lower) median 0.5: 4.5 right, -4.5 wrong, 2.5 wrong, 1.5 right, -1.5 right, 0 right
    clearest = outcomes(scores, included, (2, 4, 6), COINS, log_odds=True)
    assert [o.correct for o in clearest] == [1, 2, 4]
    assert [(o.canaries, o.guesses) for o in clearest] == [(6, 2), (6, 4), (6, 6)]


def test_ties_and_missing_scores_tell_nothing():
    # all scores equal: right guesses are those of a fair coin, outside 4400..5600 of 10,000 with
    # probability below 1e-30
    included = torch.arange(20_000) < 10_000
    for value in (0.0, math.nan):
        scores = torch.full((20_000,), value, dtype=torch.float64)
        for log_odds in (False, True):
            (found,) = outcomes(scores, included, (10_000,), COINS, log_odds=log_odds)
            assert 4400 < found.correct < 5600


def test_separation_is_the_area_under_the_curve():
    generator = torch.Generator().manual_seed(2)
    scores = torch.randint(0, 9, (200,), generator=generator).double()
    included = torch.rand(200, generator=generator) < 0.5
    found = separation(scores, included)
    assert found["auc"] == pytest.approx(roc_auc_score(included, scores))
    assert found["mean_in"] == pytest.approx(float(scores[included].mean()))
    assert separation(scores, torch.ones(200).bool())["auc"] is None


def test_numbers_of_guesses():
    assert checked_guesses(None, 40) == (32,)
    assert checked_guesses(None, 5) == (4,)
    assert checked_guesses(10, 20) == (10,)
    assert checked_guesses((4, 8), 20) == (4, 8)
    for bad in (3, 0, 22, (), (4, 4), 2.5):
        with pytest.raises(rt.OptionError, match="guesses"):
            checked_guesses(bad, 20)


def test_one_number_more_for_each_canary():
    model = WithCanaries(network(), 9)
    assert model.traces.weight.shape == (10, 1)
    assert not model.traces.weight.any()
    with pytest.raises(rt.OptionError, match="canaries"):
        WithCanaries(network(), 0)
