"""What keeps models apart that are trained at once: noise, failures, ε of all; and refusals."""

import math

import pytest
import torch
from dp_accounting import pld
from torch import nn

import reticent as rt
from reticent.errors import AccountingError, BudgetError, ModelError, OptionError
from reticent.training import many_groups
from reticent.training.besides import Beside
from reticent.training.many import together_epsilon, train_many

from .many_together import BUDGET, WATCHED, agree, at_once, compare, one_by_one, sgd
from .models_together import FLAT, WORDS, Branching, Recurrent, make, mlp, weights
from .test_together_limits import dropout

OWN = {
    "method": rt.DPSGD(batch=12, clip=0.3, noise=0.8),
    "budget": BUDGET,
    "steps": 4,
    "optimizer": sgd(),
}


# -- noise ----------------------------------------------------------------------------------------


def steps_of_noise(coins, **changes):
    """What noise alone does to linear models that start at the same place: [K, P]."""
    models = [nn.Linear(6, 2) for _ in coins]
    for model in models:
        model.load_state_dict({"weight": torch.zeros(2, 6), "bias": torch.zeros(2)})
    method = rt.DPSGD(batch=12, clip=1e-9, noise=1e9)  # nothing else is left of a release
    train_many(
        models, FLAT, method=method, budget=rt.Budget(1, 1e-5), steps=30, device="cpu",
        optimizer=sgd(1.0), coins=coins, how="together", **changes,
    )  # fmt: skip
    return torch.stack([weights(model) for model in models]) * 12 / math.sqrt(30)


def independent(noise):
    """Whether rows look like independent standard normal vectors.

    Of 14 numbers each: correlations of 8 rows in pairs are compared with √14·|ρ| <= 3.7, the
    largest of 28 pairs. A false alarm would need |ρ| > 0.989, with probability below 1e-9 a pair
    (t = ρ√(12/(1 − ρ²)) = 23 with 12 degrees of freedom); the mean square of all 112 lies within
    0.35..2.1 but for less than 1e-6 (χ² with 112 degrees of freedom).
    """
    correlations = torch.corrcoef(noise) - torch.eye(len(noise))
    square = float(noise.square().mean())
    return float(correlations.abs().max()) <= 3.7 / math.sqrt(14) and 0.35 <= square <= 2.1


def test_each_model_has_noise_of_its_own():
    noise = steps_of_noise([rt.Coins.from_seed(k) for k in range(8)])
    assert independent(noise)
    assert independent(steps_of_noise([rt.Coins.fresh() for _ in range(8)]))


def test_shared_noise_would_be_noticed(monkeypatch):
    """The planted fault: all models take the first one's coins for noise."""
    plain = Beside.noised
    first = []

    def shared(self, total):
        first[:] = first or [self.run.coins]
        own, self.run.coins = self.run.coins, first[0]
        try:
            return plain(self, total)
        finally:
            self.run.coins = own

    monkeypatch.setattr(Beside, "noised", shared)
    assert not independent(steps_of_noise([rt.Coins.from_seed(k) for k in range(8)]))
    with pytest.raises(AssertionError):
        compare()


def test_noise_changes_from_release_to_release(monkeypatch):
    """The planted fault: every release has the noise of the first one."""
    plain = rt.Coins.normal

    def stale(self, shape, stream, *counters, **where):
        return plain(self, shape, stream, *(0 for _ in counters), **where)

    monkeypatch.setattr(rt.Coins, "normal", stale)
    assert not independent(steps_of_noise([rt.Coins.from_seed(k) for k in range(8)]))


def test_charges_come_before_the_release(monkeypatch):
    """When noise is drawn, the release it belongs to has been paid for."""
    paid = []
    plain = Beside.noised

    def noised(self, total):
        paid.append(sum(e.count for e in self.run.ledger.entries) - self.run.state.step)
        return plain(self, total)

    monkeypatch.setattr(Beside, "noised", noised)
    at_once(mlp, FLAT, 3, [1, 2, 3], {}, OWN)
    assert paid == [1] * 12


# -- failures -------------------------------------------------------------------------------------


WIDE = rt.DPSGD(batch=12, clip=500.0, noise=0.8)  # with a rate of 1e37, beyond single precision


