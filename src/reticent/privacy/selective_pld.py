"""The privacy-loss distribution of one selected release: a pair that dominates every tilt.

δ*(ε), the supremum over tilts of the hockey-stick divergence, is one step of the recursion from
h₀(r) = (r − 1)₊. It is convex in e^ε, hence the profile of a dominating pair, and connecting the
dots between lattice points is an upper bound. Dominating pairs compose, whatever the order of
releases; but each ε takes its own worst tilt, so this bound is looser than the recursion's.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld

from reticent.privacy.selective_recursion import Recursion, cells_within, evaluate, lower_hull
from reticent.privacy.selective_tilts import DIRECTIONS, slices, tilts

# One release is cheap to solve, so finely.
SLICES, CELLS, MOST_WORK = 240, 40.0, 250_000.0
MOST_LOST = 1e-3


@lru_cache(maxsize=64)
def _profile(
    rate: float, multiplier: float, valid_rate: float, low: float, high: float, direction: str
) -> tuple[np.ndarray, np.ndarray, float]:
    """(r, h₁(r), lost mass): δ*(ε) = e^ε·h₁(e^{−ε}) + lost."""
    edges = slices(rate, multiplier, SLICES)
    pairs = tilts(rate, multiplier, valid_rate, low, high, direction, edges)
    if pairs.lost > MOST_LOST:  # an infinite loss for all we know
        return np.array([0.5, 1.0, 2.0]), np.array([0.0, 0.0, 1.0]), 1.0
    least, most = pairs.means()
    # no tilt has losses beyond these, but for the far tails; on the right that is left to slope 1
    left = math.log(float(pairs.ratios.max()) / least)
    right = min(-math.log(max(float(pairs.ratios.min()), 1e-300) / most), left + 1.0)
    # a long tail on a coarser grid
    cells = cells_within(pairs, left + right, count=1, most=CELLS, work=MOST_WORK)
    recursion = Recursion(pairs, left=left, right=right, cells=cells)
    recursion.advance()
    r, h = recursion.r, recursion.h
    return r, lower_hull(r, np.where(r <= math.exp(-left), 0.0, h)), pairs.lost


def selective_pld(
    rate: float, multiplier: float, valid_rate: float, low: float, high: float, interval: float
) -> pld.PrivacyLossDistribution:
    """One release on dp-accounting's lattice, both directions."""
    with_record, without = (
        _on_lattice(
            *_profile(rate, multiplier, valid_rate, low, high, direction), interval=interval
        )
        for direction in DIRECTIONS
    )
    return pld.PrivacyLossDistribution(with_record, without)


def _on_lattice(r: np.ndarray, h: np.ndarray, lost: float, *, interval: float) -> pld_pmf.PLDPmf:
    lowest = math.floor(-math.log(r[-1]) / interval) - 1
    highest = math.ceil(-math.log(r[0]) / interval) + 1
    losses = np.arange(lowest, highest + 1) * interval
    at = np.exp(-losses)
    deltas = np.clip(evaluate(r, h, at) / at + lost, 0.0, 1.0)
    deltas = np.minimum.accumulate(deltas)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lowest, highest, deltas)
