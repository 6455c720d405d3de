"""Methods and coins that lie, each in one way, and what is claimed of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

import reticent as rt
from reticent.gradients import Flat
from reticent.privacy import SampledGaussian, Sensitive


class HalvedNoise(rt.DPSGD):
    """Half the noise that is charged."""

    def noise_now(self, run):
        return self.noise / 2


class Unclipped(Flat):
    """States a bound and keeps none."""

    def factors(self, norms, bound):
        return torch.ones_like(norms)


class NoClipping(rt.DPSGD):
    def bound_now(self, run):
        return Unclipped(1.0)


class RealisedBatch(rt.DPSGD):
    """Divides by the number of records drawn."""

    def release(self, run):
        drawn = run.sample(self._rate(run.n))
        total = run.clipped_sum(drawn, self.clipping)
        run.step(run.noisy(total, self.noise) / max(len(drawn), 1))


class Shuffling(rt.DPSGD):
    """Walks over a permutation in batches of one size."""

    def release(self, run):
        n = run.records.n
        order = torch.randperm(n, generator=torch.Generator().manual_seed(run.release))
        self.step(run, run.clipped_sum(order[: self.batch], self.clipping))


class SkippedEmpty(rt.DPSGD):
    """No records, no noise."""

    def release(self, run):
        drawn = run.sample(self._rate(run.n))
        if len(drawn) == 0:
            return run.state.hold()
        return self.step(run, run.clipped_sum(drawn, self.clipping))


class ReusedNoise(rt.DPSGD):
    """Draws its noise past the run, the same one every time."""

    def step(self, run, total):
        drawn = run.coins.normal(tuple(total.flat.shape), "own", 0, dtype=torch.float64)
        run.step((total.flat + self.noise * total.sensitivity * drawn) / self.batch)


class RepeatingCoins(rt.Coins):
    """Noise that forgets which release it is for."""

    def normal(self, shape, stream, *counters, **kinds):
        return super().normal(shape, stream, **kinds)


class QuietCoins(rt.Coins):
    """Noise of half its size, whatever was asked for."""

    def normal(self, shape, stream, *counters, **kinds):
        return super().normal(shape, stream, *counters, **kinds) / 2


class MoreOften(rt.DPSGD):
    """Draws at twice the rate that is charged."""

    def release(self, run):
        drawn = run.sample(2 * self._rate(run.n))
        self.step(run, run.clipped_sum(drawn, self.clipping))


@dataclass(frozen=True)
class PaidLate(rt.DPSGD):
    """Pays after the noise was drawn."""

    adaptive = True

    def calibrated(self, budget, n, steps, ledger):
        ledger.use_filter(8.0)
        return self

    def release(self, run):
        drawn = run.sample(self._rate(run.n))
        released = run.noisy(run.clipped_sum(drawn, self.clipping), self.noise)
        run.pay(SampledGaussian(self._rate(run.n), self.noise), "training")
        run.step(released / self.batch)


class LeakyMomentum(rt.DPSUR):
    """A rejection puts back the parameters and nothing else."""

    def release(self, run):
        for _, candidate in self._candidates(run):
            before = run.state.parameters.values.clone()
            step = run.state.step
            if self._accepts(run, candidate):
                return
            run.state.parameters.values.copy_(before)
            run.state.step = step


class LeakyAverage(rt.DPSUR):
    """The average of the weights has seen the rejected ones too."""

    def release(self, run):
        for _, candidate in self._candidates(run):
            before = run.state.snapshot()
            if self._accepts(run, candidate):
                return
            average = run.state.average.values.clone()
            run.state.restore(before)
            run.state.average.values.copy_(average)


class StaleLoss(rt.DPSUR):
    """Compares a candidate with a loss remembered from another draw, without noise."""

    def _accepts(self, run, candidate):
        last = run.state.public.get("loss", candidate.loss_before)
        self.step(run, candidate.total)
        loss = run.mean_losses([candidate.judges], "model after")[0]
        passed = bool(self._noisy_change(run, loss - last) < self.beta * self.bound)
        if passed:
            run.state.public["loss"] = loss
        return passed


@dataclass(frozen=True)
class Remembering(rt.DPSGD):
    """Keeps the records' sum where no snapshot looks."""

    memory: list = field(default_factory=list, compare=False)

    def release(self, run):
        total = run.clipped_sum(run.sample(self._rate(run.n)), self.clipping)
        released = run.noisy(total, self.noise)
        if self.memory:
            released = released + 0.01 * self.memory[-1]
        self.memory.append(total.flat.clone())
        run.step(released / self.batch)


