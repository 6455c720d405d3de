"""Planted bugs: each is caught by at least one audit, and no honest method is accused.

The replay is deterministic. The statistical checks of the conduct audit raise a false alarm with
probability 1e-6 at most, and the coins here are seeded.
"""

from __future__ import annotations

import pytest

import reticent as rt
from reticent.audit.conduct import watch
from reticent.audit.replay import replay
from reticent.methods.published import PublishedDPSUR

from . import lies
from .problem import DATA, HONEST, SAMPLING, SELECTING, network, options_for

# what is planted: (method, coins, who catches it: kinds of leaks, or names of checks)
LIES = {
    "noise halved": (lies.HalvedNoise(**SAMPLING), rt.Coins, {"noise is paid for"}),
    "noise halved below": (rt.DPSGD(**SAMPLING), lies.QuietCoins, {"as large as it says"}),
    "no clipping": (lies.NoClipping(**SAMPLING), rt.Coins, {"unbounded"}),
    "realised batch size": (lies.RealisedBatch(**SAMPLING), rt.Coins, {"around the noise"}),
    "shuffling": (lies.Shuffling(**SAMPLING), rt.Coins, {"unbounded", "drawn at the charged rate"}),
    "momentum": (lies.LeakyMomentum(**SELECTING), rt.Coins, {"unpaid trials"}),
    "published momentum": (
        PublishedDPSUR(**SELECTING, stale_validation=False),
        rt.Coins,
        {"unpaid trials"},
    ),
    "published validation": (
        PublishedDPSUR(**SELECTING, leaky_momentum=False),
        rt.Coins,
        {"around the noise"},
    ),
    "stale validation loss": (lies.StaleLoss(**SELECTING), rt.Coins, {"around the noise"}),
    "noise reused": (rt.DPSGD(**SAMPLING), lies.RepeatingCoins, {"never used twice"}),
    "noise reused past the run": (lies.ReusedNoise(**SAMPLING), rt.Coins, {"charged is done"}),
    "skipped empty batch": (lies.SkippedEmpty(**SAMPLING), rt.Coins, {"noise withheld"}),
    "charge after release": (lies.PaidLate(**SAMPLING), rt.Coins, {"before it is drawn"}),
    "average of rejected": (lies.LeakyAverage(**SELECTING), rt.Coins, {"unpaid trials"}),
    "drawn more often": (lies.MoreOften(**SAMPLING), rt.Coins, {"drawn at the charged rate"}),
    "hidden memory": (lies.Remembering(**SAMPLING), rt.Coins, {"remembered"}),
    "unsampled count": (lies.Unsampled(**SAMPLING), rt.Coins, {"undrawn"}),
}


def caught_by(method, kind=rt.Coins):
    """Every leak and every failed check."""
    options = options_for(method)
    if isinstance(method, PublishedDPSUR):
        options = {**options, "budget": None}
    found = {leak.kind for leak in replay(network(), DATA, method=method, **options).leaks}
    coins = kind.from_seed(1)
    report = watch(network(), DATA, method=method, coins=coins, device="cpu", **options)
    return found | {check.name for check in report.checks if not check.passed}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_caught(name):
    method, coins, wanted = LIES[name]
    found = caught_by(method, coins)
    for part in wanted:
        assert any(part in one for one in found), found


@pytest.mark.parametrize("name", HONEST)
def test_honest_methods_are_not_accused(name):
    assert caught_by(HONEST[name]) == set()
