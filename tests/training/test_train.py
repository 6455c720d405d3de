import math

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

import reticent as rt
from reticent.data import poisson_draw
from reticent.errors import OptionError
from reticent.gradients import Flat, Normalised

from .problem import BUDGET, INPUTS, QUANTILE, TARGETS, N, bare_sgd, model, options, sgd, weights


def test_a_release_is_the_formula_of_the_paper():
    """One example at a time, by hand: clip, sum, add noise, divide by the expected batch."""
    result = rt.train(model(), (INPUTS, TARGETS), **options(steps=3))
    plain, coins = model(), rt.Coins.from_seed(5)
    optimizer = sgd(plain.parameters())
    for step in range(3):
        drawn = poisson_draw(N, 30 / N, coins, "sampling", step, 0)
        size = sum(p.numel() for p in plain.parameters())
        total = torch.zeros(size)
        for i in drawn.tolist():
            plain.zero_grad()
            nn.functional.cross_entropy(plain(INPUTS[i : i + 1]), TARGETS[i : i + 1]).backward()
            gradient = torch.cat([p.grad.flatten() for p in plain.parameters()])
            total += gradient * min(1, 1.0 / float(gradient.norm()))
        noise = coins.normal((size,), "noise", step, 0, dtype=torch.float64).float()
        released = (total + 2.0 * 1.0 * noise) / 30
        start = 0
        for p in plain.parameters():
            p.grad = released[start : start + p.numel()].view(p.shape)
            start += p.numel()
        optimizer.step()
    expected = torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch.testing.assert_close(weights(result), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("microbatch", [1, 7, 1000])
def test_the_physical_batch_does_not_matter(microbatch):
    reference = rt.train(model(), (INPUTS, TARGETS), **options())
    other = rt.train(model(), (INPUTS, TARGETS), **options(microbatch=microbatch))
    torch.testing.assert_close(weights(other), weights(reference), rtol=1e-4, atol=1e-5)


def test_tensors_and_data_sets_give_the_same_run():
    class Pairs(Dataset):
        def __len__(self):
            return N

        def __getitem__(self, index):
            return INPUTS[index], TARGETS[index]

    one = rt.train(model(), (INPUTS, TARGETS), **options())
    other = rt.train(model(), Pairs(), **options())
    assert torch.equal(weights(one), weights(other))


def test_the_budget_is_kept_and_used():
    result = rt.train(model(), (INPUTS, TARGETS), **options(steps=None))
    assert result.epsilon <= 3
    assert result.ledger.entries[0].count == result.steps
    charge = result.ledger.entries[0].charge
    assert rt.Ledger(BUDGET).epsilon_with(((charge, result.steps + 1),)) > 3
    calibrated = rt.train(
        model(), (INPUTS, TARGETS), **options(method=rt.DPSGD(batch=30), steps=20)
    )
    assert 2.97 < calibrated.epsilon <= 3


def test_the_ledger_is_charged_before_the_release():
    seen = []

    class Spy(rt.DPSGD):
        def release(self, run):
            seen.append((run.state.step, run.ledger.entries[0].count))
            super().release(run)

    rt.train(model(), (INPUTS, TARGETS), **options(method=Spy(batch=30, noise=2.0)))
    assert seen == [(step, step + 1) for step in range(8)]


def test_empty_draws_are_ordinary_releases_of_noise():
    # rate 1/120: about a third of the draws are empty
    coins = rt.Coins.from_seed(5)
    empty = [
        step for step in range(12) if len(poisson_draw(N, 1 / N, coins, "sampling", step, 0)) == 0
    ]
    assert empty
    training = rt.run(
        model(),
        (INPUTS, TARGETS),
        **options(
            method=rt.DPSGD(batch=1, noise=2.0),
            steps=12,
            optimizer=bare_sgd,
        ),
    )
    before = training.run.state.parameters.values.clone()
    for release in training:
        after = training.run.state.parameters.values.clone()
        step = release.step - 1
        if step in empty:
            noise = coins.normal(tuple(after.shape), "noise", step, 0, dtype=torch.float64)
            torch.testing.assert_close(before - after, 2.0 * noise.float(), atol=1e-5, rtol=1e-4)
        assert not torch.equal(before, after)
        before = after
    assert training.result().ledger.entries[0].count == 12


@pytest.mark.parametrize(
    "clip", [1.0, Normalised(0.5), QUANTILE], ids=["flat", "normalised", "quantile"]
)
def test_neighbours_differ_only_where_the_extra_record_was_drawn(clip):
    """Replay D and D + {z} with the same coins: up to z's first draw all releases are identical."""
    extra = (torch.cat([INPUTS, 9 * INPUTS[:1]]), torch.cat([TARGETS, 1 - TARGETS[:1]]))
    coins = rt.Coins.from_seed(13)
    took_part = [N in poisson_draw(N + 1, 12 / N, coins, "sampling", step, 0) for step in range(30)]
    first = took_part.index(True)
    assert 2 < first < 28

    def releases(data):
        training = rt.run(
            model(),
            data,
            **options(
                method=rt.DPSGD(batch=12, clip=clip, noise=2.0),
                n=N,
                steps=30,
                coins=coins,
                average=0.9,
                budget=rt.Budget(20, 1e-3),
            ),
        )
        moved = []
        for _ in training:
            state = training.run.state
            moved.append((state.parameters.values.clone(), state.average.values.clone()))
        return moved

    pairs = list(zip(releases((INPUTS, TARGETS)), releases(extra), strict=True))
    same = [all(torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in pairs]
    assert same == [step < first for step in range(30)]


@pytest.mark.parametrize("clip", [1.0, Normalised(0.5)], ids=["flat", "normalised"])
def test_exactly_the_releases_with_the_extra_record_differ(clip):
    """With a learning rate of 0 the state stays the same, so every release can be compared."""
    extra = (torch.cat([INPUTS, 9 * INPUTS[:1]]), torch.cat([TARGETS, 1 - TARGETS[:1]]))
    coins = rt.Coins.from_seed(13)
    took_part = [N in poisson_draw(N + 1, 12 / N, coins, "sampling", step, 0) for step in range(30)]
    assert 2 < sum(took_part) < 10

    def releases(data):
        training = rt.run(
            model(),
            data,
            **options(
                method=rt.DPSGD(batch=12, clip=clip, noise=2.0),
                n=N,
                steps=30,
                coins=coins,
                budget=rt.Budget(20, 1e-3),
                optimizer=lambda p: torch.optim.SGD(p, lr=0.0),
            ),
        )
        return [training.run.state.parameters.flat.grad.clone() for _ in training]

    pairs = list(zip(releases((INPUTS, TARGETS)), releases(extra), strict=True))
    assert [not torch.equal(a, b) for a, b in pairs] == took_part
    largest = max(float((a - b).norm()) for a, b in pairs) * 12
    bound = clip if isinstance(clip, float) else clip.bound
    assert 0.9 * bound < largest <= bound * (1 + 1e-5)


def test_a_release_that_failed_is_not_made_again_with_the_same_coins(tmp_path):
    class Stumbles(rt.DPSGD):
        def release(self, run):
            super().release(run)
            if run.state.step == 3:
                raise KeyboardInterrupt

    training = rt.run(model(), (INPUTS, TARGETS), **options(method=Stumbles(batch=30, noise=2.0)))
    with pytest.raises(KeyboardInterrupt):
        training.finish()
    assert training.run.ledger.entries[0].count == 3
    with pytest.raises(RuntimeError, match="failed half-way"):
        training.finish()
    training._folder = tmp_path
    with pytest.raises(RuntimeError, match="failed half-way"):
        training.checkpoint()


def test_public_seeds_do_not_reach_the_dropout_masks():
    """Drawn in release 0 only, the extra record must not move release 1 through the generator."""
    extra = (torch.cat([INPUTS[:1], INPUTS]), torch.cat([TARGETS[:1], TARGETS]))

    def releases(data, indices, seed=0, **changes):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 16), nn.Dropout(0.5), nn.Linear(16, 2))
        run = rt.run(net, data, **options(n=N, **changes)).run
        torch.manual_seed(seed)
        before, made = torch.get_rng_state(), []
        for step, drawn in enumerate(indices):
            run.state.step = step
            run.begin_release()
            made.append(run.clipped_sum(drawn, Flat(1.0)).flat)
        assert torch.equal(before, torch.get_rng_state())  # nothing of it is left outside
        return made

    drawn = (torch.arange(40), torch.arange(50, 70))
    here = releases((INPUTS, TARGETS), drawn)
    there = releases(extra, (torch.arange(41), torch.arange(51, 71)))
    assert torch.equal(here[1], there[1])
    again = releases((INPUTS, TARGETS), drawn, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(here, again, strict=True))
    other = releases((INPUTS, TARGETS), drawn, coins=rt.Coins.from_seed(6))
    assert not torch.equal(here[0], other[0])
    same_records = releases((INPUTS, TARGETS), (drawn[0], drawn[0]))
    assert not torch.equal(*same_records)  # and each release has its own


