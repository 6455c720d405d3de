import pytest
import torch
from torch import nn

import reticent as rt
from reticent.errors import ModelError, OptionError
from reticent.training.optimizers import build_optimizer, by_name
from reticent.training.parameters import FlatParameters
from reticent.training.state import State, WeightAverage


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.1),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),  # looks at shapes
    "two groups": lambda p: torch.optim.SGD(
        [{"params": list(p)[:1], "lr": 0.5}, {"params": list(p)[1:]}], lr=0.1, momentum=0.5
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_flat_buffer_moves_as_the_optimizer_would_on_the_model(name):
    factory, ours, plain = OPTIMIZERS[name], model(), model()
    parameters = FlatParameters(ours)
    state = State(parameters, build_optimizer(factory, parameters))
    reference = factory(list(plain.parameters()))
    for step in range(5):
        gradient = torch.randn(
            parameters.values.numel(), generator=torch.Generator().manual_seed(step)
        )
        state.advance(gradient)
        start = 0
        for p in plain.parameters():
            p.grad = gradient[start : start + p.numel()].view(p.shape)
            start += p.numel()
        reference.step()
    for a, b in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_elementwise_optimizers_hold_one_vector():
    parameters = FlatParameters(model())
    assert build_optimizer(OPTIMIZERS["adam"], parameters).param_groups[0]["params"] == [
        parameters.flat
    ]
    assert len(build_optimizer(OPTIMIZERS["two groups"], parameters).param_groups) == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_restore_brings_everything_back_bit_for_bit(name):
    ours = model()
    parameters = FlatParameters(ours)
    optimizer = build_optimizer(OPTIMIZERS[name], parameters)
    state = State(
        parameters,
        optimizer,
        torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        WeightAverage(0.9, parameters.values),
    )
    size = parameters.values.numel()
    moves = [torch.randn(size, generator=torch.Generator().manual_seed(s)) for s in range(6)]

    def go_on():
        for move in moves[3:]:
            state.advance(move)
        return state.parameters.values.clone(), state.average.values.clone()

    for start in (0, 3):  # before the optimizer has any state, and after
        for move in moves[:start]:
            state.advance(move)
        state.public["clip"] = torch.tensor(1.5)
        snapshot = state.snapshot()
        wanted = go_on()
        rates = [group["lr"] for group in optimizer.param_groups]
        for _ in range(2):  # a snapshot can be used again
            state.restore(snapshot)
            assert state.step == start
            for move in reversed(moves):  # a rejected candidate, very different
                state.advance(100 * move)
                state.public["clip"].mul_(2)
            state.restore(snapshot)
            assert float(state.public["clip"]) == 1.5
            assert all(torch.equal(a, b) for a, b in zip(go_on(), wanted, strict=True))
            assert rates == [group["lr"] for group in optimizer.param_groups]
        state.restore(snapshot)


def test_the_model_sees_the_buffer_and_keeps_its_parameters():
    ours = model()
    before = [p.clone() for p in ours.parameters()]
    own = list(ours.parameters())
    parameters = FlatParameters(ours)
    assert all(a is b for a, b in zip(own, ours.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before, ours.parameters(), strict=True))
    parameters.values.zero_()
    assert all(not p.any() for p in ours.parameters())
    parameters.detach_from_buffer()
    parameters.values.fill_(1.0)
    assert all(not p.any() for p in ours.parameters())


def test_tied_and_frozen_parameters():
    ours = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.Linear(3, 3)})
    ours["b"].weight = ours["a"].weight
    ours["c"].requires_grad_(False)
    parameters = FlatParameters(ours)
    assert list(parameters.spans) == ["a.weight", "a.bias", "b.bias"]
    parameters.values.zero_()
    assert not ours["b"].weight.any()
    assert ours["c"].weight.any()


def test_what_cannot_be_flattened_is_said():
    with pytest.raises(ModelError, match="no trainable"):
        FlatParameters(nn.Tanh())
    mixed = model()
    mixed[0].double()
    with pytest.raises(ModelError, match="differ in dtype"):
        FlatParameters(mixed)
    broken = model()
    with torch.no_grad():
        broken[2].bias[0] = float("nan")
    with pytest.raises(ModelError, match=r"2\.bias"):
        FlatParameters(broken)


def test_wrong_optimizers_are_said():
    ours = model()
    parameters = FlatParameters(ours)
    with pytest.raises(OptionError, match="not the model's"):
        build_optimizer(torch.optim.SGD(model().parameters(), lr=1), parameters)
    with pytest.raises(OptionError, match=r"0\.bias"):
        build_optimizer(torch.optim.SGD([ours[0].weight], lr=1), parameters)
    with pytest.raises(OptionError, match="function from parameters"):
        build_optimizer(lambda p: None, parameters)
    for options, name in (
        ({"lr": 0}, "lr"),
        ({"lr": 1, "momentum": 2}, "momentum"),
        ({"lr": 1, "weight_decay": -1}, "weight_decay"),
    ):
        with pytest.raises(OptionError, match=name):
            by_name("sgd", **options)
    with pytest.raises(OptionError, match="momentum"):
        by_name("adam", lr=1, momentum=0.9)
    with pytest.raises(OptionError, match="optimizer"):
        by_name("lion", lr=1)


def test_average_is_the_stated_recurrence():
    values = torch.zeros(1)
    average = WeightAverage(0.5, values)
    expected = 0.0
    for t in range(1, 30):
        values.fill_(float(t))
        average.update(values)
        decay = min(0.5, (1 + t) / (10 + t))
        expected = decay * expected + (1 - decay) * t
    assert float(average.values) == pytest.approx(expected, rel=1e-5)


def test_tied_parameters_are_trained():
    """One parameter under two names is not a frozen one under the second."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    before = model[0].weight.detach().clone()
    result = rt.train(
        model,
        (torch.randn(40, 4), torch.randint(0, 4, (40,))),
        method=rt.DPSGD(batch=10, noise=1.0),
        budget=rt.Budget(30, 1e-3),
        steps=3,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.1),
        device="cpu",
    )
    assert result.model[0].weight is result.model[2].weight
    assert not torch.equal(result.model[0].weight, before)
