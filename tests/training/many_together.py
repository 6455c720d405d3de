"""Train models at once and one by one, and compare all there is to compare."""

import torch

import reticent as rt
from reticent.training.held_out import HeldOut
from reticent.training.many import train_many

from .models_together import FLAT, N, drawn, make, mlp, weights

BUDGET = rt.Budget(epsilon=60, delta=1e-4)
TEST = (drawn(40, 6, seed=7), (drawn(40, 6, seed=7)[:, 1] > 0).long())
WATCHED = HeldOut(TEST)
HOW = ("seconds", "microbatch", "piece_memory_bytes")  # it was made, not what it is


def sgd(lr=0.4, momentum=0.0):
    return lambda params: torch.optim.SGD(params, lr=lr, momentum=momentum)


def pick(value, k):
    return value[k] if isinstance(value, list) else value


def one_by_one(build, data, count, seeds, same, own):
    torch.manual_seed(1)
    return [
        rt.train(
            model, data, coins=rt.Coins.from_seed(seeds[k]), device="cpu", microbatch=64, **same,
            **{name: pick(value, k) for name, value in own.items()},
        )
        for k, model in enumerate(make(build, count))
    ]  # fmt: skip


def at_once(build, data, count, seeds, same, own, **more):
    return train_many(
        make(build, count), data, coins=[rt.Coins.from_seed(seed) for seed in seeds], device="cpu",
        **{"how": "together", **more}, **same, **own,
    )  # fmt: skip


def agree(one, other, rtol=1e-4, atol=2e-5):
    """Weights and metrics up to rounding, everything else exactly."""
    torch.testing.assert_close(weights(one.model), weights(other.model), rtol=rtol, atol=atol)
    left, right = one.to_json(), other.to_json()
    metrics = [[report.pop("metrics") for report in (left, right)]]
    for name in HOW:
        left.pop(name), right.pop(name)
    assert left == right
    for ours, theirs in zip(*metrics[0], strict=True):
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert abs(ours[name] - theirs[name]) <= 1e-3 * max(abs(theirs[name]), 1), name
    assert one.epsilon == other.epsilon
    assert one.model.training == other.model.training
    assert all(p.grad is None for p in one.model.parameters())


def compare(build=mlp, data=FLAT, *, count=3, seeds=None, evaluation=WATCHED, more=None,
            rtol=1e-4, atol=2e-5, loss_fn=None, n=None, **own):  # fmt: skip
    """Both ways, with options that are one for all or, in a list, one for each."""
    seeds = list(range(40, 40 + count)) if seeds is None else seeds
    same = {"evaluation": evaluation, "loss_fn": loss_fn, "n": n}
    own = {"method": rt.DPSGD(batch=12, clip=0.3, noise=0.8), "budget": BUDGET, "steps": 9,
           "optimizer": sgd(), **own}  # fmt: skip
    before = [weights(model) for model in make(build, count)]
    together = at_once(build, data, count, seeds, same, own, **(more or {}))
    assert together.apart == {}
    alone = one_by_one(build, data, count, seeds, same, own)
    for k in range(count):
        agree(together[k], alone[k], rtol, atol)
        if alone[k].steps:
            assert float((weights(together[k].model) - before[k]).norm()) > 1e-3
    return together


__all__ = ["BUDGET", "FLAT", "TEST", "N", "agree", "at_once", "compare", "one_by_one", "sgd"]