def test_stopping_early_pays_for_the_plan():
    def stopped(**how):
        training = rt.run(model(), (INPUTS, TARGETS), **options(steps=8))
        for release in training:
            if release.step == 3:
                break
        return training.result(**how)

    planned = rt.train(model(), (INPUTS, TARGETS), **options(steps=8)).epsilon
    early = stopped()
    assert early.steps == 3
    assert early.epsilon == planned
    assert any("3 of 8 planned" in note for note in early.ledger.notes)
    assert stopped(public_stop=True).epsilon < planned


def test_stopping_early_with_a_shared_ledger_keeps_the_budget():
    ledger = rt.Ledger(BUDGET)
    training = rt.run(model(), (INPUTS, TARGETS), **options(steps=8, ledger=ledger))
    next(iter(training))
    other = rt.privacy.SampledGaussian(1.0, 5.0)
    ledger.charge(other, "something else", count=ledger.capacity(other))
    result = training.result()
    assert result.steps == 1
    assert 2.5 < result.epsilon <= 3


def test_half_precision_parameters_are_summed_in_double():
    net = model().bfloat16()
    training = rt.run(net, (INPUTS.bfloat16(), TARGETS), **options())
    total = training.run.clipped_sum(torch.arange(30), Flat(1.0))
    assert total.flat.dtype == torch.float64
    result = training.finish()
    assert weights(result).dtype == torch.bfloat16
    assert weights(result).isfinite().all()


