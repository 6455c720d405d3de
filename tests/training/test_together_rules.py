"""Clipped sums of many models by the layers' rules, against autograd example by example."""

import math

import pytest
import torch
from torch import nn

from reticent.gradients import Automatic, Flat, Normalised, PerLayer, synthetic_like
from reticent.gradients.batches import trainable
from reticent.gradients.engine import bounds_of
from reticent.training.ruled_sums import RuledSums
from reticent.training.stacking import StackedGradients, StackedParameters

from .models_together import FLAT, IMAGES, WORDS, Attention, Recurrent, Text, cnn, drawn, make, mlp

LOSS = nn.CrossEntropyLoss()


class Layers(nn.Module):
    """Several positions for one layer, norms with and without a scale, a frozen part."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(11, 6, padding_idx=0)
        self.norm, self.mix = nn.LayerNorm(6), nn.Linear(6, 5)
        self.conv = nn.Conv1d(5, 4, 3, stride=2, padding=1, groups=1, bias=False)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens):
        mixed = torch.tanh(self.mix(self.norm(self.table(tokens))))
        return self.out(self.frozen(self.conv(mixed.mT).mean(2)))


def grouped():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(inplace=True), nn.Conv2d(4, 6, 2, groups=2),
        nn.GroupNorm(3, 6), nn.Flatten(), nn.Linear(24, 2),
    )  # fmt: skip


def by_hand(model, inputs, targets, valid, clip, bound):
    """One example after the other, by autograd; what is not finite is left out."""
    own = list(trainable(model).values())
    total = torch.zeros(sum(p.numel() for p in own), dtype=torch.float64)
    for x, y, counts in zip(inputs, targets, valid, strict=True):
        loss = LOSS(model(x[None]), y[None])
        grads = torch.autograd.grad(loss, own)
        flat = torch.cat([g.flatten() for g in grads]).double()
        norm = flat.norm().float()
        if (
            counts
            and loss.isfinite()
            and norm.isfinite()
            and flat.float().square().sum() < math.inf
        ):
            total += flat * clip.factors(norm, bound).double()
    return total


def stack(build, data, clip, count=3, rules=True):
    models = make(build, count)
    example = synthetic_like(data[0][:1], data[1][:1], n=1)
    sums = StackedGradients(
        models, StackedParameters(models), LOSS, clip, example if rules else None
    )
    return models, sums


def batch_of(data, count, size=7):
    rows = torch.stack([torch.randperm(90, generator=torch.Generator().manual_seed(k))[:size]
                        for k in range(count)])  # fmt: skip
    valid = torch.arange(size) < torch.tensor([size, size - 3, 0, *[size] * count])[:count, None]
    return (data[0][rows], data[1][rows]), valid


@pytest.mark.parametrize("clip", [Flat(0.05), Flat(50.0), Automatic(0.3), Normalised(0.3)])
@pytest.mark.parametrize(
    ("build", "data"),
    [(mlp, FLAT), (cnn, IMAGES), (grouped, IMAGES), (Text, WORDS), (Layers, WORDS),
     (Attention, WORDS)],
)  # fmt: skip
def test_sums_are_those_of_single_examples(build, data, clip):
    models, sums = stack(build, data, clip)
    assert isinstance(sums.rules, RuledSums)
    batch, valid = batch_of(data, 3)
    scale = torch.tensor([[1.0], [0.5], [2.0]])
    share = bounds_of(Flat(1.0), trainable(models[0]))[0][0]
    bounds = clip.sensitivity * share * scale
    for piece in (7, 3):
        found = sums.clipped(batch, valid, piece, bounds)
        for k, model in enumerate(models):
            expected = by_hand(model, batch[0][k], batch[1][k], valid[k], clip, float(bounds[k, 0]))
            torch.testing.assert_close(found[k], expected, rtol=1e-4, atol=1e-6)
    assert float(found[2].abs().max()) == 0  # nothing of it counts


@pytest.mark.parametrize("rules", [True, False])
@pytest.mark.parametrize(("build", "data"), [(mlp, FLAT), (cnn, IMAGES)])
def test_an_example_that_is_not_finite_contributes_nothing(build, data, rules):
    _, sums = stack(build, data, Flat(0.3), rules=rules)
    (inputs, targets), valid = batch_of(data, 3)
    clean = sums.clipped((inputs, targets), valid & (torch.arange(7) != 2), 7)
    broken = inputs.clone()
    broken[:, 2] = math.nan
    torch.testing.assert_close(
        sums.clipped((broken, targets), valid, 7), clean, rtol=1e-5, atol=1e-8
    )


def test_no_example_is_let_through_longer_than_the_bound():
    """Alone in its batch, an example's sum is what it contributes."""
    _, sums = stack(cnn, (IMAGES[0] * 100, IMAGES[1]), Flat(0.01))
    for seed in range(5):
        batch = (drawn(3, 1, 1, 8, 8, seed=seed) * 100, torch.zeros(3, 1, dtype=torch.long))
        found = sums.clipped(batch, torch.ones(3, 1, dtype=torch.bool), 1)
        assert all(0 < float(row.norm()) <= 0.01 for row in found)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.out = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.out(self.one(self.one(x)))


