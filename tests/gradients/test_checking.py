from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.errors import ModelError, OptionError
from reticent.gradients import Rule, check, isolation, register_rule, synthetic_like
from reticent.gradients import unregister_rule as forget

from .oracle import snapshot, unchanged

CE = nn.CrossEntropyLoss()


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return x * self.scale


class WrongRule(Rule):
    parameters = frozenset({"scale"})

    def per_example(self, module, x, g, roles):
        return {"scale": x * g * 1.01}


class RightRule(WrongRule):
    def per_example(self, module, x, g, roles):
        return {"scale": x * g}


@pytest.fixture
def registry():
    yield register_rule
    forget(Scale)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), Scale(5), nn.Dropout(0.5), nn.Linear(5, 3))


def batch(size=5):
    torch.manual_seed(1)
    return torch.randn(size, 4), torch.randint(0, 3, (size,))


def test_a_good_model_passes_and_is_left_alone(registry):
    model = network()
    before = snapshot(model)
    report = check(model, CE, *batch())
    assert report.ok
    assert report.path == "fast"
    assert report.largest_error < 1e-4
    assert report.raise_if_wrong() is report
    unchanged(model, before)


def test_a_wrong_rule_is_found_and_named(registry):
    registry(Scale, WrongRule())
    report = check(network(), CE, *batch())
    assert not report.ok
    with pytest.raises(ModelError, match=r"'1.scale' of module '1' \(Scale\) differs by"):
        report.raise_if_wrong()
    registry(Scale, RightRule())
    assert check(network(), CE, *batch()).ok


def test_the_registry_takes_only_modules_and_rules(registry):
    with pytest.raises(OptionError, match="kind"):
        registry(3, RightRule())
    with pytest.raises(OptionError, match="rule"):
        registry(Scale, RightRule)


class SubtractMean(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


class Softmaxed(nn.Module):
    """Weights examples by each other, without changing any of them alone... nearly."""

    def forward(self, x):
        return x * (1 + 0.01 * (x.sum(1, keepdim=True).softmax(0) - 1 / len(x)))


class Shifted(nn.Module):
    def forward(self, x):
        return x + 0.1 * x.roll(1, 0)


class TimeForBatch(nn.Module):
    """Feeds [batch, time, width] to a layer that expects [time, batch, width]."""

    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 4)

    def forward(self, x):
        return self.rnn(x)[0].mean(1)


class CentredGradient(torch.autograd.Function):
    """Outputs as they were, gradients mixed: nothing to see in the forward pass."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g - g.mean(0)


class MixesGradients(nn.Module):
    def forward(self, x):
        return CentredGradient.apply(x)


@pytest.mark.parametrize("size", [2, 5])
def test_modules_that_mix_only_gradients_are_caught(size):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), MixesGradients(), nn.Linear(4, 3))
    with pytest.raises(ModelError, match="gradients of other examples"):
        isolation(model, CE, *batch(size))


@pytest.mark.parametrize("mixer", [SubtractMean, Softmaxed, Shifted])
def test_modules_that_mix_examples_are_caught(mixer):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), mixer(), nn.Linear(4, 3))
    with pytest.raises(ModelError, match="influence each other"):
        isolation(model, CE, *batch())
    assert not check(model, CE, *batch()).ok


@pytest.mark.parametrize("size", [2, 5, 6])
def test_time_taken_for_batch_is_caught(size):
    torch.manual_seed(0)
    model = nn.Sequential(TimeForBatch(), nn.Linear(4, 3))
    x, y = torch.randn(size, 5, 4), torch.randint(0, 3, (size,))
    with pytest.raises(ModelError, match="influence each other"):
        isolation(model, CE, x, y)


def test_an_output_with_another_leading_dimension_is_caught():
    model = nn.Sequential(nn.Linear(4, 3), nn.Flatten(0))
    with pytest.raises(ModelError, match="dimension 0"):
        isolation(model, CE, *batch())


def test_known_culprits_are_named_by_isolation_too():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ModelError, match="BatchNorm1d"):
        isolation(model, CE, *batch())


class Remembers(nn.Module):
    """Keeps a running mean of what it sees, as home-made normalisation does."""

    def __init__(self, learns):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.zeros(()))
        self.learns = learns

    def forward(self, x):
        self.calls += 1
        if self.training and self.learns:
            self.mean.copy_(0.9 * self.mean + 0.1 * x.detach().mean(0))
        return x - self.mean.clone()


def test_state_learned_from_records_outside_the_gradient_is_caught():
    model = nn.Sequential(Remembers(True), nn.Linear(4, 3))
    with pytest.raises(ModelError, match=r"'0\.mean' takes up the records"):
        isolation(model, CE, *batch())
    assert (model[0].mean == 0).all()
    assert model[0].calls == 0
    counts = nn.Sequential(Remembers(False), nn.Linear(4, 3))
    isolation(counts, CE, *batch())
    check(counts, CE, *batch()).raise_if_wrong()
    assert counts[0].calls == 0
    isolation(model.eval(), CE, *batch())


def test_good_models_pass_isolation():
    torch.manual_seed(0)
    isolation(network(), CE, *batch())

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.rnn = nn.Embedding(9, 4), nn.GRU(4, 3, batch_first=True)

        def forward(self, tokens, extra):
            return self.rnn(self.table(tokens))[0].mean(1) + extra

    inputs = {"tokens": torch.randint(0, 9, (4, 6)), "extra": torch.randn(4, 3)}
    isolation(Tokens(), CE, inputs, torch.tensor([0, 1, 2, 0]))


def test_more_than_one_example_is_needed():
    with pytest.raises(OptionError, match="at least 2"):
        isolation(nn.Linear(4, 3), CE, *batch(1))
    with pytest.raises(OptionError, match="at least 2"):
        check(nn.Linear(4, 3), CE, *batch(1))


def test_probes_are_made_up_from_shapes_alone():
    inputs = {
        "image": torch.full((9, 2, 3), torch.nan),
        "tokens": torch.full((9, 4), 77),
        "flag": torch.ones(9, dtype=torch.bool),
    }
    targets = torch.full((9, 2), 5.0, dtype=torch.float64)
    before = torch.get_rng_state()
    x, y = synthetic_like(inputs, targets, 4)
    assert torch.equal(before, torch.get_rng_state())
    assert x["image"].shape == (4, 2, 3)
    assert x["image"].isfinite().all()
    assert x["tokens"].shape == (4, 4)
    assert set(x["tokens"].unique().tolist()) <= {0, 1}
    assert x["flag"].dtype == torch.bool
    assert y.dtype == torch.float64
    assert ((y >= 0) & (y <= 1)).all()
    again, _ = synthetic_like(inputs, targets, 4)
    assert torch.equal(again["image"], x["image"])
    isolation(nn.Linear(4, 3), CE, *synthetic_like(*batch()))