def test_one_release_differs_by_at_most_the_clip():
    extra = (torch.cat([INPUTS, 50 * INPUTS[:1]]), torch.cat([TARGETS, 1 - TARGETS[:1]]))
    plain = options(
        method=rt.DPSGD(batch=N, clip=0.25, noise=2.0),
        n=N,
        steps=1,
        optimizer=bare_sgd,
        budget=rt.Budget(20, 1e-3),
    )
    one = weights(rt.train(model(), (INPUTS, TARGETS), **plain))
    other = weights(rt.train(model(), extra, **plain))
    assert 0.2 < float((one - other).norm()) * N <= 0.25 * (1 + 1e-3)  # rounding of the division


def test_nominal_size_sets_the_rate():
    result = rt.train(model(), (INPUTS, TARGETS), **options(n=200))
    assert result.ledger.entries[0].charge.rate == 30 / 200
    assert not any("size as public" in note for note in result.ledger.notes)
    other = rt.train(model(), (INPUTS, TARGETS), **options())
    assert any("size as public" in note for note in other.ledger.notes)
    assert any("stated seed" in note for note in other.ledger.notes)
    fresh = rt.train(model(), (INPUTS, TARGETS), **options(coins=None))
    assert not any("stated seed" in note for note in fresh.ledger.notes)


