"""Planted bugs: each is caught by at least one audit, and no honest method is accused.

The replay is deterministic. The statistical checks of the conduct audit raise a false alarm with
probability 1e-6 at most, and the coins here are seeded.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn

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
    "largest norm": (lies.LargestNorm(**SAMPLING), rt.Coins, {"chosen by z"}),
    "noise by loss": (lies.LossMultiplier(**SAMPLING), rt.Coins, {"chosen by z"}),
    "real rate": (lies.RealRate(**SAMPLING), rt.Coins, {"chosen by z"}),
    "two draws": (lies.TwoDraws(**SAMPLING), rt.Coins, {"drawn twice"}),
    "truncated draws": (lies.Truncated(**SAMPLING), rt.Coins, {"unbounded"}),
    "noise taken off": (lies.NoiseOff(**SAMPLING), rt.Coins, {"noise taken off"}),
    "stopping by number": (lies.Stopping(**SAMPLING), rt.Coins, {"stopped"}),
    "two copies": (lies.TwoCopies(**SELECTING), rt.Coins, {"noise is paid for"}),
    "the test's noise": (lies.OtherNoise(**SELECTING), rt.Coins, {"noise is paid for"}),
    "trials told": (lies.TellingTrials(**SELECTING), rt.Coins, {"trials told"}),
    "one noise for all": (
        rt.DPSGD(**SAMPLING, clip=rt.Quantile()),
        lies.OneNoiseCoins,
        {"no number twice"},
    ),
    "half of the noise twice": (rt.DPSGD(**SAMPLING), lies.HalfRepeatedCoins, {"no number twice"}),
    "shared luck": (rt.DPSGD(**SAMPLING), lies.SharedCoins, {"sizes vary"}),
    "the same records": (rt.DPSGD(**SAMPLING), lies.SameRecordsCoins, {"every record by itself"}),
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


@pytest.mark.parametrize("seed", range(8))
def test_missing_clipping_is_found_whatever_the_model(seed):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))
    method = lies.NoClipping(**SAMPLING)
    report = replay(model, DATA, method=method, **options_for(method))
    assert {leak.kind for leak in report.leaks} == {"unbounded"}


class Langevin(torch.optim.SGD):
    """Public randomness and a counter of its own."""

    counter = 0

    def step(self, closure=None):
        self.counter += 1
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(torch.randn_like(parameter), alpha=0.01 / self.counter)


@pytest.mark.parametrize("method", [HONEST["dpsgd"], HONEST["dpsur"], HONEST["dpis"]])
def test_randomness_of_models_and_optimizers_is_no_leak(method):
    torch.manual_seed(0)
    dropping = nn.Sequential(
        *(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5)),
        *(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2)),
    )
    assert replay(dropping, DATA, method=method, **options_for(method)).passed
    if method.restores:  # a counter outside of the state is refused there
        return
    options = {**options_for(method), "optimizer": lambda params: Langevin(params, lr=0.1)}
    assert replay(network(), DATA, method=method, **options).passed


def test_steps_are_as_many_as_there_are():
    method = rt.DPSUR(**SELECTING)
    report = replay(network(), DATA, method=method, **{**options_for(method), "epochs": 3})
    assert report.passed
    few = rt.Budget(9, 1e-3)
    options = {**options_for(method), "budget": few}
    assert replay(network(), DATA, method=method, **options).passed


@pytest.mark.parametrize("name", HONEST)
def test_honest_methods_are_not_accused(name):
    assert caught_by(HONEST[name]) == set()