def test_a_model_that_diverges_does_so_alone():
    method = [OWN["method"], WIDE, OWN["method"]]
    own = {**OWN, "method": method, "optimizer": [sgd(), sgd(1e37), sgd()], "steps": 6}
    together = at_once(mlp, FLAT, 3, [1, 2, 3], {}, own)
    alone = one_by_one(mlp, FLAT, 3, [1, 2, 3], {}, own)
    assert together.diverged == (1,)
    assert not weights(alone[1].model).isfinite().all()
    for k in (0, 2):
        agree(together[k], alone[k])
    assert together[1].epsilon == alone[1].epsilon
    assert together[1].to_json()["ledger"] == alone[1].to_json()["ledger"]


def test_a_diverged_model_is_evaluated_like_any_other():
    own = {**OWN, "method": [WIDE, OWN["method"]], "optimizer": [sgd(1e37), sgd()], "every": 2}
    together = at_once(mlp, FLAT, 2, [1, 2], {"evaluation": WATCHED}, own)
    alone = one_by_one(mlp, FLAT, 2, [1, 2], {"evaluation": WATCHED}, own)
    assert together.diverged == (0,)
    assert together[0].to_json()["metrics"][-1] == alone[0].to_json()["metrics"][-1]
    assert together[0].to_json()["metrics"][-1]["loss"] is None
    agree(together[1], alone[1])


def test_a_failure_half_way_says_so_and_gives_no_result():
    models = [model.eval() for model in make(mlp)]

    def stop(done, planned):
        assert planned == 12
        if done >= 6:
            raise KeyboardInterrupt

    coins = [rt.Coins.fresh() for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        train_many(models, FLAT, **OWN, device="cpu", on_step=stop, coins=coins)
    with pytest.raises(OptionError, match="another run already"):
        train_many(make(mlp), FLAT, **OWN, device="cpu", coins=coins)


def test_progress_counts_all_models():
    seen = []
    train_many(
        make(mlp, 4), FLAT, device="cpu", on_step=lambda *numbers: seen.append(numbers),
        **{**OWN, "steps": [1, 3, 2, 2]},
    )  # fmt: skip
    assert seen == [(4, 8), (7, 8), (8, 8)]


# -- apart ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "data"), [(dropout, FLAT), (Branching, FLAT), (Recurrent, WORDS)]
)
def test_models_that_cannot_be_mapped_go_one_after_the_other(build, data):
    together = at_once(build, data, 2, [1, 2], {}, OWN, how="auto")
    alone = one_by_one(build, data, 2, [1, 2], {}, OWN)
    assert sorted(together.apart) == [0, 1]
    for one, other in zip(together, alone, strict=True):
        agree(one, other, rtol=0, atol=0)
    with pytest.raises(ModelError, match=r"together.*cannot be mapped"):
        at_once(build, data, 2, [1, 2], {}, OWN)


OTHERS = [
    rt.DPSUR(batch=12, clip=0.3, noise=2.0, valid_batch=12, pad=2),
    rt.DPSGD(batch=12, clip=rt.Quantile(initial=0.5, count_noise=5.0), noise=0.8),
    rt.DPSGD(batch=12, clip=rt.gradients.PerLayer(0.5), noise=0.8),
]


@pytest.mark.parametrize("method", OTHERS, ids=["dpsur", "quantile", "per-layer"])
def test_methods_that_go_one_after_the_other(method):
    own = {**OWN, "method": [OWN["method"], method, OWN["method"]], "budget": rt.Budget(300, 1e-4)}
    together = at_once(mlp, FLAT, 3, [1, 2, 3], {}, own, how="auto")
    alone = one_by_one(mlp, FLAT, 3, [1, 2, 3], {}, own)
    assert list(together.apart) == [1]
    for one, other in zip(together, alone, strict=True):
        agree(one, other)
    with pytest.raises(ModelError, match=r"together.*model 1"):
        at_once(mlp, FLAT, 3, [1, 2, 3], {}, own)


def test_optimizers_that_look_at_more_than_a_coordinate_go_alone():
    def groups(params):
        first, *rest = params
        return torch.optim.SGD([{"params": [first]}, {"params": rest, "lr": 0.1}], lr=0.2)

    own = {**OWN, "optimizer": [sgd(), groups, sgd()]}
    together = at_once(mlp, FLAT, 3, [1, 2, 3], {}, own, how="auto")
    alone = one_by_one(mlp, FLAT, 3, [1, 2, 3], {}, own)
    assert list(together.apart) == [1]
    for one, other in zip(together, alone, strict=True):
        agree(one, other)


