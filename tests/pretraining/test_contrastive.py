"""Learning by contrast: the loss against a loop, and that it falls."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reticent.errors import OptionError
from reticent.features import image_network
from reticent.pretraining import contrastive
from reticent.pretraining.contrastive import Pretraining, contrast, pretrain

PLAN = Pretraining(images=40, drawn_side=12, side=8, batch=16, steps=60, lr=2e-3, smallest=0.6)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive, "_PIECE", 40)


def encoder(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(72, 24))


def naive(first: Tensor, second: Tensor, temperature: float) -> float:
    """InfoNCE view by view (Chen et al. 2020, eq. 1)."""
    views = [row.tolist() for row in (*first.double(), *second.double())]
    count = len(first)

    def cosine(a: list[float], b: list[float]) -> float:
        lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(x * x for x in b))
        return sum(x * y for x, y in zip(a, b, strict=True)) / lengths

    total = 0.0
    for i, one in enumerate(views):
        twin = views[(i + count) % (2 * count)]
        others = sum(
            math.exp(cosine(one, other) / temperature) for k, other in enumerate(views) if k != i
        )
        total -= math.log(math.exp(cosine(one, twin) / temperature) / others)
    return total / len(views)


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_contrast_is_the_loop_of_the_paper(count: int, temperature: float) -> None:
    first, second = torch.randn(2, count, 5)
    found = float(contrast(first, second, temperature))
    assert found == pytest.approx(naive(first, second, temperature), abs=1e-5)
    assert float(contrast(3 * first, second, temperature)) == pytest.approx(found, abs=1e-5)


def test_learning_lowers_the_loss_and_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive, "_REPORT", 20)
    told: list[tuple[int, int, float | None]] = []
    drawn: list[tuple[int, int]] = []
    net = encoder()
    losses = pretrain(
        net,
        24,
        PLAN,
        device="cpu",
        drawing=lambda *some: drawn.append(some),
        progress=lambda *some: told.append(some),
    )
    assert len(losses) == 3
    assert losses[-1] < losses[0] - 0.2
    assert losses[0] < math.log(2 * PLAN.batch - 1) + 2  # about what guessing gives
    assert [step for step, _, _ in told] == list(range(1, 61))
    assert [loss for _, _, loss in told[:19]] == [None] * 19
    assert [loss for _, _, loss in told[19::20]] == losses
    assert drawn == [(40, 40)]
    assert not net.training
    torch.manual_seed(3)
    state = torch.get_rng_state()
    again = encoder()
    torch.set_rng_state(state)
    pretrain(again, 24, PLAN, device="cpu")
    assert torch.equal(torch.get_rng_state(), state)
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    other_seed = encoder()
    pretrain(other_seed, 24, Pretraining(**{**PLAN.to_json(), "seed": 1}), device="cpu")
    assert not torch.equal(next(other_seed.parameters()), next(net.parameters()))


def test_the_learning_rate_warms_up_and_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[float] = []
    step = torch.optim.AdamW.step

    def watching(self: torch.optim.AdamW, *some: Any) -> Any:
        used.append(self.param_groups[0]["lr"])
        return step(self, *some)

    monkeypatch.setattr(torch.optim.AdamW, "step", watching)
    pretrain(encoder(), 24, PLAN, device="cpu")
    warm = 6
    expected = [
        2e-3 * min((k + 1) / warm, 0.5 * (1 + math.cos(math.pi * k / 60))) for k in range(60)
    ]
    assert used == pytest.approx(expected)


def test_a_loss_that_is_lost_names_the_learning_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive, "contrast", lambda a, b, t: (a * b).sum() * math.nan)
    with pytest.raises(OptionError, match=r"lr = 0\.002: the loss was not finite any more at step"):
        pretrain(encoder(), 24, PLAN, device="cpu")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("images", 0),
        ("side", 3),
        ("drawn_side", 2),
        ("batch", 1),
        ("steps", 0),
        ("lr", 0),
        ("temperature", -1),
        ("smallest", 0),
        ("smallest", 1.5),
        ("seed", -1),
        ("seed", 0.5),
    ],
)
def test_plans_that_cannot_work_are_named(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"{name} = {value}: must"):
        Pretraining(**{name: value})


def test_a_network_begins_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = []

    def no_learning(net: nn.Module, width: int, plan: Pretraining, **told: Any) -> list[float]:
        widths.append(width)
        return [3.0, 2.0]

    monkeypatch.setattr(image_network, "pretrain", no_learning)
    net, loss = image_network.learn_network(PLAN)
    torch.manual_seed(9)
    state = torch.get_rng_state()
    again, _ = image_network.learn_network(PLAN)
    assert torch.equal(torch.get_rng_state(), state)
    assert loss == 2.0
    assert torch.equal(net.stem.weight, again.stem.weight)
    assert net(torch.rand(2, 3, 32, 32)).shape == (2, widths[0]) == (2, 256)
