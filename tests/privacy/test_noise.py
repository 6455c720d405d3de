from types import SimpleNamespace

import pytest
import torch
from scipy import stats

from reticent.coins import Coins
from reticent.errors import ReticentError
from reticent.privacy import noisy


@pytest.mark.parametrize(("sensitivity", "multiplier"), [(0.1, 2.0), (3.0, 0.5)])
def test_noise_has_the_scale_of_multiplier_times_sensitivity(sensitivity, multiplier):
    base = torch.linspace(-5, 5, 100_000)
    total = SimpleNamespace(flat=base, sensitivity=sensitivity)
    drawn = noisy(total, multiplier, Coins.from_seed(0), "noise", 0) - base
    scaled = drawn.double().numpy() / (sensitivity * multiplier)
    assert stats.kstest(scaled, "norm").pvalue > 1e-6  # seeded; a 2 % scale error gives 1e-9
    assert torch.equal(base, torch.linspace(-5, 5, 100_000))  # the sum itself is left alone


def test_same_address_same_noise_other_address_other_noise():
    total = SimpleNamespace(flat=torch.zeros(8), sensitivity=1.0)
    coins = Coins.from_seed(0)
    first = noisy(total, 1.0, coins, "noise", 0)
    assert torch.equal(first, noisy(total, 1.0, coins, "noise", 0))
    assert not torch.equal(first, noisy(total, 1.0, coins, "noise", 1))


@pytest.mark.parametrize("sensitivity", [0.0, -1.0, float("inf"), float("nan")])
def test_noise_needs_a_usable_sensitivity(sensitivity):
    total = SimpleNamespace(flat=torch.zeros(2), sensitivity=sensitivity)
    with pytest.raises(ReticentError, match="sensitivity"):
        noisy(total, 1.0, Coins.from_seed(0), "noise", 0)
    with pytest.raises(ReticentError, match="multiplier"):
        noisy(total, -1.0, Coins.from_seed(0), "noise", 0)