def test_fresh_coins_make_different_runs():
    runs = [rt.train(model(), (INPUTS, TARGETS), **options(coins=None)) for _ in range(2)]
    assert not torch.equal(weights(runs[0]), weights(runs[1]))


def test_schedulers_averages_and_evaluations():
    seen = []

    def evaluation(net):
        seen.append(torch.cat([p.detach().flatten() for p in net.parameters()]).clone())
        return {"accuracy": 0.5}

    training = rt.run(
        model(),
        (INPUTS, TARGETS),
        **options(
            scheduler=lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
            average=0.9,
            evaluation=evaluation,
            every=3,
        ),
    )
    current = None
    for _ in training:
        current = training.run.state.parameters.values.clone()
    average = training.run.state.average.values.clone()
    assert training.run.state.optimizer.param_groups[0]["lr"] == pytest.approx(0.3 / 16)
    result = training.result()
    assert [m["step"] for m in result.metrics] == [3, 6, 8]
    assert torch.equal(weights(result), average)
    assert torch.equal(seen[-1], average)
    assert not torch.equal(average, current)
    assert result.accuracy == 0.5
    with pytest.raises(RuntimeError, match="finished"):
        next(iter(training))


def test_no_noise_no_guarantee():
    result = rt.train(
        model(), (INPUTS, TARGETS), **options(method=rt.DPSGD(batch=30, noise=0), budget=None)
    )
    assert result.epsilon == math.inf
    assert result.to_json()["guarantee"] == "none"
    assert result.to_json()["statement"]["epsilon"] is None


def test_zero_steps_spend_nothing():
    result = rt.train(model(), (INPUTS, TARGETS), **options(steps=0))
    assert result.epsilon == 0
    assert torch.equal(weights(result), torch.cat([p.flatten() for p in model().parameters()]))


def test_an_unlucky_record_contributes_nothing():
    class Fragile(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model()

        def forward(self, x):
            return self.inner(x) / (x[:, :1] != 7.0)  # a division by zero for one record

    broken = INPUTS.clone()
    broken[3, 0] = 7.0
    method = rt.DPSGD(batch=N, noise=2.0)
    result = rt.train(Fragile(), (broken, TARGETS), **options(method=method, steps=3))
    assert weights(result).isfinite().all()


def test_charges_paid_before_count_against_the_budget():
    ledger = rt.Ledger(BUDGET, planned=True)
    ledger.charge(rt.privacy.SampledGaussian(1.0, 3.0), "normalisation")
    result = rt.train(
        model(), (INPUTS, TARGETS), **options(method=rt.DPSGD(batch=30), ledger=ledger)
    )
    assert [entry.purpose for entry in result.ledger.entries] == ["normalisation", "training"]
    assert result.epsilon <= 3
    alone = rt.train(model(), (INPUTS, TARGETS), **options(method=rt.DPSGD(batch=30)))
    assert result.method["noise"] > alone.method["noise"]
    with pytest.raises(OptionError, match="another budget"):
        rt.train(model(), (INPUTS, TARGETS), **options(ledger=rt.Ledger(rt.Budget(1, 1e-5))))


def test_nothing_of_the_run_stays_on_the_model():
    net = model()
    result = rt.train(net, (INPUTS, TARGETS), **options())
    assert result.model is net
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    storages = {p.untyped_storage().data_ptr() for p in net.parameters()}
    assert len(storages) == 4


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_trains_too(tmp_path):
    result = rt.train(
        model(), (INPUTS, TARGETS), **options(device="cuda", folder=tmp_path, average=0.9)
    )
    assert result.epsilon <= 3
    assert next(result.model.parameters()).is_cuda


def test_metrics_that_are_tensors_or_infinite_are_kept(tmp_path):
    result = rt.train(
        model(),
        (INPUTS, TARGETS),
        **options(evaluation=lambda net: {"x": torch.tensor(math.inf)}, folder=tmp_path),
    )
    assert result.metrics[-1]["x"] == math.inf
    assert rt.training.read_run(tmp_path)["metrics"][-1]["x"] is None
