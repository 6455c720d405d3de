"""Every attack on a small network that has learned its records by heart."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

from reticent.audit import attacks
from reticent.audit.signals import Evidence, look_inside, query

POOL, MODELS = 1000, 12


def network(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def trained(x, y, seed):
    model = network(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@pytest.fixture(scope="module")
def evidence():
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    digits = load_digits()
    order = rng.permutation(len(digits.data))
    x = torch.tensor(digits.data[order] / 16, dtype=torch.float32)
    y = torch.tensor(digits.target[order])
    noisy = torch.from_numpy(rng.random(len(y)) < 0.3)  # labels that can only be learned by heart
    y = torch.where(noisy, torch.from_numpy(rng.integers(0, 10, len(y))), y)
    pool, other = (x[:POOL], y[:POOL]), (x[POOL:], y[POOL:])
    memberships = torch.from_numpy(
        rng.permuted(np.tile(np.arange(MODELS) < MODELS // 2, (POOL, 1)), axis=1).T.copy()
    )
    members = torch.from_numpy(rng.permutation(POOL) < POOL // 2)
    target = trained(pool[0][members], pool[1][members], 100)
    shadows = [trained(pool[0][seen], pool[1][seen], 200 + k) for k, seen in enumerate(memberships)]
    return Evidence(
        target=query(target, *pool),
        members=members,
        shadow_logits=torch.stack([query(model, *pool).logits for model in shadows]),
        shadow_members=memberships,
        population=query(target, *other),
        shadow_population=torch.stack([query(model, *other).logits for model in shadows]),
        whitebox=look_inside(target, *pool),
    )


@pytest.mark.parametrize("name", attacks.NAMES)
def test_every_attack_beats_chance(evidence, name):
    found = attacks.build(name).measure(evidence, confidence=0.999)
    assert found.auc.low > 0.5
    assert found.held_accuracy.value > 0.5
    assert not found.chance


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("likelihood-ratio", {"online": False}),
        ("rmia", {"online": False}),
        ("reference", {"fit": "empirical"}),
        ("shadow", {"classifier": "forest"}),
        ("white-box", {"classifier": "forest"}),
    ],
)
def test_so_do_their_variants(evidence, name, options):
    assert attacks.build(name, **options).measure(evidence, confidence=0.999).auc.low > 0.5


def test_knowing_the_record_helps_where_few_may_be_accused(evidence):
    # P cannot tell an easy record from a member; at 1 % of false positives it finds far fewer
    def found(name):
        roc = np.array(attacks.build(name).measure(evidence).roc)
        return roc[roc[:, 0] <= 0.01, 1].max()

    assert found("likelihood-ratio") > found("population") + 0.05