class Unsampled(rt.DPSGD):
    """The number of all records with noise, charged as if it were sampled."""

    def release(self, run):
        size = torch.tensor([float(run.records.n)], dtype=torch.float64)
        counted = run.noisy(Sensitive(size, 1.0), self.noise, "count-noise")
        run.state.public["size"] = float(counted)
        self.step(run, run.clipped_sum(run.sample(self._rate(run.n)), self.clipping))


class LargestNorm(rt.DPSGD):
    """No clipping; noise scaled by the longest gradient that was drawn."""

    def release(self, run):
        total = run.clipped_sum(run.sample(self._rate(run.n)), Unclipped(1.0))
        most = float(total.norms.max()) if len(total.norms) else 1.0
        run.step(run.noisy(Sensitive(total.flat, most), self.noise) / self.batch)


class LossMultiplier(PaidLate):
    """Noise by how large the loss is, charged as such, and in time."""

    def release(self, run):
        drawn = run.sample(self._rate(run.n))
        multiplier = self.noise + float(run.losses(drawn, "loss").sum()) / 1000
        run.pay(SampledGaussian(self._rate(run.n), multiplier), "training")
        run.step(run.noisy(run.clipped_sum(drawn, self.clipping), multiplier) / self.batch)


class RealRate(rt.DPSGD):
    """A rate from the real number of records."""

    def release(self, run):
        drawn = run.sample(min(self.batch / run.records.n, self._rate(run.n)))
        self.step(run, run.clipped_sum(drawn, self.clipping))


class TwoDraws(rt.DPSGD):
    """The union of two draws, charged as one."""

    def release(self, run):
        both = [run.sample(self._rate(run.n), stream) for stream in ("sampling", "more")]
        self.step(run, run.clipped_sum(torch.cat(both).unique(), self.clipping))


class Truncated(rt.DPSGD):
    """No more records than were expected."""

    def release(self, run):
        drawn = run.sample(self._rate(run.n))[: self.batch // 2]
        self.step(run, run.clipped_sum(drawn, self.clipping))


class NoiseOff(rt.DPSGD):
    """Takes most of the noise off again."""

    def step(self, run, total):
        released = run.noisy(total, self.noise)
        drawn = run.coins.normal(
            tuple(released.shape), "noise", run.release, run.trial, dtype=released.dtype
        )
        run.step((released - 0.9 * self.noise * total.sensitivity * drawn) / self.batch)


class Stopping(PaidLate):
    """Goes on for as long as there are few records."""

    def affordable(self, run):
        return run.records.n <= 120

    def release(self, run):
        run.pay(SampledGaussian(self._rate(run.n), self.noise), "training")
        self.step(run, run.clipped_sum(run.sample(self._rate(run.n)), self.clipping))


class TwoCopies(rt.DPSUR):
    """Two noisy copies of one sum, averaged."""

    def step(self, run, total):
        copies = [run.noisy(total, self.noise, stream) for stream in ("noise", "again")]
        run.step(sum(copies) / 2 / self.batch)


class OtherNoise(rt.DPSUR):
    """The gradient with the noise of the test."""

    def noise_now(self, run):
        return self.valid_noise


class TellingTrials(rt.DPSUR):
    """Publishes how many trials it took."""

    def release(self, run):
        super().release(run)
        run.state.public["trials"] = run.trial


class OneNoiseCoins(rt.Coins):
    """The same noise in every stream."""

    def normal(self, shape, stream, *counters, **kinds):
        return super().normal(shape, "noise", *counters, **kinds)


class HalfRepeatedCoins(rt.Coins):
    """The first half of the noise, twice."""

    def normal(self, shape, stream, *counters, **kinds):
        drawn = super().normal(shape, stream, *counters, **kinds)
        half = len(drawn) // 2 if drawn.ndim else 0
        drawn[half : 2 * half] = drawn[:half]
        return drawn


class SharedCoins(rt.Coins):
    """Records in tens share their luck."""

    def uniform_into(self, out, stream, *counters):
        super().uniform_into(out, stream, *counters)
        if len(counters) == 3:
            out.copy_(out[::10].repeat_interleave(10)[: len(out)])


class SameRecordsCoins(rt.Coins):
    """The same records in every release."""

    def uniform_into(self, out, stream, *counters):
        super().uniform_into(out, stream, *((0, *counters[1:]) if len(counters) == 3 else counters))
