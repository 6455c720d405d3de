"""DPIS: draws, estimates, charges and what it keeps, against enumeration and integration."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import BudgetError
from reticent.methods.importance import Iterations, noise_within, sum_charge
from reticent.privacy import SampledGaussian
from reticent.training.run import Run

from .dpis_problem import BUDGET, INPUTS, QUIET, TARGETS, N, network, started


def gradients(model):
    """One example's gradient at a time."""
    found = []
    for x, y in zip(INPUTS, TARGETS, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    model.zero_grad()
    return torch.stack(found)


class Told:
    """A run whose coins are told, and whose releases are seen before noise."""

    def __init__(self, method, reach, total, size, clip, noise=1.0):
        training = started(method)
        self.run, self.method = training.run, training.method
        self.run.state.public.update(
            {"size": size, "clip": clip, "sum": total, "noise": noise, "epochs": []}
        )
        self.reach = torch.as_tensor(reach, dtype=torch.float64)
        self.coins = {}
        self.seen = []
        self.run.flips = lambda stream: self.coins[stream]
        self.run.pay = lambda charge, purpose: self.seen.append(charge)
        self.run.noisy = self._noisy
        self.run.step = lambda gradient: None

    def _noisy(self, total, multiplier, stream="noise"):
        self.sensitivity, self.multiplier = total.sensitivity, multiplier
        self.sum = total.flat.clone()
        return total.flat

    def iterate(self, first, second):
        """One iteration with these coins: the sum over those kept, divided by b."""
        self.run.begin_release()
        self.coins = {"sampling": first, "acceptance": second}
        self.run.private["reach"] = self.reach.clone()
        self.method._iterate(self.run)
        return self.sum / self.method.batch

    def probability(self, i):
        """How often record i is kept, found from what its coins do."""
        q = self.highest(i, "sampling")
        return q * self.highest(i, "acceptance")

    def highest(self, i, stream):
        low, high = 0.0, 1.0
        for _ in range(36):
            middle = (low + high) / 2
            coins = {s: torch.full((N,), 1 - 2.0**-53) for s in ("sampling", "acceptance")}
            coins = {s: c.double() for s, c in coins.items()}
            coins["sampling"][i] = coins["acceptance"][i] = 0.0
            coins[stream][i] = middle
            kept = bool(self.iterate(coins["sampling"], coins["acceptance"]).abs().sum() > 0)
            low, high = (middle, high) if kept else (low, middle)
        return low


SETTINGS = [  # (k, least, clip, total as a share of size·clip, growth of the norms since)
    (2.0, 0.01, 1.0, 0.6, 1.0),
    (2.0, 0.5, 0.5, 0.9, 0.4),
    (3.0, 0.1, 4.0, 0.5, 1.7),
    (3.0, 1.0, 2.0, 1.0, 5.0),
    (1.0, 0.2, 0.3, 1 / 6, 0.1),  # K̃ at its lower clamp
]


def told(k, least, clip, share, growth):
    method = rt.DPIS(batch=1, clip=clip, k=k, least=least, **QUIET)
    size = 6.5
    total = max(share * size * clip, k * clip)
    norms = gradients(network()).norm(dim=1)
    reach = k * (norms / growth).clamp(max=clip).clamp(min=least * clip)
    return Told(method, reach, total, size, clip), norms, reach, total, size


@pytest.mark.parametrize("setting", SETTINGS)
def test_how_often_a_record_is_kept_and_what_it_then_gives(setting):
    case, norms, reach, total, size = told(*setting)
    clip = setting[2]
    grads = gradients(network())
    clipped = torch.minimum(norms, torch.minimum(reach, torch.tensor(clip)))  # ‖ḡ‖
    for i in range(N):
        # Equation 15: b‖ḡ‖/K̃, never more than b·C/K̃
        assert case.probability(i) == pytest.approx(float(clipped[i]) / total, rel=1e-9)
        first = torch.ones(N, dtype=torch.float64) - 2.0**-53
        second = first.clone()
        first[i] = second[i] = 0.0
        given = case.iterate(first, second)
        wanted = total / (size * 1) * grads[i] / norms[i]  # ḡ/(Ñ·q·p)
        torch.testing.assert_close(given, wanted, rtol=1e-9, atol=1e-12)
        assert case.sensitivity == pytest.approx(total / size)


@pytest.mark.parametrize("setting", SETTINGS)
def test_norms_are_remembered_of_those_drawn_kept_or_not(setting):
    k, least, clip, *_ = setting
    case, norms, reach, *_ = told(*setting)
    first = torch.tensor([0.0, 1.0] * 3, dtype=torch.float64).clamp(max=1 - 2.0**-53)
    case.iterate(first, torch.full((N,), 1 - 2.0**-53, dtype=torch.float64))  # hardly anyone kept
    drawn = first < (reach * 1 / case.run.state.public["sum"])
    assert drawn[0]
    assert not drawn.all()
    seen = torch.minimum(norms, reach).clamp(max=clip).clamp(min=least * clip) * k
    wanted = torch.where(drawn, seen, reach)
    torch.testing.assert_close(case.run.private["reach"], wanted, rtol=1e-9, atol=0)


@pytest.mark.parametrize("setting", SETTINGS[:3])
def test_the_estimate_is_unbiased(setting):
    # every outcome of the draw, with its probability (Equation 8)
    case, norms, reach, _, size = told(*setting)
    grads = gradients(network())
    clipped = torch.minimum(norms, torch.minimum(reach, torch.tensor(setting[2])))
    often = [case.probability(i) for i in range(N)]
    mean = torch.zeros(grads.shape[1], dtype=torch.float64)
    for kept in itertools.product((0, 1), repeat=N):
        coins = 1 - torch.tensor(kept, dtype=torch.float64) * 1.0
        coins = coins.clamp(max=1 - 2.0**-53)
        chance = math.prod(p if k else 1 - p for p, k in zip(often, kept, strict=True))
        mean += chance * case.iterate(coins, coins)
    wanted = (grads / norms[:, None] * clipped[:, None]).sum(0) / size
    torch.testing.assert_close(mean, wanted, rtol=1e-8, atol=1e-10)


def renyi(rate, multiplier, order):
    """Both directions of the sampled Gaussian by integration, the larger."""
    x = np.linspace(-14 * multiplier - order, 14 * multiplier + order + 1, 200_001)
    base = -((x / multiplier) ** 2) / 2
    ratio = np.log1p(rate * np.expm1((2 * x - 1) / (2 * multiplier**2)))
    scale = multiplier * math.sqrt(2 * math.pi)
    there = np.trapezoid(np.exp(base + order * ratio), x) / scale
    back = np.trapezoid(np.exp(base + (1 - order) * ratio), x) / scale
    return max(math.log(there), math.log(back)) / (order - 1)


@pytest.mark.parametrize("setting", SETTINGS)
def test_no_record_costs_more_than_is_charged(setting):
    case, *_ = told(*setting)
    likely = max(case.probability(i) for i in range(N))
    assert likely <= setting[2] / told(*setting)[3]
    for noise in (0.7, 2.0):
        case.run.state.public["noise"] = noise
        for often in (likely, likely / 3):
            case.seen.clear()
            case.iterate(torch.zeros(N).double(), torch.zeros(N).double())
            (charge,) = case.seen
            # noise of σ_G·C/b on an estimate that one record moves by K̃/(Ñb)
            assert case.multiplier * case.sensitivity == pytest.approx(noise * setting[2])
            multiplier = case.multiplier
            assert multiplier == charge.multiplier
            for order in (2.0, 5.0, 12.0):
                assert renyi(often, multiplier, order) <= charge.rdp((order,))[0] * (1 + 1e-6)


def test_no_record_costs_more_than_is_charged_at_random():
    # K̃ before its clamps, k, g_L, C and the norms at random; rates and divergences, worst record
    random = np.random.default_rng(0)
    for _ in range(150):
        k, clip, least = random.uniform(1, 6), 10 ** random.uniform(-2, 2), random.uniform(0.01, 1)
        batch = int(random.integers(1, 40))
        method = rt.DPIS(batch=batch, clip=clip, k=k, least=least, **QUIET)
        size = k * batch * random.uniform(1, 30)
        total = method.clamped(random.normal() * 2 * size * clip, clip, size)
        seen, now = torch.as_tensor(random.lognormal(0, 3, (2, 50))) * clip
        reach = method._reach(seen, clip)
        q = reach * batch / total
        assert float(q.max()) <= 1 + 1e-12
        p = torch.minimum(now, reach.clamp(max=clip)) / reach
        often = float((q * p).max())
        one = Iterations(1, batch / size, total / (size * clip)).charge(random.uniform(0.6, 3))
        assert often <= one.rate
        for order in (2.0, 7.0):
            if one.multiplier < 30:  # beyond, both are nothing
                known = renyi(min(often, 1.0), one.multiplier, order)
                assert known <= one.rdp((order,))[0] * (1 + 1e-6) + 1e-9


def test_with_the_largest_sum_it_costs_what_dpsgd_costs():
    plain = SampledGaussian(0.01, 1.3)
    one = Iterations(1, 0.01, 1.0).charge(1.3)
    assert one.multiplier == plain.multiplier
    assert one.rate == pytest.approx(plain.rate, rel=1e-8)
    # and less, with a smaller sum at the same noise
    for share in (0.9, 0.5, 0.2):
        less = Iterations(1, 0.01, share).charge(1.3)
        assert (less.rdp((2.0, 8.0, 32.0)) < plain.rdp((2.0, 8.0, 32.0))).all()


def test_noise_uses_up_the_room_and_no_more():
    plan = [Iterations(40, 0.02, 0.6), Iterations(100, 0.02, 1.0)]
    for room in (0.01, 0.3, 5.0):
        noise = noise_within(room, 9.0, plan)
        spent = sum(i.count * float(i.charge(noise).rdp((9.0,))[0]) for i in plan)
        assert room * (1 - 1e-4) < spent <= room
    with pytest.raises(BudgetError, match="no further iteration"):
        noise_within(-1.0, 9.0, plan)


def test_the_sum_of_norms_is_charged_with_its_own_sensitivity(monkeypatch):
    # scaled up by 1/p_K, the sum moves by C/p_K: against σ_K·C the multiplier is σ_K·p_K
    assert sum_charge(0.25, 8.0) == SampledGaussian(0.25, 2.0)
    seen = {}
    noisy = Run.noisy

    def spy(self, total, multiplier, stream="noise"):
        seen.setdefault(stream, []).append((total.sensitivity, multiplier, total.flat.clone()))
        return noisy(self, total, multiplier, stream)

    monkeypatch.setattr(Run, "noisy", spy)
    method = rt.DPIS(
        batch=1,
        clip=0.7,
        k=2.0,
        sum_noise=8.0,
        sum_rate=1.0,
        count_noise=3.0,
        adapt=True,
        outer=2.0,
    )
    training = started(method, steps=13, budget=rt.Budget(20, 1e-3))
    result = training.finish()
    norms = gradients(network()).norm(dim=1)
    sensitivity, multiplier, total = seen["sum-noise"][0]
    assert (sensitivity, multiplier) == (0.7, 8.0)
    assert float(total) == pytest.approx(float(norms.clamp(max=0.7).sum()))
    # line 28 of Algorithm 1: all records, no amplification
    assert [s[:2] for s in seen["outer-noise"]] == [(2.0, 8.0)] * 2
    assert seen["count-noise"][0][:2] == (1.0, 3.0)
    paid = {(e.purpose, e.charge): e.count for e in result.ledger.entries}
    assert paid["number of records", SampledGaussian(1.0, 3.0)] == 1
    assert paid["sum of norms", SampledGaussian(1.0, 8.0)] == 3 + 2
    trained = [(e.charge, e.count) for e in result.ledger.entries if e.purpose == "training"]
    assert sum(count for _, count in trained) == 13
    # the noise drawn is the noise charged
    charged = [charge.multiplier for charge, count in trained for _ in range(count)]
    assert [s[1] for s in seen["noise"]] == charged


def test_clamps_and_the_filter_hold_whatever_comes_out():
    for seed in range(8):
        method = rt.DPIS(
            batch=2, clip=1.0, k=2.0, sum_noise=9.0, count_noise=4.0, adapt=True, quantile=0.1
        )
        training = started(method, steps=12, coins=rt.Coins.from_seed(seed))
        result = training.finish()
        released = result.released
        assert released["size"] >= 4.0
        for line in released["epochs"]:
            assert 4.0 * line["clip"] <= line["sum"] <= released["size"] * line["clip"]
            assert 0.01 <= line["clip"] <= 4.0
        assert result.epsilon == BUDGET.epsilon
        assert result.ledger.divergence_left() >= 0
        assert result.statement.accountant == "filter"


def test_the_budget_saved_is_spent_in_the_second_phase():
    torch.manual_seed(0)
    x = torch.randn(400, 3)
    y = (x[:, 0] > 0).long()
    noises = {}
    for divider in (0.0, 0.5, 1.0):
        method = rt.DPIS(
            batch=10,
            clip=1.0,
            k=2.0,
            divider=divider,
            sum_rate=1.0,
            sum_noise=20.0,
            count_noise=0.0,
        )
        training = rt.run(
            nn.Linear(3, 2), (x, y), method=method, budget=rt.Budget(4, 1e-4), steps=200,
            optimizer=lambda p: torch.optim.SGD(p, lr=0.5), coins=rt.Coins.from_seed(3),
            device="cpu",
        )  # fmt: skip
        planned = training.method.noise
        result = training.finish()
        noises[divider] = [line["noise"] for line in result.released["epochs"]]
        assert max(noises[divider]) <= planned * (1 + 1e-6)  # never more than the worst case
    saving, spending = noises[0.5][:3], noises[0.5][3:]
    assert len(noises[0.5]) == 5
    assert max(spending) < min(saving)
    assert noises[0.0][1] < noises[0.5][1]


def test_a_resumed_run_goes_on_with_what_it_remembered_of_records(tmp_path):
    method = rt.DPIS(batch=1, clip=1.0, k=2.0, **QUIET)
    whole = started(method, steps=9).finish()
    training = started(method, steps=9, folder=tmp_path, coins=rt.Coins.from_seed(5))
    for release in training:
        if release.step == 4:  # in the middle of an epoch
            training.checkpoint()
            break
    resumed = started(method, steps=9, folder=tmp_path, resume=True, coins=None)
    result = resumed.finish()
    for a, b in zip(whole.model.parameters(), result.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert result.released == whole.released
    assert "reach" not in (tmp_path / "run.json").read_text()


@pytest.mark.parametrize("value", [1e200, 1e308])
def test_records_without_a_finite_gradient_give_nothing(value):
    broken = INPUTS.clone()
    broken[2] = value
    training = started(rt.DPIS(batch=2, clip=1.0, k=2.0, **QUIET), data=(broken, TARGETS), steps=6)
    result = training.finish()
    assert all(torch.isfinite(p).all() for p in result.model.parameters())