def test_apart_as_asked_for():
    together = at_once(mlp, FLAT, 2, [1, 2], {}, OWN, how="apart")
    assert together.apart == {0: "as asked for", 1: "as asked for"}
    for one, other in zip(together, one_by_one(mlp, FLAT, 2, [1, 2], {}, OWN), strict=True):
        agree(one, other, rtol=0, atol=0)


# -- ε of all -------------------------------------------------------------------------------------


def test_epsilon_of_all_is_that_of_all_releases():
    results = at_once(
        mlp, FLAT, 3, [1, 2, 3], {},
        {**OWN, "method": [rt.DPSGD(batch=12, clip=0.3, noise=s) for s in (2.0, 3.0, 2.0)]},
    )  # fmt: skip
    found = together_epsilon(results, delta=1e-4)
    losses = [
        pld.privacy_loss_distribution.from_gaussian_mechanism(
            sigma, sampling_prob=12 / 90, use_connect_dots=True, value_discretization_interval=1e-4
        ).self_compose(count)
        for sigma, count in ((2.0, 8), (3.0, 4))
    ]
    exact = losses[0].compose(losses[1]).get_epsilon_for_delta(1e-4)
    assert found == pytest.approx(exact, rel=2e-3)
    assert max(result.epsilon for result in results) < found < sum(r.epsilon for r in results)
    assert together_epsilon(results[:1], 1e-4) == pytest.approx(results[0].ledger.epsilon(1e-4))
    assert together_epsilon(list(results), 1e-4, planned=True) == found
    # of a plain list nobody knows whether later ones were chosen by what earlier ones gave
    shares = [1e-4 / 2, 1e-4 / 6, 1e-4 / 12]
    counts = (losses[0].self_compose(1), 2.0, 4), (losses[1], 3.0, 4), (losses[0], 2.0, 4)
    added = sum(
        pld.privacy_loss_distribution.from_gaussian_mechanism(
            sigma, sampling_prob=12 / 90, use_connect_dots=True, value_discretization_interval=1e-4
        )
        .self_compose(count)
        .get_epsilon_for_delta(share)
        for (_, sigma, count), share in zip(counts, shares, strict=True)
    )
    assert together_epsilon(list(results), 1e-4) == pytest.approx(added, rel=2e-3)
    assert sum(shares) <= 1e-4


def test_trainings_chosen_by_earlier_ones_may_cost_more_than_one_bill_of_all():
    """After a Gaussian release of σ = 6: either one of σ = 4.764, or 50 at rate 1e-4 and σ = 0.4.

    Either bill has ε < 1 at δ = 1e-5. Chosen by what the first release was, the hockey-stick
    divergence at ε = 1 is at least 1.75e-5, found by integrating over the first release: a bound
    of 1 would be wrong. What is stated for trainings that were not planned together is above it.
    """
    from reticent.privacy import Ledger, SampledGaussian
    from reticent.training.result import Result

    def result(charge, count):
        ledger = Ledger()
        ledger.charge(charge, "training", count=count)
        return Result(
            nn.Identity(), ledger, rt.Budget(1, 1e-5), {}, "differential-privacy", count, [], 0.0
        )

    first = result(SampledGaussian(1.0, 6.0), 1)
    for second in (result(SampledGaussian(1.0, 4.764), 1), result(SampledGaussian(1e-4, 0.4), 50)):
        assert together_epsilon([first, second], 1e-5, planned=True) < 1
        assert together_epsilon([first, second], 1e-5) > 1.08


def test_epsilon_of_all_is_infinite_where_one_has_none():
    own = {**OWN, "method": [OWN["method"], rt.SGD(batch=12)], "budget": [BUDGET, None]}
    assert together_epsilon(at_once(mlp, FLAT, 2, [1, 2], {}, own), 1e-4) == math.inf


def test_epsilon_of_all_knows_no_adaptive_charges():
    results = at_once(mlp, FLAT, 2, [1, 2], {}, OWN)
    results[1].ledger.use_filter(8.0)
    charge = rt.DPSGD(batch=12, noise=9.0).price(90)[0][0]
    results[1].ledger.charge(charge, "adaptive", adaptive=True)
    with pytest.raises(AccountingError, match=r"results\[1\]"):
        together_epsilon(results, 1e-4)


# -- refusals -------------------------------------------------------------------------------------


