"""Draws that were begun early are the draws made when they are asked for."""

import math

import pytest
import torch

from reticent.coins import Coins
from reticent.data import ahead, poisson_draw, sampling
from reticent.data.ahead import DrawsAhead
from reticent.data.sampling import BLOCK, DeviceDraws, begin_draws, masks_on, poisson_draws
from reticent.errors import OptionError

CPU = torch.device("cpu")


def as_on_a_device(n, rate, coins, stream, addresses, *, device, indices_on=None):
    """`begin_draws` by its other branch, with the CPU as the device."""
    threshold = math.floor(rate * 2**53) / 2**53
    masks = masks_on(torch.device(device), n, threshold, coins, stream, addresses)
    return DeviceDraws(masks, len(addresses) * n * rate, to_host=indices_on is not None)


@pytest.mark.parametrize("to_host", [False, True])
@pytest.mark.parametrize("rate", [0.0, 1e-4, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 300, BLOCK, 2 * BLOCK + 3])
def test_a_device_finds_what_the_host_finds(n, rate, to_host):
    coins, addresses = Coins.from_seed(1), [(4, 0), (4, 1), (9, 0)]
    on = CPU if to_host else None
    found = as_on_a_device(n, rate, coins, "s", addresses, device="cpu", indices_on=on)
    early, drawn = found.early(), found.get()
    for each, now, address in zip(early, drawn, addresses, strict=True):
        expected = coins_below(n, rate, coins, "s", *address)
        assert torch.equal(now, expected)
        assert torch.equal(each, expected)
        assert torch.equal(poisson_draw(n, rate, coins, "s", *address), expected)


def coins_below(n, rate, coins, stream, *counters):
    """The definition: the coins of whole blocks, one after the other."""
    blocks = range(-(-n // BLOCK))
    flips = torch.cat([coins.uniform((BLOCK,), stream, *counters, block) for block in blocks])
    return (flips[:n] < rate).nonzero().squeeze(1)


def test_no_record_is_lost_where_the_room_is_too_small(monkeypatch):
    coins, addresses = Coins.from_seed(1), [(0, 0), (0, 1)]
    expected = poisson_draws(1000, 0.5, coins, "s", addresses)
    for room in (0, 10, 500):
        monkeypatch.setattr(sampling, "capacity", lambda _, room=room: room)
        begun = as_on_a_device(1000, 0.5, coins, "s", addresses, device="cpu")
        assert begun.early() is None
        assert all(map(torch.equal, begun.get(), expected))
        assert all(map(torch.equal, begun.early(), expected))


def test_there_is_room_but_for_one_draw_in_1e14():
    from scipy import stats

    for expected in (1e-3, 1, 30, 1000, 1e5):
        assert stats.poisson.sf(sampling.capacity(expected), expected) < 1e-14


def test_draws_for_records_on_the_host_are_on_the_host():
    begun = begin_draws(0, 0.5, Coins.from_seed(1), "s", [(0,)], device="meta", indices_on="cpu")
    assert begun.get()[0].device == CPU
    with pytest.raises(OptionError, match="rate"):
        begin_draws(10, 1.5, Coins.from_seed(1), "s", [(0,)])


class Counted:
    """Every draw that is begun, by address."""

    def __init__(self, monkeypatch):
        self.begun = []
        monkeypatch.setattr(ahead, "begin_draws", self)

    def __call__(self, n, rate, coins, stream, addresses, **where):
        self.begun.append((stream, *addresses[0], len(addresses)))
        return as_on_a_device(n, rate, coins, stream, addresses, **where)


def test_the_next_release_is_begun_before_this_one_is_handed_out(monkeypatch):
    counted, coins = Counted(monkeypatch), Coins.from_seed(2)
    draws = DrawsAhead(CPU, guess=True)
    for release in range(4):
        (drawn,) = draws.take(coins, 500, 0.1, "s", release, 0, 1, last=release == 3)
        assert torch.equal(drawn, poisson_draw(500, 0.1, coins, "s", release, 0))
        following = draws.after(drawn)
        assert (following is None) == (release == 3)
        assert draws.after(drawn.clone()) is None
        # each once, one release ahead, and none that no release asks for
        assert counted.begun == [("s", r, 0, 1) for r in range(min(release + 2, 4))]


@pytest.mark.parametrize("change", ["rate", "count", "coins", "n", "stream", "release"])
def test_a_wrong_guess_is_dropped(monkeypatch, change):
    Counted(monkeypatch)
    draws = DrawsAhead(CPU, guess=True)
    asked = {"coins": Coins.from_seed(2), "n": 500, "rate": 0.1, "stream": "s", "count": 2}
    draws.take(**asked, release=3, trial=0)
    other = {
        **{"coins": Coins.from_seed(3), "n": 501, "rate": 0.2, "stream": "t", "count": 1},
        "release": 8,
    }
    now = {**asked, "release": 4, "trial": 0, change: other[change]}
    drawn = draws.take(**now)
    assert len(drawn) == now["count"]
    for trial, each in enumerate(drawn):
        expected = poisson_draw(
            now["n"], now["rate"], now["coins"], now["stream"], now["release"], trial
        )
        assert torch.equal(each, expected)
    draws.take(**{**now, "release": now["release"] + 5})
    assert len(draws._made) == 1  # guesses that nobody asked for do not pile up


def test_trials_of_two_streams(monkeypatch):
    """As DPSUR asks: groups of trials, two streams, sometimes a second group in a release."""
    counted, coins = Counted(monkeypatch), Coins.from_seed(2)
    draws = DrawsAhead(CPU, guess=True)
    for release, groups in enumerate([1, 3, 1, 2]):
        for group in range(groups):
            for stream, rate in (("validation", 0.05), ("sampling", 0.1)):
                drawn = draws.take(coins, 400, rate, stream, release, 4 * group, 4)
                for later, each in enumerate(drawn):
                    address = (stream, release, 4 * group + later)
                    assert torch.equal(each, poisson_draw(400, rate, coins, *address))
    assert len(counted.begun) == len(set(counted.begun)) == 2 * (7 + 1)


def test_nothing_is_guessed_on_the_cpu():
    draws = DrawsAhead(CPU)
    (drawn,) = draws.take(Coins.from_seed(2), 400, 0.1, "s", 0, 0, 1)
    assert not draws._made
    assert draws.after(drawn) is None


def test_coins_written_over_a_tensor_are_the_same_coins():
    coins = Coins.from_seed(4)
    whole = coins.uniform((1000,), "s", 1)
    out = torch.full((1000,), 7.0, dtype=torch.float64)
    coins.uniform_into(out, "s", 1)
    assert torch.equal(out, whole)
    coins.uniform_into(out[:10], "s", 1)  # a shorter draw begins like a longer one
    assert torch.equal(out, whole)
