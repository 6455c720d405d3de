"""DPIS: records are drawn by the size of their gradients, which lets less noise do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from reticent.errors import (
    BudgetError,
    OptionError,
    between,
    finite,
    not_negative,
    positive,
    single,
    whole,
)
from reticent.gradients import Normalised
from reticent.gradients.clipping import clip_bound
from reticent.methods.base import Method, Price, Stage, bill_of
from reticent.methods.importance import Iterations, noise_within, sum_charge
from reticent.privacy import (
    Bill,
    Budget,
    Charge,
    Ledger,
    SampledGaussian,
    Sensitive,
    filter_order_for,
    noise_for_plan,
)
from reticent.privacy.accountants import rdp_epsilon

if TYPE_CHECKING:
    from reticent.training.run import Run

# Of the nominal size: the paper's σ_N and σ_K (section 5.3, Table 2).
SHARE_OF_N = 0.02
# An adapted clipping bound stays above this part of the first one.
LEAST_CLIP = 0.01
# Sums of norms, and their squares, stay within single precision.
CLIPS = (1e-9, 1e17)


@dataclass(frozen=True)
class DPIS(Method):
    """Importance sampling (Wei, Bao, Xiao, Yang 2022, Algorithm 1, as far as it is private).

    An epoch begins with all records' gradient norms and a noisy sum K̃ of them. In an iteration a
    record is drawn with probability q = b·ĝ/K̃, where ĝ is k times the norm it was last seen with,
    and kept with probability ‖ḡ‖/ĝ: in all b‖ḡ‖/K̃ (Equation 15). Those kept contribute
    ḡ/(Ñ·q·p), a vector of norm K̃/(Ñb) whoever they are.

    Formal guarantee: each iteration is a Poisson-sampled Gaussian of rate bC/K̃ and multiplier
    σ_G·ÑC/K̃ for adding or removing one record, whatever the norms remembered of it; every release
    of Ñ, K̃ and K̃* is charged with its own sensitivity; and since σ_G depends on K̃, a filter keeps
    the budget (see docs/methods/dpis.md for where this differs from the paper).

    Args:
        batch: b, the expected number of records that enter a release.
        clip: C, the bound on one record's gradient in the first epoch.
        noise: The σ_G planned for the worst case; found from the budget, never given.
        k: How many times its last norm a record's norm may grow unnoticed; k·b records are drawn.
        least: g_L as a share of C: no record is drawn as if its norm were smaller.
        sum_noise: σ_K, the noise on sums of norms in units of C; by default 0.02 n.
        sum_rate: p_K, the rate at which the first norms of an epoch are summed. The paper's
            batch/n costs as much, once it is charged right, and leaves more to chance.
        count_noise: σ_N, the noise on the number of records; by default 0.02 n. With 0 the nominal
            number is used, which is public, and nothing is released.
        divider: a_E, the share of epochs that save for a worst case (section 4.2).
        adapt: Whether C follows the mean norm (section 3.5).
        outer: C*, the bound on norms for that; by default 4 C.
        quantile: λ, C as a multiple of the mean norm.

    Example:
        >>> DPIS(batch=256, clip=1.0, noise=1.1).price(n=60000)[0][0]
        SampledGaussian(rate=0.0042..., multiplier=1.1)
    """

    batch: int
    clip: float = 1.0
    noise: float | None = None
    k: float = 5.0
    least: float = 0.01
    sum_noise: float | None = None
    sum_rate: float = 1.0
    count_noise: float | None = None
    divider: float = 0.8
    adapt: bool = False
    outer: float | None = None
    quantile: float = 1.0

    name: ClassVar[str] = "dpis"
    title: ClassVar[str] = "Differentially private importance sampling"
    paper: ClassVar[str] = (
        "Wei, Bao, Xiao, Yang, DPIS: an enhanced mechanism for differentially private SGD with "
        "importance sampling, CCS 2022"
    )
    adaptive: ClassVar[bool] = True

    def __post_init__(self) -> None:
        whole("batch", self.batch)
        single("quantile", self.quantile)
        if finite("k", self.k) < 1:
            raise OptionError("k", self.k, "must be at least 1")
        between("least", self.least, 0, 1, open_low=True)
        between("divider", self.divider, 0, 1)
        for option in ("clip", "outer"):
            given = getattr(self, option)
            if given is not None:
                between(option, clip_bound(option, given), *CLIPS)
        for option in ("noise", "sum_noise"):
            given = getattr(self, option)
            if given is not None:
                positive(option, given)
        between("sum_rate", self.sum_rate, 0, 1, open_low=True)
        if self.count_noise is not None:
            finite("count_noise", not_negative("count_noise", self.count_noise))

    @property
    def drawn(self) -> int:
        """Of k·b drawn, b are kept on average."""
        return math.ceil(self.k * self.batch)

    # -- the plan -----------------------------------------------------------------------------

    def epoch(self, n: int) -> int:
        """Iterations of one epoch, from the nominal size."""
        return max(round(n / self.batch), 1)

    def _rates(self, n: int) -> tuple[float, float]:
        """(p_K, σ_K)."""
        if self.k * self.batch > n:
            raise OptionError(
                "batch", self.batch, f"k = {self.k:g} times it exceeds the nominal size {n}"
            )
        return self.sum_rate, SHARE_OF_N * n if self.sum_noise is None else self.sum_noise

    def _count_noise(self, n: int) -> float:
        return SHARE_OF_N * n if self.count_noise is None else self.count_noise

    def price(self, n: int) -> Price:
        """As the base class says."""
        if self.noise is None:
            raise OptionError("noise", None, "is not planned yet; it follows from the budget")
        self._rates(n)
        return ((Iterations(1, self.batch / n, 1.0).charge(self.noise), "training"),)

    def stages(self, n: int, steps: int) -> tuple[Stage, ...]:
        """The worst case: sums of norms are as large as they can be."""
        epochs = -(-steps // self.epoch(n))
        once: list[Stage] = []
        if self._count_noise(n):
            once.append((((SampledGaussian(1.0, self._count_noise(n)), "number of records"),), 1))
        once += [(((charge, "sum of norms"),), epochs) for charge in self._sums(n)]
        return (*once, (self.price(n), steps))

    def _sums(self, n: int) -> list[Charge]:
        """What the sums of norms of one epoch cost."""
        rate, noise = self._rates(n)
        return [sum_charge(rate, noise), *([SampledGaussian(1.0, noise)] if self.adapt else [])]

    def paid(self, released: Mapping[str, Any], steps: int) -> tuple[Stage, ...]:
        """What a run of `steps` iterations paid, from what it released (`released`)."""
        n, size, epochs = released["n"], released["size"], released["epochs"]
        length, (first, *outer) = self.epoch(n), self._sums(n)
        found: list[Stage] = []
        if self._count_noise(n):
            found.append((((SampledGaussian(1.0, self._count_noise(n)), "number of records"),), 1))
        for line in epochs:
            begun = line["release"]
            count = min(length, steps - begun)
            share = line["sum"] / (size * line["clip"])
            one = Iterations(1, self.batch / size, share).charge(line["noise"])
            found.append((((first, "sum of norms"),), 1))
            found.append((((one, "training"),), count))
            if begun + length < steps:
                found += [(((charge, "sum of norms"),), 1) for charge in outer]
        return tuple(found)

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> DPIS:
        """Plan for the worst case, and fix the filter's order by it."""
        if self.noise is not None:
            raise OptionError(
                "noise", self.noise, "is set anew every epoch from what the budget leaves"
            )

        def bill(noise: float) -> Bill:
            return bill_of(replace(self, noise=noise).stages(n, steps))

        before = tuple((entry.accounted, entry.count) for entry in ledger.entries)
        besides = rdp_epsilon((*before, *bill(1.0)[:-1]), budget.delta)
        if besides >= budget.epsilon:
            raise BudgetError(
                f"epsilon = {budget.epsilon:g} at delta = {budget.delta:g}: the number of records "
                f"and the sums of norms alone cost {besides:.3g} at count_noise = "
                f"{self._count_noise(n):g}, sum_noise = {self._rates(n)[1]:g} and sum_rate = "
                f"{self._rates(n)[0]:.3g}; raise them"
            )
        by = "rdp" if ledger.filter_order is None else "filter"
        noise = noise_for_plan(budget, bill, ledger=ledger, accountant=by)
        if ledger.filter_order is None:
            ledger.use_filter(filter_order_for(budget, (*before, *bill(noise))))
        return replace(self, noise=noise)

    # -- releases -----------------------------------------------------------------------------

    def release(self, run: Run) -> None:
        """As the base class says."""
        length = self.epoch(run.n)
        epoch, iteration = divmod(run.state.step, length)
        if run.state.step == 0:
            self._count(run)
        if iteration == 0:
            self._begin(run, epoch, length)
        self._iterate(run)
        if self.adapt and run.state.step % length == 0 and run.state.step != run.releases:
            self._adapt(run)

    def _count(self, run: Run) -> None:
        """Ñ (Equation 10), never below k·b: the clamps of K̃ need room."""
        noise, number = self._count_noise(run.n), float(run.n)
        if noise:
            run.pay(SampledGaussian(1.0, noise), "number of records")
            size = torch.tensor(float(run.records.n), dtype=torch.float64, device=run.device)
            number = float(run.noisy(Sensitive(size, 1.0), noise, "count-noise"))
        run.state.public["n"] = run.n
        run.state.public["size"] = max(number, self.k * self.batch)
        run.state.public["clip"] = float(self.clip)
        run.state.public["epochs"] = []

    def _begin(self, run: Run, epoch: int, length: int) -> None:
        """All norms, their noisy sum K̃ (Equations 11, 12), and the noise it affords."""
        public = run.state.public
        clip, size = public["clip"], public["size"]
        rate, noise = self._rates(run.n)
        norms = run.norms("norms").double()
        run.pay(sum_charge(rate, noise), "sum of norms")
        drawn = run.sample(rate, "sum-sampling").to(run.device)
        total = norms.clamp(max=clip)[drawn].sum()
        found = float(run.noisy(Sensitive(total, clip), noise * rate, "sum-noise")) / rate
        public["sum"] = self.clamped(found, clip, size)
        public["noise"] = self._affordable_noise(run, epoch, length)
        line = {name: public[name] for name in ("sum", "clip", "noise")}
        public["epochs"].append({"release": run.state.step, **line})
        run.private["reach"] = self._reach(norms, clip)
        if self.adapt:
            run.private["norms"] = norms.clamp(max=self._outer)

    def clamped(self, found: float, clip: float, size: float) -> float:
        """K̃ (Equation 12): below k·b·C some q would pass 1, and a weight what was charged."""
        return min(max(found, self.k * self.batch * clip), size * clip)

    def _affordable_noise(self, run: Run, epoch: int, length: int) -> float:
        """σ_G of this epoch (section 4.2), as far as the filter still lets it."""
        assert run.releases is not None
        assert run.ledger.filter_order is not None
        public = run.state.public
        left = run.releases - run.state.step
        now = min(length, left)
        epochs, ahead = -(-run.releases // length), -(-(left - now) // length)
        reserved = ahead * sum(self._divergence(run, c) for c in self._sums(run.n))
        if self.adapt and left > now:
            reserved += self._divergence(run, self._sums(run.n)[1])
        rate, share = self.batch / public["size"], public["sum"] / (public["size"] * public["clip"])
        later = 1.0 if epoch < self.divider * epochs else share
        plan = [Iterations(now, rate, share), Iterations(left - now, rate, later)]
        room = run.ledger.divergence_left() * (1 - 1e-9) - reserved
        return noise_within(room, run.ledger.filter_order, plan)

    def _divergence(self, run: Run, charge: Charge) -> float:
        assert run.ledger.filter_order is not None
        return float(charge.rdp((run.ledger.filter_order,))[0])

    def _iterate(self, run: Run) -> None:
        """One draw in two steps (section 3.4), and its noisy mean."""
        public = run.state.public
        clip, size, total = public["clip"], public["size"], public["sum"]
        reach = run.private["reach"]
        drawn = run.sample_each(reach * (self.batch / total))
        here = drawn.to(run.device)
        old = reach[here]
        # accepted if u·ĝ ≤ min(‖g‖, ĝ, C); u > 0, or rounding would favour acceptance
        asked = (run.flips("acceptance")[here] + 2.0**-53) * old
        asked = torch.where(asked <= clip, asked, torch.inf)
        asked = asked.to(run.state.parameters.values.dtype)
        summed = run.clipped_sum(drawn, Normalised(total / size), least=asked)
        norms = summed.norms.double()
        one = Iterations(1, self.batch / size, total / (size * clip)).charge(public["noise"])
        run.pay(one, "training")
        released = run.noisy(summed, one.multiplier)
        reach[here] = self._reach(torch.minimum(norms, old), clip)
        if self.adapt:
            run.private["norms"][here] = norms.clamp(max=self._outer)
        run.step(released / self.batch)

    def _reach(self, norms: torch.Tensor, clip: float) -> torch.Tensor:
        """ĝ = k·max(‖ḡ‖, g_L)."""
        return self.k * norms.clamp(max=clip).clamp(min=self.least * clip)

    @property
    def _outer(self) -> float:
        return 4 * self.clip if self.outer is None else self.outer

    def _adapt(self, run: Run) -> None:
        """C for the next epoch (Equations 16, 17), from all records: no amplification here."""
        public = run.state.public
        _, noise = self._rates(run.n)
        run.pay(SampledGaussian(1.0, noise), "sum of norms")
        total = Sensitive(run.private["norms"].sum(), self._outer)
        found = float(run.noisy(total, noise, "outer-noise")) * self.quantile / public["size"]
        public["clip"] = min(max(found, LEAST_CLIP * self.clip), self._outer)

    def released(self, public: dict[str, Any]) -> dict[str, Any]:
        """The nominal n, Ñ, and K̃, C and σ_G of every epoch."""
        return {name: public.get(name) for name in ("n", "size", "epochs")}

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return dict(vars(self))