class Told(nn.Module):
    """Looks the same as any other of its kind."""

    def __init__(self, sign):
        super().__init__()
        self.one, self.sign = nn.Linear(6, 2), sign

    def forward(self, x):
        return self.one(x) * self.sign


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"models": []}, OptionError, "models = 0"),
        ({"models": [mlp(), nn.Linear(6, 2)]}, OptionError, r"models\[1\].*another architecture"),
        ({"models": [Told(1), Told(-1)]}, OptionError, r"models\[1\].*another architecture"),
        ({"method": [OWN["method"]] * 2}, OptionError, "method = 2.*3 models"),
        ({"optimizer": [sgd()]}, OptionError, "optimizer = 1.*3 models"),
        ({"budget": [BUDGET] * 4}, OptionError, "budget = 4.*3 models"),
        ({"coins": rt.Coins.from_seed(1)}, OptionError, "coins.*list"),
        ({"ledger": rt.Ledger(BUDGET)}, OptionError, "ledger.*list"),
        ({"ledger": [rt.Ledger(BUDGET)] * 3}, OptionError, "ledger = 3.*different"),
        ({"ledger": [None, None, rt.Ledger()]}, OptionError, "ledger.*another budget"),
        ({"budget": None}, OptionError, "budget = None"),
        ({"budget": [BUDGET, BUDGET, rt.Budget(0.01, 1e-9)]}, BudgetError, "steps = 4"),
        ({"method": rt.SGD(batch=12)}, OptionError, "sgd promises no"),
        ({"method": rt.DPSGD(batch=91, noise=1.0)}, OptionError, "batch = 91"),
        ({"steps": [1, 2, -1]}, OptionError, "steps = -1"),
        ({"epochs": 1}, OptionError, "epochs = 1"),
        ({"average": 1.5}, OptionError, "average = 1.5"),
        ({"every": [1, 0, 1]}, OptionError, "every = 0"),
        ({"config": {"a": object()}}, OptionError, "config"),
        ({"how": "quickly"}, OptionError, "how = 'quickly'"),
        ({"memory": 0}, OptionError, "memory = 0"),
        ({"precision": "half"}, OptionError, "precision = 'half'"),
    ],
)
def test_options_that_cannot_work(changes, error, words):
    options = {**OWN, "models": make(mlp), "device": "cpu", **changes}
    models = [model.eval() for model in options.pop("models")]
    before = [weights(model) for model in models]
    with pytest.raises(error, match=words):
        train_many(models, FLAT, **options)
    assert not any(model.training for model in models)
    assert all(torch.equal(weights(m), b) for m, b in zip(models, before, strict=True))


def test_layers_that_mix_examples_are_refused():
    with pytest.raises(ModelError, match="mix the examples"):
        train_many(
            make(lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 2))), FLAT, device="cpu",
            **OWN,
        )  # fmt: skip


def test_a_model_that_is_not_finite_is_named():
    models = make(mlp)
    with torch.no_grad():
        models[2][0].weight[0, 0] = math.inf
    with pytest.raises(ModelError, match=r"'0.weight' of model 2"):
        train_many(models, FLAT, device="cpu", **OWN)


def test_the_methods_named_are_those_taken():
    assert {kind.name for kind in many_groups.AT_ONCE} == {
        "dpsgd", "sign-sgd", "sign-adam", "noise-decay", "sgd", "dpsur",
    }  # fmt: skip


def test_more_models_than_fit_are_trained_group_by_group(monkeypatch):
    monkeypatch.setattr(many_groups, "MOST_AT_ONCE", 2)
    seen = []
    results = compare(count=5, more={"on_step": lambda *numbers: seen.append(numbers)}, steps=2)
    assert len(results) == 5
    assert seen == [(2, 10), (4, 10), (6, 10), (8, 10), (9, 10), (10, 10)]


def test_models_are_compared_in_the_precision_that_they_train_in():
    """Not in the process's, which leaves other room for rounding."""
    switch = getattr(torch.backends.mkldnn, "matmul", None)
    if switch is None:
        pytest.skip("before torch 2.9 the CPU has no such switch")
    before = switch.fp32_precision
    switch.fp32_precision = "bf16"
    try:
        found = train_many(
            make(mlp, 2), FLAT, method=rt.DPSGD(batch=30, clip=0.3, noise=0.8), steps=1,
            budget=rt.Budget(60, 1e-4), optimizer=sgd(0.1), how="together", device="cpu",
            precision="float32",
        )  # fmt: skip
    finally:
        switch.fp32_precision = before
    assert len(found) == 2
