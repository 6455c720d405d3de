import pytest

from reticent.errors import BudgetError
from reticent.privacy import Budget, Ledger, SampledGaussian, noise_for, steps_for


@pytest.mark.parametrize(
    ("epsilon", "delta", "rate", "steps"),
    [
        (3, 1e-5, 2048 / 60000, 1770),
        (1, 1e-5, 0.01, 2000),
        (50, 1e-5, 0.01, 1000),
        (3, 1e-12, 0.01, 1000),
        (3, 1e-5, 1.0, 100),
        (0.5, 1e-3, 0.1, 1),
    ],
)
def test_noise_is_enough_and_hardly_more(epsilon, delta, rate, steps):
    budget = Budget(epsilon, delta)
    noise = noise_for(budget, lambda s: SampledGaussian(rate, s), steps)
    ledger = Ledger(budget)
    ledger.charge(SampledGaussian(rate, noise), "training", count=steps)  # affordable
    assert ledger.epsilon(delta) <= epsilon
    assert Ledger(budget).epsilon_with(((SampledGaussian(rate, noise * 0.997), steps),)) > epsilon
    assert noise == float(f"{noise:.4g}")


def test_steps_and_noise_agree():
    budget = Budget(3, 1e-5)
    charge = SampledGaussian(2048 / 60000, 2.15)
    steps = steps_for(budget, charge)
    assert 1770 <= steps < 1780
    assert steps_for(budget, charge, accountant="rdp") < steps
    assert (
        Ledger(budget).epsilon_with(((charge, steps),))
        <= 3
        < Ledger(budget).epsilon_with(((charge, steps + 1),))
    )


def test_what_was_paid_before_leaves_less():
    budget = Budget(1, 1e-5)
    paid = Ledger(budget)
    paid.charge(SampledGaussian(1.0, 8.0), "normalisation")
    alone = noise_for(budget, lambda s: SampledGaussian(0.05, s), 100)
    after = noise_for(budget, lambda s: SampledGaussian(0.05, s), 100, ledger=paid)
    assert after > alone
    charge = SampledGaussian(0.05, 3.0)
    assert steps_for(budget, charge, ledger=paid) < steps_for(budget, charge)


def test_the_impossible_is_said():
    with pytest.raises(BudgetError, match="no noise multiplier"):
        noise_for(Budget(1e-9, 1e-12), lambda s: SampledGaussian(1.0, s), 10**9)
    assert steps_for(Budget(0.01, 1e-6), SampledGaussian(1.0, 0.5)) == 0


@pytest.mark.parametrize(("delta", "enough"), [(1e-40, 1e-33), (3e-37, 1e-33)])
def test_a_delta_that_noise_with_an_end_cannot_keep_is_to_blame(delta, enough):
    def charge_at(multiplier):
        return SampledGaussian(0.1, multiplier)

    with pytest.raises(
        BudgetError, match=f"a delta of {enough:g} would do: it pays for what drawn"
    ):
        noise_for(Budget(1, delta), charge_at, 2)
    assert noise_for(Budget(1, enough), charge_at, 2) < 1e5
    with pytest.raises(BudgetError, match="would do"):
        noise_for(Budget(1, enough / 10), charge_at, 2)


def test_where_delta_is_not_to_blame_it_is_not_named():
    with pytest.raises(BudgetError, match=r"allow a larger epsilon or fewer steps$"):
        noise_for(Budget(1e-8, 1e-5), lambda m: SampledGaussian(1.0, m), 10**7)
    with pytest.raises(BudgetError, match=r"larger epsilon or fewer steps, or a delta of 1e-07$"):
        noise_for(Budget(0.01, 1e-20), lambda m: SampledGaussian(0.1, m), 2)
