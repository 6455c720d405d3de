"""On a device: models trained at once against separate runs with the same coins."""

import functools

import pytest
import torch

import reticent as rt
from reticent.methods.published import PublishedDPSUR
from reticent.training.held_out import HeldOut
from reticent.training.many import train_many
from reticent.training.ruled_sums import RuledSums
from reticent.training.side_by_side import Stack

from .many_together import TEST, agree, sgd
from .models_together import FLAT, IMAGES, WORDS, Text, cnn, make, mlp

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
BUDGET = rt.Budget(60, 1e-4)
NOISE = {"batch": 30, "clip": 0.3, "noise": 0.8}
SELECTIVE = {"batch": 30, "clip": 0.3, "noise": 2.0, "valid_batch": 30, "bound": 0.01}


def both(build, data, count=4, **own):
    def option(value, k):
        return value[k] if isinstance(value, list) else value

    own = {"budget": BUDGET, "steps": 9, "optimizer": sgd(0.2, 0.5), **own}
    same = {"device": "cuda", "precision": "float32"}
    coins = [rt.Coins.from_seed(40 + k) for k in range(count)]
    together = train_many(make(build, count), data, coins=coins, how="together", **same, **own)
    for k, model in enumerate(make(build, count)):
        mine = {name: option(value, k) for name, value in own.items()}
        alone = rt.train(model, data, coins=rt.Coins.from_seed(40 + k), **same, **mine)
        agree(together[k], alone, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize(("build", "data"), [(mlp, FLAT), (cnn, IMAGES), (Text, WORDS)])
def test_clipped_models(build, data):
    test = (data[0][:30], data[1][:30])
    both(build, data, method=rt.DPSGD(**NOISE), evaluation=HeldOut(test, device="cuda"), every=3)


def test_rows_that_leave_and_settings_that_differ():
    both(
        cnn, IMAGES, steps=[3, 9, 5, 9],
        method=[rt.DPSGD(**NOISE), rt.SignAdam(**NOISE), rt.DPSGD(**{**NOISE, "clip": 0.1}),
                rt.NoiseDecay(**NOISE, stage=2)],
        optimizer=[sgd(0.2), sgd(0.01), sgd(0.2), sgd(0.1, 0.9)], average=[None, 0.9, None, 0.9],
    )  # fmt: skip


def test_plain_and_selective_models():
    both(mlp, FLAT, method=rt.SGD(batch=30), budget=None,
         evaluation=functools.partial(rt.evaluate, data=TEST, device="cuda"))  # fmt: skip
    both(mlp, FLAT, method=PublishedDPSUR(**SELECTIVE, stale_validation=False), budget=None)


def test_passes_are_replayed(monkeypatch):
    """Sums by rules come from recorded graphs."""
    seen = []
    plain = Stack.release

    def release(self):
        plain(self)
        assert isinstance(self.sums.rules, RuledSums)
        seen.extend(captured.reason for captured in self.sums.rules._captured.values())

    monkeypatch.setattr(Stack, "release", release)
    both(cnn, IMAGES, method=rt.DPSGD(**NOISE))
    assert seen
    assert set(seen) == {""}


def test_records_on_the_host():
    options = {"method": rt.DPSGD(**NOISE), "budget": BUDGET, "steps": 5, "optimizer": sgd()}
    results = [
        train_many(make(mlp), FLAT, coins=[rt.Coins.from_seed(k) for k in range(3)],
                   device="cuda", data_on=place, how="together", **options)
        for place in ("host", "device")
    ]  # fmt: skip
    for one, other in zip(*results, strict=True):
        agree(one, other)
