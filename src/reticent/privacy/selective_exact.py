"""ε of selected releases by the recursion: the tightest bound, both directions, kept on disk.

Ordinary charges in the same bill are applied after the recursion, as if they had been released
first: an adversary who knows them when choosing the tilts is the strongest, so this covers every
order of releases.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld

from reticent.privacy import selective_cache
from reticent.privacy.accountants import Bill, pld_epsilon, rdp_epsilon
from reticent.privacy.selective import SelectiveGaussian
from reticent.privacy.selective_recursion import Recursion, cells_within, evaluate
from reticent.privacy.selective_tilts import DIRECTIONS, slices, tilts

MOST_RELEASES = 10_000
# Beyond this ε Rényi curves prove as much, and the recursion takes minutes.
MOST_EPSILON = 60.0
# A search for the number of releases takes minutes beyond this one, and gains one in twenty.
MOST_SEARCHED = 20.0
# Nodes of the grid per standard deviation of one release's loss; the result is about a sixth of
# 1/cells² too large. Coarser where nodes times releases would pass what takes some twenty seconds.
LEAST_CELLS, MOST_WORK = 1.5, 2e6
# Rounding in the masses of the atoms, per release; added to δ.
ROUNDING_PER_RELEASE = 1e-14

# (r, h(r), what is added to δ) after some releases, in one direction
Profile = tuple[np.ndarray, np.ndarray, float]
NO_PROOF: Profile = (np.ones(1), np.ones(1), 1.0)


def exact_epsilon(
    charge: SelectiveGaussian, count: int, rest: pld.PrivacyLossDistribution | None, delta: float
) -> float:
    """ε after `count` selected releases and, if any, the composed ordinary charges."""
    if count > MOST_RELEASES or delta <= 0:
        return math.inf
    profiles = _profiles(charge, count, _decade(delta))
    return max(
        _epsilon(profile, pmf, delta) for profile, pmf in zip(profiles, _both(rest), strict=True)
    )


def exact_capacity(
    charge: SelectiveGaussian,
    paid: int,
    rest: pld.PrivacyLossDistribution | None,
    epsilon: float,
    delta: float,
) -> int:
    """How many more selected releases keep ε, after `paid` of them and the ordinary charges."""
    if delta <= 0 or epsilon > MOST_SEARCHED:
        return 0
    key = ("capacity", *_key(charge, 0, delta), float(epsilon).hex(), float(delta).hex())
    if rest is not None:
        key += (_named(rest),)
    reached = selective_cache.load_count(key)
    if reached is None:
        reached = _capacity(charge, rest, epsilon, delta)
        selective_cache.store_count(key, reached)
    return max(reached - paid, 0)


def _capacity(
    charge: SelectiveGaussian,
    rest: pld.PrivacyLossDistribution | None,
    epsilon: float,
    delta: float,
) -> int:
    most = 1
    while most < MOST_RELEASES and rdp_epsilon(((charge, most),), delta) <= 1.5 * epsilon:
        most = min(2 * most, MOST_RELEASES)
    # a coarse run finds about where the fine one ends, and with that its grid
    reached, profiles = _longest(charge, most, rest, epsilon, delta, cells=3.0, slices_=60)
    horizon = reached
    while reached == horizon < MOST_RELEASES:
        horizon = min(math.ceil(horizon * 1.06) + 4, MOST_RELEASES)
        reached, profiles = _longest(
            charge, horizon, rest, epsilon, delta, cells=_cells(horizon), slices_=_slices(horizon)
        )
    if reached:  # the statement to come will ask for these
        selective_cache.store(_key(charge, reached, _decade(delta)), profiles)
        _profiles.cache_clear()
    return reached


def _longest(
    charge: SelectiveGaussian,
    horizon: int,
    rest: pld.PrivacyLossDistribution | None,
    epsilon: float,
    delta: float,
    *,
    cells: float,
    slices_: int,
) -> tuple[int, tuple[Profile, Profile]]:
    """The most releases up to `horizon` with δ(ε) within `delta`, and the profiles there."""
    most = horizon
    runs: list[list[Profile]] = []
    for direction, pmf in zip(DIRECTIONS, _both(rest), strict=True):
        recursion = _recursion(charge, horizon, delta, direction, cells, slices_)
        if recursion is None:
            return 0, (NO_PROOF, NO_PROOF)
        kept: list[Profile] = []
        for count in range(1, most + 1):
            recursion.advance()
            profile = _profile(recursion, count)
            if _delta(profile, pmf, epsilon) > delta:
                break
            kept.append(profile)
        most = len(kept)
        runs.append(kept)
    if most == 0:
        return 0, (NO_PROOF, NO_PROOF)
    return most, (runs[0][most - 1], runs[1][most - 1])


# -- profiles -------------------------------------------------------------------------------------


def _decade(delta: float) -> float:
    """δ rounded down to a power of ten: one grid serves all δ above it."""
    return float(10.0 ** math.floor(math.log10(delta) + 1e-9))


def _cells(count: int) -> float:
    return min(40.0, max(8.0, 60 / math.sqrt(count)))


def _slices(count: int) -> int:
    return 240 if count <= 20 else 160 if count <= 200 else 80


def _key(charge: SelectiveGaussian, count: int, decade: float) -> tuple[object, ...]:
    low, high = charge.passing
    numbers = (charge.rate, charge.multiplier, charge.valid_rate, low, high)
    return (*(float(number).hex() for number in numbers), count, decade)


@lru_cache(maxsize=32)
def _profiles(charge: SelectiveGaussian, count: int, decade: float) -> tuple[Profile, Profile]:
    def compute() -> tuple[Profile, Profile]:
        def one_way(direction: str) -> Profile:
            recursion = _recursion(charge, count, decade, direction, _cells(count), _slices(count))
            if recursion is None:
                return NO_PROOF
            for _ in range(count):
                recursion.advance()
            return _profile(recursion, count)

        return one_way(DIRECTIONS[0]), one_way(DIRECTIONS[1])

    return selective_cache.load_or(_key(charge, count, decade), compute)


def _recursion(
    charge: SelectiveGaussian,
    count: int,
    delta: float,
    direction: str,
    cells: float,
    slices_: int,
) -> Recursion | None:
    """The recursion before its first step, or None where it takes too long or can prove nothing."""
    bill: Bill = ((charge, count),)
    edges = slices(charge.rate, charge.multiplier, slices_)
    pairs = tilts(
        charge.rate, charge.multiplier, charge.valid_rate, *charge.passing, direction, edges
    )
    if count * (pairs.lost + ROUNDING_PER_RELEASE) >= delta:
        return None
    # Beyond these the profile is extended by straight lines, which must not matter at δ.
    scale = pairs.scale()[2]
    margin = min(0.02, scale * math.sqrt(count))
    longest = count * math.log(float(pairs.ratios.max()) / pairs.means()[0])
    left = min(_quick(bill, delta * 1e-3) * 1.05, longest) + margin
    right = min(_quick(bill, 3e-3), left) + margin
    if left > MOST_EPSILON:
        return None
    cells = cells_within(pairs, left + right, count=count, most=cells, work=MOST_WORK)
    return None if cells < LEAST_CELLS else Recursion(pairs, left=left, right=right, cells=cells)


def _quick(bill: Bill, delta: float) -> float:
    return min(rdp_epsilon(bill, delta), pld_epsilon(bill, delta))


def _profile(recursion: Recursion, count: int) -> Profile:
    return recursion.r, recursion.h, count * (recursion.tilts.lost + ROUNDING_PER_RELEASE)


# -- ε and δ --------------------------------------------------------------------------------------

Pmf = tuple[np.ndarray, np.ndarray, float]  # losses, their masses with the record, infinite mass
_NOTHING: Pmf = (np.zeros(1), np.ones(1), 0.0)


def _both(rest: pld.PrivacyLossDistribution | None) -> tuple[Pmf, Pmf]:
    """Losses and masses of the composed ordinary charges, in the order of `DIRECTIONS`."""
    if rest is None:
        return _NOTHING, _NOTHING
    return _spelled(rest._pmf_remove), _spelled(rest._pmf_add)


def _named(rest: pld.PrivacyLossDistribution) -> str:
    """A name that no other distribution has."""
    digest = hashlib.blake2b(digest_size=16)
    for losses, masses, infinite in _both(rest):
        digest.update(losses.tobytes() + masses.tobytes() + infinite.hex().encode())
    return digest.hexdigest()


def _spelled(pmf: pld_pmf.PLDPmf) -> Pmf:
    dense = pmf.to_dense_pmf()
    masses = np.asarray(dense._probs, dtype=float)
    losses = (dense._lower_loss + np.arange(len(masses))) * dense._discretization
    kept = masses > 0
    return losses[kept], masses[kept], float(dense._infinity_mass)


def _delta(profile: Profile, pmf: Pmf, epsilon: float) -> float:
    """e^ε·E[h(e^{−ε}·L)] over the ordinary charges' likelihood ratio L, and all that was lost."""
    r, h, lost = profile
    losses, masses, infinite = pmf
    # masses are those with the record: times e^{−loss} they are those without
    at = losses - epsilon
    weights = masses * np.exp(-at)
    return float(weights @ evaluate(r, h, np.exp(at))) + infinite + lost


def _epsilon(profile: Profile, pmf: Pmf, delta: float) -> float:
    """The smallest ε with δ(ε) ≤ δ, to 1e-7 from above; infinite where the grid proves none."""
    high = max(-math.log(float(profile[0][0])), 1e-6) + max(float(pmf[0][-1]), 0.0)
    return _root(lambda epsilon: _delta(profile, pmf, epsilon), delta, high)


def _root(curve: Callable[[float], float], delta: float, high: float) -> float:
    if curve(high) > delta:
        return math.inf
    low = 0.0
    if curve(low) <= delta:
        return 0.0
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (low, middle) if curve(middle) <= delta else (middle, high)
    return high
