import pytest
import torch
from scipy import stats

from reticent.coins import Coins
from reticent.data import poisson_draw
from reticent.data.sampling import BLOCK, draw_each, poisson_draws, record_coins
from reticent.errors import OptionError


def test_each_record_takes_part_at_the_stated_rate():
    # Binomial test of the total over seeded draws: false alarm 1e-6
    coins, n, rate, draws = Coins.from_seed(0), 5000, 0.03, 200
    counts = [len(poisson_draw(n, rate, coins, "sampling", step)) for step in range(draws)]
    assert stats.binomtest(sum(counts), n * draws, rate).pvalue > 1e-6
    # and the batch size varies as a binomial does, not as a fixed-size draw
    spread = torch.tensor(counts, dtype=torch.float64).var() / (n * rate * (1 - rate))
    low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], draws - 1) / (draws - 1)
    assert low < float(spread) < high


def test_records_are_drawn_independently_of_each_other():
    coins, draws = Coins.from_seed(1), 4000
    mask = torch.zeros(draws, 20, dtype=torch.float64)
    for step in range(draws):
        mask[step, poisson_draw(20, 0.4, coins, "sampling", step)] = 1
    correlation = torch.corrcoef(mask.T) - torch.eye(20)
    # 190 pairs, each beyond 6 standard errors with probability 2e-9: 4e-7 in all
    assert float(correlation.abs().max()) < 6 / draws**0.5


@pytest.mark.parametrize("n", [0, 1, 10, BLOCK + 3])
def test_records_with_probabilities_of_their_own_flip_the_same_coins(n):
    coins = Coins.from_seed(3)
    flips = record_coins(n, coins, "sampling", 4)
    assert len(flips) == n
    alike = draw_each(torch.full((n,), 0.3, dtype=torch.float64), flips)
    assert torch.equal(alike, poisson_draw(n, 0.3, coins, "sampling", 4))
    assert torch.equal(flips, record_coins(n + 5, coins, "sampling", 4)[:n])
    sure = torch.tensor([0.0, 1.0] * n, dtype=torch.float64)[:n]
    assert torch.equal(draw_each(sure, flips), sure.nonzero()[:, 0])


CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


# On the CPU a longer draw begins like a shorter one in any case; on CUDA only fixed blocks do.
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, CUDA])])
@pytest.mark.parametrize("n", [1, 10, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3])
def test_adding_a_record_leaves_all_other_coins_alone(n, device):
    coins = Coins.from_seed(2)
    few = poisson_draw(n, 0.5, coins, "sampling", 7, device=device)
    more = poisson_draw(n + 1, 0.5, coins, "sampling", 7, device=device)
    assert torch.equal(few, more[more < n])


def test_blocks_use_different_coins():
    drawn = poisson_draw(2 * BLOCK, 0.5, Coins.from_seed(2), "sampling", 7)
    first, second = drawn[drawn < BLOCK], drawn[drawn >= BLOCK] - BLOCK
    assert not torch.equal(first, second)


def test_streams_and_steps_differ():
    coins = Coins.from_seed(2)
    draws = [
        poisson_draw(1000, 0.5, coins, stream, step)
        for stream in ("sampling", "validation")
        for step in (0, 1)
    ]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_extreme_rates():
    coins = Coins.from_seed(0)
    assert torch.equal(poisson_draw(10, 1.0, coins, "s", 0), torch.arange(10))
    assert len(poisson_draw(10, 0.0, coins, "s", 0)) == 0
    assert len(poisson_draw(0, 0.5, coins, "s", 0)) == 0
    assert len(poisson_draw(1000, 1e-17, coins, "s", 0)) == 0  # below the grid: rounded down
    for rate in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError, match="rate"):
            poisson_draw(10, rate, coins, "s", 0)


@pytest.mark.parametrize("n", [0, 1, 300, 70_000])
def test_several_draws_at_once_are_the_draws_one_by_one(n):
    coins, addresses = Coins.from_seed(3), [(4, 0), (4, 1), (4, 2)]
    together = poisson_draws(n, 0.01, coins, "sampling", addresses)
    assert len(together) == 3
    for address, drawn in zip(addresses, together, strict=True):
        assert torch.equal(drawn, poisson_draw(n, 0.01, coins, "sampling", *address))
