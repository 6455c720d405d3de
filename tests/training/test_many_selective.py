"""DPSUR for many models at once, against separate runs with the same coins."""

import pytest
import torch
from torch import nn

import reticent as rt
from reticent.audit.books import check_books
from reticent.errors import ModelError, TrialsExhaustedError
from reticent.methods.published import PublishedDPSUR
from reticent.training.selective_stack import SelectiveStack

from .many_together import agree, at_once, compare, one_by_one, sgd
from .models_together import FLAT, IMAGES, cnn, mlp

OPTIONS = {
    "batch": 12, "clip": 0.3, "noise": 2.0, "valid_batch": 30, "bound": 0.01, "beta": -0.5,
    "valid_noise": 0.8,
}  # fmt: skip
LOTS = rt.Budget(400, 1e-4)


@pytest.fixture
def rounds(monkeypatch):
    """How many releases each round of trials made."""
    seen = []
    plain = SelectiveStack.release

    def release(self):
        plain(self)
        seen.append(len(self.moved))

    monkeypatch.setattr(SelectiveStack, "release", release)
    return seen


def test_models_at_different_releases_come_out_as_if_alone(rounds):
    results = compare(method=rt.DPSUR(**OPTIONS), budget=LOTS, optimizer=sgd(0.4, 0.9), average=0.9,
                      steps=[4, 9, 6], every=[2, 3, 1])  # fmt: skip
    assert sum(rounds) == 19
    assert len(rounds) > 9 + 3  # some candidates were rejected
    assert any(0 < made < 3 for made in rounds[:4])  # and the models fell out of step
    for result in results:
        assert check_books(result.to_json()).passed
        assert result.seconds is None


@pytest.mark.parametrize("stale", [True, False])
@pytest.mark.parametrize("leaky", [True, False])
def test_the_published_code_and_its_leaks(stale, leaky, rounds):
    method = PublishedDPSUR(**OPTIONS, stale_validation=stale, leaky_momentum=leaky)
    compare(method=method, budget=None, optimizer=sgd(0.2, 0.8), steps=6)
    assert len(rounds) > 6


def test_settings_may_differ():
    others = {"beta": -1.0, "bound": 0.005, "clip": 0.5, "valid_noise": 1.2}
    methods = [PublishedDPSUR(**OPTIONS, stale_validation=False)] * 2
    methods.append(PublishedDPSUR(**{**OPTIONS, **others}, stale_validation=False))
    compare(
        method=[*methods, rt.SGD(batch=12)], budget=None, count=4, steps=[5, 5, 3, 4],
        optimizer=[sgd(0.4, 0.9), sgd(0.1), sgd(0.2), sgd(0.1)],
    )  # fmt: skip


def test_convolutions():
    test = (IMAGES[0][:30], IMAGES[1][:30])
    compare(
        cnn, IMAGES, method=PublishedDPSUR(**OPTIONS), budget=None, steps=4, count=2,
        evaluation=lambda model: rt.evaluate(model, test),
    )  # fmt: skip


def test_judges_that_are_often_missing():
    small = tuple(column[:4] for column in FLAT)
    method = PublishedDPSUR(**{**OPTIONS, "batch": 1, "valid_batch": 1}, stale_validation=False)
    compare(data=small, method=method, budget=None, steps=8)


def test_a_loss_that_is_not_finite_counts_as_the_worst():
    inputs = FLAT[0].clone()
    inputs[::2] = 3e38
    method = PublishedDPSUR(**OPTIONS, stale_validation=False)
    own = {"method": method, "budget": None, "steps": 3, "optimizer": sgd(0.1)}
    data = (inputs, FLAT[1])
    together, alone = (
        way(lambda: nn.Linear(6, 2), data, 2, [1, 2], {}, own) for way in (at_once, one_by_one)
    )
    for one, other in zip(together, alone, strict=True):
        agree(one, other)


def test_trials_that_are_used_up_are_told_with_the_model():
    method = PublishedDPSUR(**{**OPTIONS, "beta": -3.0}, trials=1, stale_validation=False)
    own = {"method": method, "budget": None, "steps": 3, "optimizer": sgd(0.1)}
    with pytest.raises(TrialsExhaustedError, match="release 0 of model 0"):
        at_once(mlp, FLAT, 2, [1, 2], {}, own)


def adam(params):
    return torch.optim.Adam(params, lr=0.01)


def cosine(made):
    return torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optimizer": adam}, "SGD without dampening"),
        ({"scheduler": cosine}, "no schedule in common"),
        ({"method": PublishedDPSUR(**OPTIONS, pad=2)}, "padded trials"),
    ],
)
def test_what_belongs_to_one_pace_goes_one_after_the_other(changes, words):
    own = {"method": PublishedDPSUR(**OPTIONS), "budget": None, "steps": 3, "optimizer": sgd(0.1)}
    own |= changes
    results = at_once(mlp, FLAT, 2, [1, 2], {}, own, how="auto")
    assert all(words in reason for reason in results.apart.values())
    assert len(results.apart) == 2
    for one, other in zip(results, one_by_one(mlp, FLAT, 2, [1, 2], {}, own), strict=True):
        agree(one, other, rtol=0, atol=0)
    with pytest.raises(ModelError, match=words):
        at_once(mlp, FLAT, 2, [1, 2], {}, own)
