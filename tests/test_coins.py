import math

import numpy as np
import pytest
import torch
from scipy import stats

from reticent.coins import Coins


def test_a_draw_depends_on_its_address_alone():
    one, other = Coins.from_seed(3), Coins.from_seed(3)
    first = one.normal((8,), "noise", 4, 0)
    other.normal((100,), "noise", 3, 0)
    other.uniform((7,), "sampling", 4, 0)
    assert torch.equal(first, other.normal((8,), "noise", 4, 0))


@pytest.mark.parametrize(
    "address", [("noise", 5, 0), ("noise", 4, 1), ("nois", 4, 0), ("noise", 40), ("noise", 4)]
)
def test_other_addresses_give_other_draws(address):
    coins = Coins.from_seed(3)
    assert not torch.equal(coins.normal((8,), "noise", 4, 0), coins.normal((8,), *address))


def test_addresses_are_not_ambiguous():
    coins = Coins.from_seed(3)
    assert not torch.equal(coins.normal((8,), "a", 1, 23), coins.normal((8,), "a", 12, 3))


def test_many_releases_never_share_noise():
    # PyTorch's CPU generator keeps 32 bits of a seed: 200,000 releases would collide with
    # probability 0.99; 128-bit keys collide with probability below 1e-28.
    coins = Coins.from_seed(0)
    keys = {coins._derive("noise", (step, 0), 16) for step in range(200_000)}
    assert len(keys) == 200_000
    state = coins._numpy("noise", (1, 0)).bit_generator.state["state"]["key"]
    key = int(state[0]) + (int(state[1]) << 64)
    assert key == coins._derive("noise", (1, 0), 16)


def test_normal_draws_are_normal():
    # Kolmogorov-Smirnov at a false-alarm probability of 1e-6, seeded
    drawn = Coins.from_seed(1).normal((200_000,), "noise", 1).double().numpy()
    assert stats.kstest(drawn, "norm").pvalue > 1e-6
    later = Coins.from_seed(1).normal((200_000,), "noise", 2).double().numpy()
    assert abs(np.corrcoef(drawn, later)[0, 1]) < 5 / math.sqrt(200_000)  # p < 6e-7


def test_uniform_draws_are_multiples_of_two_to_the_minus_53():
    drawn = Coins.from_seed(1).uniform((10_000,), "sampling", 1)
    scaled = drawn * 2**53
    assert drawn.dtype == torch.float64
    assert torch.equal(scaled, scaled.round())
    assert 0 <= float(drawn.min()) < float(drawn.max()) < 1


def test_fresh_coins_differ_and_hide_their_key():
    one, other = Coins.fresh(), Coins.fresh()
    assert one.secret() != other.secret()
    assert not one.seeded
    assert one.secret().hex() not in repr(one)


def test_key_length_is_checked():
    with pytest.raises(ValueError, match="must be 32"):
        Coins(b"short")


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_draws_depend_on_their_address_alone():
    coins = Coins.from_seed(3)
    first = coins.normal((100_000,), "noise", 1, device="cuda")
    coins.normal((5,), "noise", 2, device="cuda")
    assert torch.equal(first, coins.normal((100_000,), "noise", 1, device="cuda"))
    assert stats.kstest(first.cpu().double().numpy(), "norm").pvalue > 1e-6
