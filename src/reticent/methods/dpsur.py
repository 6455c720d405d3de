"""DPSUR: propose an update by DP-SGD, test it on fresh records, release it only if it helps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from reticent.errors import OptionError, TrialsExhaustedError, between, finite, single, whole
from reticent.methods.base import Price
from reticent.methods.dpsgd import DPSGD
from reticent.privacy import (
    Budget,
    Charge,
    Ledger,
    NonPrivate,
    SelectiveGaussian,
    Sensitive,
    noise_for,
    trials_for,
)
from reticent.privacy.selective import VALID_NOISE

if TYPE_CHECKING:
    from reticent.training.run import RecordSum, Run
    from reticent.training.state import Snapshot


# Candidates computed together on a CUDA device, and the largest batch·parameters where that pays.
TOGETHER, SMALL_WORK = 4, 500_000_000


@dataclass(frozen=True)
class _Candidate:
    """What a trial needs of the records; all of it private."""

    total: RecordSum
    judges: torch.Tensor
    loss_before: torch.Tensor


@dataclass(frozen=True)
class DPSUR(DPSGD):
    """Selective update and release (Fu et al. 2024, Algorithm 2), done so that its ε holds.

    A trial makes a candidate by one step of DP-SGD, draws a fresh validation batch B′ from the same
    records, compares the mean loss of both models on it, clips the change ΔE to ±C_v, adds noise of
    2·C_v·σ_v and accepts below β·C_v. A rejected candidate leaves nothing behind: parameters,
    optimizer, scheduler, averages and counters are put back. Only what was accepted is released.

    Formal guarantee: one release costs a `SelectiveGaussian`, not what the paper charges: an update
    that was released because it passed a test on the data has another law than an update (see
    docs/selection.md). An empty B′ counts as ΔE = 0 and a loss that is not finite as ΔE = +C_v, so
    that every candidate passes with a probability between the two extremes. The number of trials
    is never released; its effect on the running time is, to whoever can measure it: see `pad`.

    Args:
        batch: The expected number of records in a candidate's batch (B_t).
        clip: As for DP-SGD (C_t).
        noise: The noise multiplier of a candidate (σ_t); None: set from budget and steps.
        valid_batch: The expected number of records in a validation batch (B_v).
        valid_noise: σ_v; the paper's Table 1 has 0.8 to 1.3.
        bound: C_v.
        beta: The threshold β.
        trials: After so many rejections in a row the run breaks off with an error. The probability
            of that is added to δ; the default makes it less than 1e-30 a release.
        pad: Make the trials of every release up to a multiple of this, so that its running time
            says less of how many were needed. None: stop at the first that is accepted.
        together: How many candidates to compute in one pass; no influence on the result but
            rounding (and, with dropout, which masks are drawn). None: several on a CUDA device
            where the model is small, else one.

    Example:
        >>> DPSUR(batch=1024, noise=2.0).price(n=60000)[0][0].kind
        'selective-gaussian'
    """

    valid_batch: int = 256
    valid_noise: float = 1.3
    bound: float = 0.001
    beta: float = -1.0
    trials: int | None = None
    pad: int | None = None
    together: int | None = None

    restores: ClassVar[bool] = True
    timing_is_private: ClassVar[bool] = True
    name: ClassVar[str] = "dpsur"
    title: ClassVar[str] = "Selective update and release"
    paper: ClassVar[str] = (
        "Fu et al., DPSUR: Accelerating differentially private stochastic gradient descent using "
        "selective update and release, PVLDB 17(6), 2024"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("valid_batch", self.valid_batch)
        between("valid_noise", self.valid_noise, *VALID_NOISE)
        single("bound", self.bound)
        finite("beta", self.beta)
        if self.trials is not None:
            whole("trials", self.trials)
        if self.pad is not None:
            whole("pad", self.pad)
        if self.together is not None:
            whole("together", self.together)
        self._charge(rate=1.0, valid_rate=1.0, noise=1.0)  # β and σ_v are checked there

    @property
    def most_trials(self) -> int:
        """After so many rejections the run breaks off."""
        return trials_for(self.beta, self.valid_noise) if self.trials is None else self.trials

    def _charge(self, *, rate: float, valid_rate: float, noise: float) -> SelectiveGaussian:
        return SelectiveGaussian(
            rate, noise, valid_rate, self.valid_noise, self.beta, self.most_trials
        )

    def _valid_rate(self, n: int) -> float:
        if self.valid_batch > n:
            raise OptionError(
                "valid_batch", self.valid_batch, f"exceeds the data set's nominal size {n}"
            )
        return self.valid_batch / n

    def price(self, n: int) -> Price:
        """As the base class says."""
        rate, valid_rate = self._rate(n), self._valid_rate(n)
        if self.noise is None:
            raise OptionError("noise", None, "is not set; calibrate it, or give a multiplier")
        if self.noise == 0:
            return ((NonPrivate("noise multiplier 0"), "training"),)
        charge = self._charge(rate=rate, valid_rate=valid_rate, noise=self.noise)
        return ((charge, "selected updates"),)

    def calibrated(self, budget: Budget, n: int, steps: int, ledger: Ledger) -> DPSUR:
        """As the base class says."""
        rate, valid_rate = self._rate(n), self._valid_rate(n)

        def charge_at(multiplier: float) -> Charge:
            return self._charge(rate=rate, valid_rate=valid_rate, noise=multiplier)

        return replace(self, noise=noise_for(budget, charge_at, steps, ledger=ledger))

    def release(self, run: Run) -> None:
        """As the base class says."""
        before = run.state.snapshot()
        try:
            accepted = self._first_accepted(run, before)
        except BaseException:
            run.state.restore(before)  # a candidate that was not accepted must not be looked at
            raise
        if accepted is not None:
            run.state.restore(accepted)

    def _first_accepted(self, run: Run, before: Snapshot) -> Snapshot | None:
        """Leave the state at the accepted candidate, or return that where trials were padded."""
        accepted = None
        for trial, candidate in self._candidates(run):
            if self._accepts(run, candidate) and accepted is None:
                run.diagnose(trials=trial + 1)
                if self.pad is None:
                    return None
                accepted = run.state.snapshot()
            if accepted is not None and (trial + 1) % (self.pad or 1) == 0:
                break
            run.state.restore(before)
        if accepted is None:
            raise self._exhausted(run)
        return accepted

    def _candidates(self, run: Run) -> Iterator[tuple[int, _Candidate]]:
        """Each trial's clipped sum, validation batch and the present model's loss on it.

        All candidates of a release start from the same state, so their sums can be computed
        together; whatever lies behind the accepted one is thrown away unseen. Coins belong to
        trials, so this is the same as one after the other, up to rounding. Where a sum is cheap to
        start (`run.replays`), only draws and losses are had together, and each sum in its turn:
        the state is then back where it was.
        """
        group = self._group(run)
        ready: list[tuple[torch.Tensor, RecordSum | None, torch.Tensor, torch.Tensor]] = []
        for trial in run.trials(self.most_trials):
            if not ready:
                count = min(group, self.most_trials - trial)
                judges = run.samples(self._valid_rate(run.n), "validation", count)
                draws = run.samples(self._rate(run.n), "sampling", count)
                totals: list[RecordSum | None] = [None] * count
                if not run.replays:
                    totals = list(run.clipped_sums(draws, self.bound_now(run)))
                losses = run.mean_losses(judges, "model before")
                ready = list(zip(draws, totals, judges, losses, strict=True))
            draw, total, jury, loss = ready.pop(0)
            total = run.clipped_sum(draw, self.bound_now(run)) if total is None else total
            yield trial, _Candidate(total, jury, loss)

    def _group(self, run: Run) -> int:
        """How many candidates to compute together: more than one only where launches dominate."""
        if self.together is not None:
            return self.together
        work = self.batch * run.state.parameters.values.numel()
        return TOGETHER if run.device.type == "cuda" and work <= SMALL_WORK else 1

    def _accepts(self, run: Run, candidate: _Candidate) -> bool:
        """Move the state to a candidate and test it (Algorithm 2, lines 7 to 14)."""
        self.step(run, candidate.total)
        loss = run.mean_losses([candidate.judges], "model after")[0]
        change = loss - candidate.loss_before
        return bool(self._noisy_change(run, change) < self.beta * self.bound)

    def _exhausted(self, run: Run) -> TrialsExhaustedError:
        return TrialsExhaustedError(
            f"trials = {self.most_trials}: no candidate of release {run.release} was accepted; "
            f"raise trials, beta ({self.beta:g}) or valid_noise ({self.valid_noise:g})"
        )

    def _noisy_change(self, run: Run, change: torch.Tensor) -> torch.Tensor:
        clipped = change.clamp(-self.bound, self.bound)
        # NaN compares as false: it would leave the range that the theorem allows
        clipped = torch.where(torch.isfinite(change), clipped, self.bound)
        sensitive = Sensitive(clipped, 2 * self.bound)
        return run.noisy(sensitive, self.valid_noise, "validation-noise")

    def options(self) -> dict[str, Any]:
        """As the base class says."""
        return {
            **super().options(),
            "valid_batch": self.valid_batch,
            "valid_noise": self.valid_noise,
            "bound": self.bound,
            "beta": self.beta,
            "trials": self.most_trials,
            "pad": self.pad,
            "together": self.together,
        }