class Bare(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.scale = nn.Linear(6, 2), nn.Parameter(torch.ones(2))

    def forward(self, x):
        return self.one(x) * self.scale


class Overwritten(nn.Module):
    """Writes to a layer's input after the layer has read it."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        h = self.one(x) + 1
        y = self.two(h.clone())
        return self.out(y + h.mul_(2))


@pytest.mark.parametrize("build", [Twice, Bare, lambda: Text(tied=True), Recurrent])
def test_models_that_rules_do_not_cover_are_written_out(build):
    data = FLAT if build in (Twice, Bare) else WORDS
    models, sums = stack(build, data, Flat(0.1))
    assert sums.rules is None
    if build is not Recurrent:
        batch, valid = batch_of(data, 3)
        found = sums.clipped(batch, valid, 4)
        expected = by_hand(models[0], batch[0][0], batch[1][0], valid[0], Flat(0.1), sums.bound)
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-6)


def test_layers_that_are_clipped_one_by_one_are_not_for_rules():
    models = make(mlp)
    example = synthetic_like(FLAT[0][:1], FLAT[1][:1], n=1)
    sums = StackedGradients(models, StackedParameters(models), LOSS, PerLayer(1.0), example)
    assert sums.rules is None


def test_an_input_that_is_overwritten_is_noticed():
    class Careless(Overwritten):
        def forward(self, x):
            h = self.one(x) + 1
            y = self.two(h)
            h.mul_(2)
            return self.out(y + h)

    batch, valid = batch_of(FLAT, 3)
    models, sums = stack(Overwritten, FLAT, Flat(0.1))
    found = sums.clipped(batch, valid, 7)
    assert sums.rules is not None
    expected = by_hand(models[0], batch[0][0], batch[1][0], valid[0], Flat(0.1), sums.bound)
    torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-6)
    _, sums = stack(Careless, FLAT, Flat(0.1))
    assert sums.rules is not None
    try:
        sums.clipped(batch, valid, 7)
    except RuntimeError as error:  # autograd itself refuses it
        assert "in-place" in str(error) or "inplace" in str(error)  # noqa: PT017
    assert sums.rules is None


def test_the_modules_are_as_before():
    models, sums = stack(cnn, IMAGES, Flat(0.1))
    before = [dict(vars(module)) for module in models[0].modules()]
    sums.clipped(*batch_of(IMAGES, 3), 7)
    assert all(
        vars(module).keys() == kept.keys()
        for module, kept in zip(models[0].modules(), before, strict=True)
    )


def test_what_was_recorded_is_forgotten_when_rows_move():
    """A CUDA graph reads parameters where they lay."""
    _, sums = stack(mlp, FLAT, Flat(0.1))
    sums.rules._captured["shape"] = None
    sums.parameters.replace(sums.parameters.values[:2])
    sums.keep(torch.arange(2))
    assert sums.rules._captured == {}
