"""Gradients that a training computed, against records that were really drawn."""

from __future__ import annotations

import pytest
import torch

import reticent as rt
from reticent.methods import DPIS, DPSUR, PDSGD, SGD, Selena
from reticent.reproduction.costs import gradient_evaluations

N = 200


def trained(method, steps, **options):
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, 4, generator=generator)
    data = (inputs, (inputs[:, 0] > 0).long())
    training = rt.run(
        torch.nn.Linear(4, 2),
        data,
        method=method,
        steps=steps,
        optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
        coins=rt.Coins.from_seed(1),
        **options,
    )
    seen = []
    inner = training.run._clipped_sum

    def counted(indices, *given, **more):
        seen.append(len(indices))
        return inner(indices, *given, **more)

    training.run._clipped_sum = counted
    training.finish()
    conduct = training.run.conduct.to_json()
    return gradient_evaluations(training.method, conduct, N, steps), sum(seen)


def test_a_plain_sum_in_every_step():
    expected, drawn = trained(rt.DPSGD(batch=50, clip=1.0, noise=0.0), 40)
    assert expected == 2000
    # a binomial of mean 2000 and deviation √(8000 · ¼ · ¾) = 39: six of them
    assert drawn == pytest.approx(expected, abs=235)


def test_norms_of_all_records_once_an_epoch():
    method = DPIS(batch=20, clip=1.0, k=2.0)
    expected, drawn = trained(method, 20, budget=rt.Budget(8, 1e-5))
    assert expected == 20 * 40 + 2 * N
    # the norms of all, exactly; of 40 records a step no more than are drawn
    assert 2 * N < drawn <= expected + 6 * 28


def test_rejected_candidates_cost_as_much():
    expected = gradient_evaluations(
        DPSUR(batch=10, noise=1.0),
        {
            "draws": [
                {"stream": "sampling", "rate": 0.1, "count": 7},
                {"stream": "validation", "rate": 0.2, "count": 7},
            ]
        },
        100,
        3,
    )
    assert expected == 70


def test_what_is_private_is_not_counted():
    hidden = {"draws": [{"stream": "sampling", "rate": 0.1, "count": None}]}
    assert gradient_evaluations(DPSUR(batch=10, noise=1.0), hidden, 100, 3) is None
    deniable = PDSGD(10, sigma=0.1, gamma=1.0)
    assert gradient_evaluations(deniable, {"draws": []}, 100, 3) is None
    norms = {"draws": [{"stream": "sum-sampling", "rate": 1.0, "count": 2}]}
    assert gradient_evaluations(DPIS(batch=10), norms, None, 3) is None


def test_what_is_shuffled_is_a_batch_a_step():
    assert gradient_evaluations(SGD(batch=8), {"draws": []}, 100, 5) == 40
    # 4 of 10 steps train five sub-models
    selena = Selena(batch=8, models=5, excluded=2, share=0.4)
    assert gradient_evaluations(selena, {"draws": []}, 100, 10) == 8 * (4 * 5 + 6)
