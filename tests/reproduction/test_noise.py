"""Noise by epoch: against dp-accounting, the methods' own calibration, and a training."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from dp_accounting import dp_event, pld, rdp
from scipy.integrate import quad

from reticent.cli.settings import Settings
from reticent.errors import OptionError
from reticent.methods import DPIS, DPSGD, NoiseDecay
from reticent.privacy import Budget, Ledger
from reticent.reproduction.noise import compute, importance_noise, planned_noise
from reticent.reproduction.tables import load

N, BATCH, STEPS, DELTA = 60_000, 2048, 87, 1e-5
MNIST = Settings(data="mnist", batch=BATCH, epsilon=3.0, delta=DELTA, steps=STEPS)


@cache
def tight() -> dict[str, float | list[float]]:
    return compute(MNIST, {}, "cpu")


def event(plan: list[tuple[float, int]], rate: float) -> dp_event.DpEvent:
    return dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), count
            )
            for noise, count in plan
        ]
    )


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_dpsgd_keeps_the_budget_by_dp_accounting(accountant: str) -> None:
    found = compute(MNIST, {"accountant": accountant}, "cpu")
    noise = found["first"]
    assert isinstance(noise, float)
    assert found["noise"] == [noise] * 3  # epochs of 29 releases
    assert found["last"] == noise
    make: Any = rdp.RdpAccountant if accountant == "rdp" else pld.PLDAccountant
    spent = []
    for factor in (1.0, 0.99):
        counted = make()
        counted.compose(event([(factor * noise, STEPS)], BATCH / N))
        spent.append(counted.get_epsilon(DELTA))
    # to the accountants' own grids, and no looser than a hundredth of the noise
    assert spent[0] <= 3.0 * 1.003
    assert spent[1] > 3.0


def test_default_is_the_methods_calibration() -> None:
    calibrated = DPSGD(batch=BATCH).calibrated(Budget(3.0, DELTA), N, STEPS, Ledger())
    assert tight()["first"] == calibrated.noise
    assert compute(replace(MNIST, method="sign-sgd"), {}, "cpu") == tight()


def test_accountants_differ_as_they_should() -> None:
    by_rdp = compute(MNIST, {"accountant": "rdp"}, "cpu")["first"]
    assert float(tight()["first"]) < float(by_rdp)  # type: ignore[arg-type]


def test_length_and_size_count() -> None:
    def by_rdp(**changes: Any) -> float:
        found = compute(replace(MNIST, **changes), {"accountant": "rdp"}, "cpu")
        return float(found["first"])  # type: ignore[arg-type]

    assert by_rdp(steps=None, epochs=STEPS * BATCH / N) == by_rdp()
    assert by_rdp(n=30_000) > 1.3 * by_rdp()  # at twice the rate


def test_decay_falls_and_keeps_the_budget() -> None:
    method = NoiseDecay(batch=BATCH, rate=0.1)
    found = planned_noise(method, Budget(3.0, DELTA), N, STEPS, "rdp")
    assert found == pytest.approx([found[0] * math.exp(-0.1 * epoch) for epoch in range(3)])
    spent = []
    for factor in (1.0, 0.99):
        counted = rdp.RdpAccountant()
        counted.compose(event([(factor * noise, 29) for noise in found], BATCH / N))
        spent.append(counted.get_epsilon(DELTA))
    assert spent[0] <= 3.0 * 1.003
    assert spent[1] > 3.0
    settings = replace(MNIST, method="noise-decay", method_options={"rate": 0.1})
    assert compute(settings, {"accountant": "rdp"}, "cpu")["last"] == found[-1]


# -- DPIS ---------------------------------------------------------------------------------------


def dpis(**options: Any) -> DPIS:
    return DPIS(batch=BATCH, k=5.0, **options)


def test_dpis_at_full_shares_adds_the_planned_noise() -> None:
    budget = Budget(3.0, DELTA)
    planned = dpis().calibrated(budget, N, STEPS, Ledger(budget)).noise
    found = importance_noise(dpis(), budget, N, STEPS, 1.0)
    assert found == pytest.approx([planned] * 3, rel=2e-4)
    # Ñ and K̃ cost next to nothing: DP-SGD's noise by the same curves
    plain = planned_noise(DPSGD(batch=BATCH), budget, N, STEPS, "rdp")[0]
    assert plain <= found[0] * 1.0002
    assert found[0] < plain * 1.01


def divergence(rate: float, multiplier: float, order: float) -> float:
    """Lemma 2.7 of DPIS, integrated."""

    def moment(z: float) -> float:
        ratio = 1 - rate + rate * math.exp((2 * z - 1) / (2 * multiplier**2))
        density = math.exp(-((z / multiplier) ** 2) / 2) / (multiplier * math.sqrt(2 * math.pi))
        return density * ratio**order

    low, high = -12 * multiplier, order + 12 * multiplier
    found, _ = quad(moment, low, high, limit=500, epsabs=0, epsrel=1e-12)
    return math.log(found) / (order - 1)


@pytest.mark.parametrize("adapt", [False, True])
def test_dpis_spends_all_of_the_filter_and_not_more(adapt: bool) -> None:
    budget, shares = Budget(3.0, DELTA), [1.0, 0.6, 0.5]
    method = dpis(count_noise=40.0, sum_noise=50.0, adapt=adapt, divider=0.5)
    noises = importance_noise(method, budget, N, STEPS, shares)
    ledger = Ledger(budget)
    method.calibrated(budget, N, STEPS, ledger)
    at = ledger.filter_order
    assert at is not None
    spent = at / (2 * 40.0**2) + 3 * at / (2 * 50.0**2)
    spent += 2 * at / (2 * 50.0**2) if adapt else 0.0  # none after the last epoch
    for noise, share in zip(noises, shares, strict=True):
        # Equation (13) with K̃ = share·ÑC
        spent += 29 * divergence(BATCH / N / share, noise / share, at)
    assert spent <= ledger.divergence_left()
    assert spent == pytest.approx(ledger.divergence_left(), rel=1e-4)


def test_dpis_pays_for_the_number_and_the_sums() -> None:
    budget = Budget(3.0, DELTA)

    def first(**options: Any) -> float:
        return importance_noise(dpis(**options), budget, N, STEPS, 1.0)[0]

    # large enough that a change of the filter's order does not drown what they cost
    assert first(count_noise=2.0) > 1.01 * first()
    assert first(sum_noise=4.0) > 1.01 * first()
    assert first(sum_noise=4.0, adapt=True) > 1.01 * first(sum_noise=4.0)


def test_dpis_saves_until_the_divider() -> None:
    budget = Budget(3.0, DELTA)
    saving = importance_noise(dpis(divider=0.6), budget, N, STEPS, 0.7)
    spending = importance_noise(dpis(divider=0.0), budget, N, STEPS, 0.7)
    assert spending == pytest.approx([spending[0]] * 3, rel=1e-4)
    assert saving[0] > spending[0] > saving[2]
    # sums below k·b·C count as that: at 0.17 of all records, 0.1 is no better than 0.17
    low, clamped = (importance_noise(dpis(), budget, N, STEPS, s) for s in (0.1, 5 * BATCH / N))
    assert low == clamped


def test_dpis_training_adds_what_is_computed_from_its_shares() -> None:
    settings = Settings(
        data="digits",
        model="linear",
        method="dpis",
        method_options={"k": 3.0, "count_noise": 0.0, "adapt": True, "divider": 0.5},
        batch=96,
        epsilon=4.0,
        steps=38,
        lr=0.5,
    )
    found = compute(settings, {}, "cpu")
    shares = found["shares"]
    assert isinstance(shares, list)
    assert len(shares) == 3  # epochs of 15 releases
    again = compute(settings, {"shares": shares}, "cpu")
    assert again["noise"] == pytest.approx(found["noise"], rel=1e-6)
    assert (again["first"], again["last"]) == pytest.approx((found["first"], found["last"]))
    assert min(shares) < 0.95  # or the test would say little


# -- Figure 1 -----------------------------------------------------------------------------------


def test_figure_1_is_what_the_text_states() -> None:
    table = load("dpis/figure1")
    (plain,) = table.entries(rows=["DP-SGD"], columns=[4])
    found = compute(plain.settings, plain.options, "cpu")
    assert len(found["noise"]) == 40  # type: ignore[arg-type]
    for measure in table.measures:
        assert round(float(found[measure]), 2) == plain.published[measure] == 0.81  # type: ignore[arg-type]
    (entry,) = table.entries(rows=["DPIS"], columns=[4])
    assert entry.published == {"first": 0.81, "last": 0.42}
    # the first gradients are nearly all cut; then sums of about 0.4 make the stated fall
    told = compute(entry.settings, {"shares": [1.0, 0.6, 0.5, 0.45]}, "cpu")
    assert round(float(told["first"]), 2) == 0.81  # type: ignore[arg-type]
    assert 0.36 < float(told["last"]) < 0.48  # type: ignore[arg-type]
    noise = told["noise"]
    assert isinstance(noise, list)
    assert noise[31] > 1.5 * noise[32]  # it drops where the second phase begins


# -- what cannot be meant -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "options", "named"),
    [
        ({}, {"share": 0.5}, "options"),
        ({}, {"accountant": "moments"}, "accountant"),
        ({}, {"shares": 0.5}, "shares"),
        ({"noise": 1.0}, {}, "noise"),
        ({"method": "sgd"}, {}, "method"),
        ({"non_private": True}, {}, "method"),
        ({"method": "dpagd"}, {}, "method"),
        ({"steps": None}, {}, "epochs"),
        ({"method": "dpis"}, {"accountant": "rdp"}, "accountant"),
        ({"method": "dpis"}, {"shares": []}, "shares"),
        ({"method": "dpis"}, {"shares": [0.0]}, "shares"),
        ({"method": "dpis"}, {"shares": 1.5}, "shares"),
    ],
)
def test_refusals_name_the_option(
    changes: dict[str, Any], options: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError) as refused:
        compute(replace(MNIST, **changes), options, "cpu")
    assert refused.value.option == named
