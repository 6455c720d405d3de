"""Mixing that happens in training only, at random, or through what a model keeps."""

import pytest
import torch
from torch import nn

from reticent.errors import ModelError
from reticent.gradients import isolation

X, Y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])


class MixUp(nn.Module):
    def forward(self, x):
        return 0.7 * x + 0.3 * x[torch.randperm(len(x))] if self.training else x


class Centred(nn.Module):
    def forward(self, x):
        return x - x.mean(0) if self.training else x


class RunningMean(nn.Module):
    """Keeps the mean in a plain attribute and uses it the next time."""

    mean = 0.0

    def forward(self, x):
        y = x - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean()
        return y


class Hoarder(nn.Module):
    """Keeps the records, and does nothing with them yet."""

    def forward(self, x):
        self.last = x.detach().clone()
        return x

    last = torch.zeros(4, 6)

    def __init__(self):
        super().__init__()
        self.last = torch.zeros(4, 6)


class Counter(nn.Module):
    """Another output every time, whatever the inputs."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


def net(*first):
    return nn.Sequential(*first, nn.Linear(6, 2)).train()


@pytest.mark.parametrize(
    "model",
    [
        net(MixUp()),
        net(Centred(), nn.Dropout(0.1)),
        net(nn.Dropout(0.5), Centred()),
        net(RunningMean(), nn.Dropout(0.1)),
        net(RunningMean()),
        net(Hoarder()),
        net(Counter()),
    ],
    ids=["mix-up", "centred", "centred late", "state, dropout", "state", "hoarder", "counter"],
)
def test_what_mixes_in_training_is_found(model):
    with pytest.raises(ModelError):
        isolation(model, nn.CrossEntropyLoss(), X, Y)


def test_random_models_that_keep_examples_apart_pass_and_stay_as_they_were():
    model = net(nn.Dropout(0.5), nn.Linear(6, 6), nn.ReLU(), nn.Dropout(0.2))
    state = torch.get_rng_state()
    isolation(model, nn.CrossEntropyLoss(), X, Y)
    assert torch.equal(state, torch.get_rng_state())
    assert all(module.training for module in model.modules())


def test_what_a_model_held_before_is_put_back():
    model = net(Counter())
    with pytest.raises(ModelError):
        isolation(model, nn.CrossEntropyLoss(), X, Y)
    assert model[0].calls == 0


class SometimesMixes(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        return 0.5 * (x + x.roll(1, 0)) if self.training and torch.rand(()) < self.p else x


class DropPath(nn.Module):
    """Drops a branch for all examples of a call at once, or for each on its own."""

    def __init__(self, shape):
        super().__init__()
        self.shape = shape

    def forward(self, x):
        return x * (torch.rand(len(x) if self.shape == "row" else 1, 1) < 0.5) * 2


class WeightDrop(nn.Linear):
    def forward(self, x):
        return nn.functional.linear(x, nn.functional.dropout(self.weight, 0.5), self.bias)


class FrozenMean(nn.Module):
    """Takes up the records in a parameter that is not trained."""

    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x):
        self.p.data = 0.9 * self.p.data + 0.1 * x.detach().mean(0)
        return x


class Recorder(nn.Module):
    """Takes them up in a list."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def forward(self, x):
        self.seen.append(x.detach().mean())
        return x


class Discreet(nn.Module):
    """Takes them up in a private attribute."""

    def __init__(self):
        super().__init__()
        self._seen = torch.zeros(6)

    def forward(self, x):
        self._seen = self._seen + x.detach().mean(0)
        return x


@pytest.mark.parametrize(
    "model",
    [
        *(net(SometimesMixes(p)) for p in (0.3, 0.5, 0.9)),
        net(SometimesMixes(0.5), nn.Dropout(0.1)),
        net(DropPath("batch")),
        net(DropPath("batch"), nn.Dropout(0.2)),
        net(nn.Dropout(0.2), DropPath("batch")),
        net(WeightDrop(6, 6)),
        net(FrozenMean()),
        net(Recorder()),
        net(Discreet()),
    ],
    ids=lambda model: "-".join(type(m).__name__ for m in model[:-1]),
)
def test_rare_mixing_shared_coins_and_hidden_memories_are_found(model):
    with pytest.raises(ModelError):
        isolation(model, nn.CrossEntropyLoss(), X, Y)


def test_coins_of_each_example_are_fine():
    isolation(net(DropPath("row"), nn.Dropout(0.3)), nn.CrossEntropyLoss(), X, Y)


def test_a_frozen_parameter_is_put_back():
    model = net(FrozenMean())
    with pytest.raises(ModelError):
        isolation(model, nn.CrossEntropyLoss(), X, Y)
    assert not model[0].p.any()
