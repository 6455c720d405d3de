"""Whatever gets noise has been paid for: its charge is in the ledger when the noise is drawn."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import reticent as rt
from reticent.privacy import SampledGaussian, SampledPure
from reticent.training.run import Run

from .problem import started

QUIET = {"sum_noise": 20.0, "count_noise": 21.0}
METHODS = {
    "dpsgd": rt.DPSGD(batch=30, noise=2.0),
    "noise-decay": rt.NoiseDecay(batch=30, noise=3.0, schedule="step", rate=0.8, stage=3, period=1),
    "sign-sgd": rt.SignSGD(batch=30, noise=2.0),
    "dpagd": rt.DPAGD(batch=60, noise=6.0, candidates=3, longest=1.0),
    "dpis": rt.DPIS(batch=20, k=2.0, adapt=True, **QUIET),
    "dpis, sums sampled": rt.DPIS(batch=20, k=2.0, sum_rate=0.5, adapt=True, **QUIET),
}


@pytest.mark.parametrize("name", METHODS)
def test_charges_come_before_noise(name, monkeypatch):
    made = Counter()
    noisy, noisy_min = Run.noisy, Run.noisy_min

    def check(run, kind, number):
        made[kind, number] += 1
        field = {SampledGaussian: "multiplier", SampledPure: "epsilon"}[kind]
        paid = sum(
            entry.count
            for entry in run.ledger.entries
            if isinstance(entry.charge, kind) and getattr(entry.charge, field) == number
        )
        assert paid >= made[kind, number]

    def gaussian(run, total, multiplier, stream="noise"):
        check(run, SampledGaussian, multiplier)
        return noisy(run, total, multiplier, stream)

    def choice(run, scores, epsilon, stream):
        check(run, SampledPure, epsilon)
        return noisy_min(run, scores, epsilon, stream)

    monkeypatch.setattr(Run, "noisy", gaussian)
    monkeypatch.setattr(Run, "noisy_min", choice)
    training = started(
        METHODS[name],
        budget=rt.Budget(20, 1e-3),
        steps=13,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.3),
    )
    result = training.finish()
    # and nothing was paid for that was not made
    assert sum(made.values()) == sum(entry.count for entry in result.ledger.entries)
