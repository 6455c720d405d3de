"""The worst adaptive composition of selected releases, as a recursion on one convex function.

For a weight r > 0 let h_k(r) be the largest E_Q[(r·L_k − 1)₊] over k releases, each tilted in the
knowledge of the earlier ones, L_k their likelihood ratio. Then δ(ε) = e^ε·h_T(e^{−ε}) and

    h₀(r) = (r − 1)₊,    h_{k+1}(r) = sup over tilts of E_Q[h_k(r·f/κ)],   κ = E_Q[f].

One step, for all r at once. Put ρ = r/κ. With any slope ν, the constraint ρ·E_Q[f] = r gives

    E_Q[h(ρf)] = E_Q[h(ρf) − νρf] + νr ≤ M(ρ) + νr,   M(ρ) = sup over tilts of E_Q[h(ρf) − νρf],

and M does not know r. So M is solved once per node ρ (corners and Dinkelbach, `Tilts`), and every r
takes the largest M(ρ) + νr over the ρ it can have. Between nodes νρ is taken linear in ρ: then M is
convex there, lies below its chord, and the largest value of chord + νr has a closed form. Each h_k
is convex, non-decreasing and of slope at most 1; so chords of h between nodes, the line through 0
left of them and slope 1 right of them are upper bounds too.

Any ν gives an upper bound. The best is the slope of the result itself, E_P[h′(ρf)] at the worst
tilt, which is followed from step to step; where several ν were tried, each cell keeps its smallest.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from reticent.privacy.selective_tilts import DOWN, PLAIN, UP, Tilts

# Sums of a few hundred terms in double precision are off by less than this share of their terms.
ROUNDING = 1e-13

# Columns worked on at once: three rows of some hundred atoms each stay in cache.
_BLOCK = 256
# Rounds of slopes per step: many at first, then they are followed from step to step.
_FIRST_STEPS, _FIRST_ROUNDS, _MOST_ROUNDS = 10, 12, 4
_MOST_NODES = 12_000
# Rounds of slopes stop where they save less than this share of what the step adds,
_WORTH = 0.01
# and Dinkelbach's iteration where its closing gap is below this share.
_GAP = 1e-3


class Recursion:
    """h_k on a grid of weights r, one tilted release after another.

    Args:
        tilts: The tilted pairs of one release, in one direction.
        left: The grid reaches down to r = e^{−left}: beyond it δ(ε) stays at δ(left).
        right: And up to r = e^{right}.
        cells: Nodes per standard deviation of one release's loss; the relative excess of the
            result falls with its square (8: about 0.2 %).
    """

    def __init__(self, tilts: Tilts, *, left: float, right: float, cells: float) -> None:
        self.tilts = tilts
        self.count = 0
        self._centre, pick, scale = tilts.scale()
        self._ratios = tilts.ratios / self._centre  # so that the worst tilt has mean about 1
        self._step = scale / cells
        least, most = tilts.means()
        # how many nodes ρ can lie below and above r
        self._below = math.ceil(math.log(most / self._centre) / self._step)
        self._above = math.ceil(-math.log(least / self._centre) / self._step)
        low, high = -math.ceil(left / self._step), math.ceil(right / self._step)
        self.r = np.exp(np.arange(low, high + 1) * self._step)
        self.h = np.maximum(self.r - 1, 0.0)
        self._rho = np.exp(np.arange(low - self._below, high + self._above + 1) * self._step)
        self._prepare_look_up(low, high)
        self._prepare_slopes(pick, cells)
        self._buffers = [np.empty((len(tilts.weights), _BLOCK)) for _ in range(5)]
        self._excess: np.ndarray | None = None  # M less the reference, as of the last step

    def _prepare_look_up(self, low: int, high: int) -> None:
        """Where h(ρf) lies on the grid: a shift by whole cells and a share of the next one."""
        with np.errstate(divide="ignore"):
            position = np.log(self._ratios) / self._step
        # h is next to nothing left of the grid: smaller ratios are raised to where all of it ends
        position = np.maximum(position, low - high - self._below - self._above - 1)
        shift = np.floor(position).astype(int)
        self._share = np.expm1((position - shift) * self._step) / math.expm1(self._step)
        self._pad_left = self._below + max(0, -int(shift.min())) + 1
        self._pad_right = self._above + max(0, int(shift.max())) + 2
        wide = np.arange(low - self._pad_left, high + self._pad_right + 1)
        self._wide = np.exp(wide * self._step)
        self._shift = shift + self._pad_left - self._below
        self._looked = np.empty((3, *position.shape[1:], len(self._rho)))

    def _prepare_slopes(self, pick: np.ndarray, cells: float) -> None:
        """The tilt of largest variance smooths h; its slope is where the search for ν begins."""
        gains = np.array(self.tilts.gains)
        mass = self.tilts.weights * gains[pick]
        row = np.array([PLAIN, UP, PLAIN, DOWN])[pick]
        self._usual = np.stack([mass * (row == k) for k in (PLAIN, UP, DOWN)]) / mass.sum()
        self._slope_shift = np.zeros(len(self._rho))
        self._reach = max(1, round(cells / 3))
        self._rest = self._pause = 0  # steps until better slopes are looked for

    # -- results ------------------------------------------------------------------------------

    def delta(self, epsilon: float) -> float:
        """δ at ε after the releases so far, without what the tilts have lost."""
        r = math.exp(-epsilon)
        return float(self.at(np.array([r]))[0]) / r

    def at(self, r: np.ndarray) -> np.ndarray:
        """An upper bound on h at any weights."""
        return evaluate(self.r, self.h, r)

    # -- one release --------------------------------------------------------------------------

    def advance(self) -> None:
        """One more release."""
        self.count += 1
        wide = evaluate(self.r, self.h, self._wide)
        self._look_up(wide)
        smooth = np.einsum("vj,vji->i", self._usual, self._looked, optimize=True)
        usual = np.gradient(smooth, self._rho)
        slopes = np.maximum(usual + self._slope_shift, 0.0)
        cells = np.full((self._below + self._above, len(self.r)), np.inf)
        follow = self._rest == 0
        grew: list[float] = []
        rounds = _FIRST_ROUNDS if self.count <= _FIRST_STEPS else _MOST_ROUNDS
        for round_ in range(rounds if follow else 1):
            closed, better = self._solve(smooth, slopes, wide if follow else None)
            np.minimum(cells, self._over_cells(closed, slopes * self._rho), out=cells)
            grew.append(_growth(cells.max(axis=0), self.h))
            if round_ > 1 and grew[-1] > (1 - _WORTH) * grew[-3]:
                break
            slopes = _smoothed(slopes + 0.6 / (1 + round_) * (better - slopes), self._reach)
        if follow:
            self._slope_shift = slopes - usual
            # where the slopes are good already, look again only after a while
            idle = grew[-1] > (1 - _WORTH) * grew[0]
            self._pause = min(2 * self._pause + 1, 7) if idle else 0
            self._rest = self._pause
        else:
            self._rest -= 1
        grown = np.maximum(cells.max(axis=0), self.h)
        self.h = lower_hull(self.r, grown * (1 + 4e-16))

    def _look_up(self, wide: np.ndarray) -> None:
        """h(ρf) at every node, atom and distinct ratio: exact on the piecewise linear h."""
        nodes = len(self._rho)
        values = sliding_window_view(wide, nodes)
        rises = sliding_window_view(np.diff(wide), nodes)
        for looked, shift, share in zip(self._looked, self._shift, self._share, strict=True):
            np.multiply(rises[shift], share[:, None], out=looked)
            looked += values[shift]

    def _solve(
        self, reference: np.ndarray, slopes: np.ndarray, wide: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """M at every node, an upper bound; and, if asked, the slope the worst tilt there has."""
        linear = slopes * self._rho
        base = reference - linear
        guess = np.zeros(len(base)) if self._excess is None else self._excess
        closed, found, better = np.empty_like(base), np.empty_like(base), slopes.copy()
        derivative = None
        if wide is not None:
            derivative = sliding_window_view(np.diff(wide) / np.diff(self._wide), len(base))
        for start in range(0, len(base), _BLOCK):
            block = slice(start, min(start + _BLOCK, len(base)))
            closed[block], found[block] = self._dinkelbach(
                block, base[block], linear[block], guess[block]
            )
            if derivative is not None:
                better[block] = self._worst_slope(
                    block, base[block] + found[block], linear[block], derivative[:, block]
                )
        self._excess = found
        rounding = ROUNDING * max(self.tilts.gains) / min(self.tilts.gains)
        return base + closed + rounding * (reference + linear), better

    def _columns(self, block: slice) -> list[np.ndarray]:
        return [buffer[:, : block.stop - block.start] for buffer in self._buffers]

    def _dinkelbach(
        self, block: slice, base: np.ndarray, linear: np.ndarray, guess: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(upper bound, best estimate) of sup E_Q[h(ρf) − νρf] − base, for a block of nodes."""
        tilts, (plain, up, down, best, spare) = self.tilts, self._columns(block)
        low, mixed, high, crossed = tilts.gains
        least, most = tilts.least_mass, tilts.most_mass
        for row, part in ((PLAIN, plain), (UP, up), (DOWN, down)):
            np.multiply(self._ratios[row][:, None], linear, out=spare)
            np.subtract(self._looked[row][:, block], spare, out=part)
            part -= base + guess
        estimate = guess.copy()
        for _ in range(60):
            np.multiply(plain, low, out=best)
            for part, gain in ((plain, high), (up, mixed), (down, crossed)):
                np.maximum(best, np.multiply(part, gain, out=spare), out=best)
            excess = tilts.weights @ best
            closed = estimate + np.where(excess > 0, excess / least, excess / most)
            move = excess / self._mass(plain, up, down, best)  # steers; `closed` is what proves
            if np.all(closed - (estimate + move) <= _GAP * np.abs(estimate + move) + 1e-300):
                break
            estimate = estimate + move
            for part in (plain, up, down):
                part -= move
        return closed, np.minimum(estimate + move, closed)

    def _mass(
        self, plain: np.ndarray, up: np.ndarray, down: np.ndarray, best: np.ndarray
    ) -> np.ndarray:
        low, mixed, high, crossed = self.tilts.gains
        chosen = np.where(plain > 0, high, low)
        np.copyto(chosen, mixed, where=best == up * mixed)
        np.copyto(chosen, crossed, where=best == down * crossed)
        return np.asarray(self.tilts.weights @ chosen)

    def _worst_slope(
        self, block: slice, level: np.ndarray, linear: np.ndarray, derivative: np.ndarray
    ) -> np.ndarray:
        """E_P[h′(ρf)] at the tilt that is worst for these slopes."""
        tilts, (best, mass, moment, spare, _) = self.tilts, self._columns(block)
        best.fill(-np.inf)
        corners = zip((PLAIN, UP, PLAIN, DOWN), tilts.gains, strict=True)
        for row, gain in corners:
            ratios = self._ratios[row][:, None]
            np.multiply(ratios, linear, out=spare)
            np.subtract(self._looked[row][:, block], spare, out=spare)
            spare -= level
            spare *= gain
            chosen = spare > best
            np.copyto(best, spare, where=chosen)
            np.copyto(mass, gain * ratios, where=chosen)
            np.multiply(derivative[self._shift[row]], gain * ratios, out=spare)
            np.copyto(moment, spare, where=chosen)
        return np.asarray((tilts.weights @ moment) / (tilts.weights @ mass))

    def _over_cells(self, level: np.ndarray, linear: np.ndarray) -> np.ndarray:
        """For every r and cell of ρ, the largest chord of M plus νr, with νρ linear in the cell."""
        gap = np.diff(self._rho)
        rise, turn = np.diff(level) / gap, np.diff(linear) / gap
        # on a cell M <= ... + rise·ρ and νρ = offset + turn·ρ
        offset = linear[:-1] - turn * self._rho[:-1]
        count = len(self.r)
        columns = np.stack([level[:-1], rise, linear[:-1], turn, offset, self._rho[:-1]])
        levels, rises, linears, turns, offsets, lows = sliding_window_view(columns, count, 1)
        highs = sliding_window_view(self._rho[1:], count)
        ends = sliding_window_view(level, count) + self.r * sliding_window_view(
            linear / self._rho, count
        )
        peaked = (offsets < 0) & (rises < 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            peak = np.sqrt(self.r * offsets / rises)
        peak = np.where(peaked, np.clip(peak, lows, highs), lows)
        past = peak - lows
        inside = levels + rises * past + self.r * (linears + turns * past) / peak
        return np.maximum(np.maximum(ends[:-1], ends[1:]), inside)


def cells_within(tilts: Tilts, extent: float, *, count: int, most: float, work: float) -> float:
    """At most `most` nodes per standard deviation on a grid of this extent, within so much work.

    The unit of work is one release at one node, for some hundred atoms; the first releases look for
    slopes many times. Beyond `_MOST_NODES` memory is what takes the time.
    """
    scale = tilts.scale()[2]
    least_mean, most_mean = tilts.means()
    reach = math.log(most_mean / least_mean) / scale  # of ρ on either side of r
    rounds = count + (_FIRST_ROUNDS // 2) * min(count, _FIRST_STEPS)
    effort = rounds * len(tilts.weights) / 100
    cells = most
    while (
        extent / scale * cells > _MOST_NODES
        or effort * extent / scale * cells * (1 + reach * cells / 40) > work
    ):
        cells *= 0.95
    return cells


def evaluate(r: np.ndarray, h: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A convex h with h(0) = 0 and slope at most 1, bounded from its values at the nodes r."""
    inside = np.interp(at, r, h)
    return np.where(at < r[0], at / r[0] * h[0], np.where(at > r[-1], h[-1] + (at - r[-1]), inside))


def _growth(grown: np.ndarray, h: np.ndarray) -> float:
    # in the logarithm, so that the far tail, where δ is read off, counts as much as the bulk
    floor = 1e-16
    return float(np.log(np.maximum(grown, floor) / np.maximum(h, floor)).sum())


def _smoothed(values: np.ndarray, reach: int) -> np.ndarray:
    window = np.ones(2 * reach + 1) / (2 * reach + 1)
    return np.convolve(np.pad(values, reach, mode="edge"), window, mode="valid")


def lower_hull(r: np.ndarray, h: np.ndarray) -> np.ndarray:
    """The largest convex function below the points with h(0) = 0 and slope at most 1.

    It is still above the true h, which is such a function.
    """
    # the last term outweighs the rounding of the others, or a small h would be rounded away
    h = np.minimum(h, np.minimum.accumulate(h - r) + r + 1e-15 * (1 + r))
    r, h = np.concatenate([[0.0], r]), np.concatenate([[0.0], h])
    slopes = np.diff(h) / np.diff(r)
    if np.all(np.diff(slopes) >= 0):
        return h[1:]
    corners = [0]
    xs, ys = r.tolist(), h.tolist()
    for i in range(1, len(xs)):
        while len(corners) > 1:
            a, b = corners[-2], corners[-1]
            if (ys[b] - ys[a]) * (xs[i] - xs[a]) < (ys[i] - ys[a]) * (xs[b] - xs[a]):
                break
            corners.pop()
        corners.append(i)
    return np.interp(r[1:], r[corners], h[corners])
