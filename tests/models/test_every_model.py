"""What must hold for every model in the registry, at a small shape and with each option."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from reticent import models
from reticent.models.inputs import PublicScale

CHOICES = ("relu", "tanh", "tempered-sigmoid", "tempered-sigmoid:1.58,3.0,0.71")
PLAIN = (
    nn.Conv2d,
    nn.Linear,
    nn.GroupNorm,
    nn.LSTM,
    nn.Embedding,
    models.StandardizedConv2d,
)


class Case(NamedTuple):
    name: str
    shape: tuple[int, ...]
    options: dict[str, Any]

    def build(self, **more: Any) -> nn.Module:
        return models.build(self.name, classes=4, input_shape=self.shape, **self.options, **more)

    def batch(self, size: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        if models.describe(self.name).input_kind == "tokens":
            return torch.randint(0, 30, (size, *self.shape), generator=generator)
        return torch.randn((size, *self.shape), generator=generator)


CASES = [
    Case("cifar-cnn", (3, 16, 12), {}),
    Case("cifar-cnn", (3, 8, 8), {"inputs": "imagenet"}),
    Case("cifar-cnn", (3, 8, 8), {"start": "keras"}),
    Case("digits-cnn", (1, 8, 8), {}),
    Case("imdb-bilstm", (6,), {"vocabulary": 30}),
    Case("imdb-bilstm", (6,), {"vocabulary": 30, "words": "trained", "states": "mean"}),
    Case("imdb-bilstm", (6,), {"vocabulary": 30, "offset": 3}),
    Case("imdb-bilstm", (6,), {"vocabulary": 30, "start": "keras"}),
    Case("linear", (2, 3), {}),
    Case("linear-head", (12,), {}),
    Case("linear-head", (12,), {"groups": 4}),
    Case("linear-head", (6, 3, 3), {"groups": 6}),
    Case("mlp", (3, 4), {"hidden": [8, 5]}),
    Case("mnist-cnn", (1, 28, 28), {}),
    Case("mnist-cnn", (1, 28, 28), {"start": "keras"}),
    Case("scatter-cnn", (81, 7, 7), {}),
    Case("scatter-cnn", (81, 7, 7), {"start": "keras"}),
    Case("scatter-cnn", (243, 4, 4), {}),
    Case("scatter-cnn", (9, 3, 2), {"groups": 0, "network": "colour"}),
    Case("scatter-linear", (81, 2, 2), {}),
    Case("scatter-linear", (9, 3, 2), {"groups": 0}),
    Case("wrn-16-4", (3, 8, 8), {}),
    Case("wrn-16-4", (1, 4, 6), {"groups": 4, "standardize": True}),
    Case("wrn-28-2", (3, 8, 8), {}),
]


def _label(case: Case) -> str:
    options = "".join(f"-{name}={value}" for name, value in case.options.items())
    return f"{case.name}-{'x'.join(map(str, case.shape))}{options}"


@pytest.fixture(params=CASES, ids=_label)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


activated = pytest.mark.parametrize(
    "case", [c for c in CASES if models.describe(c.name).activation is not None], ids=_label
)


def test_every_registered_model_is_covered() -> None:
    assert {case.name for case in CASES} == set(models.names())


@pytest.mark.parametrize("size", [0, 1, 3])
def test_any_batch_size_forward_and_backward(case: Case, size: int) -> None:
    model = case.build()
    output = model(case.batch(size))
    assert output.shape == (size, 4)
    output.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert size or not parameter.grad.any(), name


def test_examples_do_not_mix(case: Case) -> None:
    model = case.build()
    assert model.training
    batch, other = case.batch(3, seed=1), case.batch(3, seed=2)
    before = model(batch)
    for j in range(3):
        changed = batch.clone()
        changed[j] = other[j]
        after = model(changed)
        others = [i for i in range(3) if i != j]
        torch.testing.assert_close(after[others], before[others], rtol=0, atol=1e-6)
        assert not torch.equal(after[j], before[j])


def test_one_example_is_its_row_of_the_batch(case: Case) -> None:
    model = case.build()
    batch = case.batch(3, seed=3)
    rows = torch.cat([model(batch[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(rows, model(batch), rtol=1e-4, atol=1e-5)


def test_seed_decides_the_parameters(case: Case) -> None:
    first, again, other = (case.build(seed=seed).state_dict() for seed in (5, 5, 6))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_leaves_the_global_random_state_alone(case: Case) -> None:
    torch.manual_seed(123)
    before = torch.random.get_rng_state()
    first = case.build(seed=0)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(321)
    second = case.build(seed=0)
    for one, two in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two)


def test_parameters_live_in_layers_a_rule_can_know(case: Case) -> None:
    for path, module in case.build().named_modules():
        if any(True for _ in module.parameters(recurse=False)):
            assert type(module) in PLAIN, path
        assert not isinstance(module, nn.modules.batchnorm._BatchNorm), path
        assert not getattr(module, "inplace", False), path
        constants = isinstance(module, PublicScale)  # numbers known before any record
        assert constants or not any(True for _ in module.buffers(recurse=False)), path


def test_no_module_runs_twice_or_is_shared(case: Case) -> None:
    model = case.build()
    paths = [row.name for row in models.layers(model, case.batch(1))]
    assert len(paths) == len(set(paths))
    held = [m for m in model.modules() if any(True for _ in m.parameters(recurse=False))]
    names = {path for path, module in model.named_modules() if module in held}
    assert names <= set(paths)


@activated
@pytest.mark.parametrize("spec", CHOICES)
def test_every_activation_works(case: Case, spec: str) -> None:
    model = case.build(activation=spec)
    wanted = type(models.activation(spec))
    kinds = {nn.ReLU, nn.Tanh, models.TemperedSigmoid}
    used = {type(module) for module in model.modules()} & kinds
    assert used == {wanted}
    assert model(case.batch(2)).isfinite().all()


@activated
def test_default_activation_is_the_cards(case: Case) -> None:
    default = models.describe(case.name).activation
    assert default is not None
    assert repr(case.build()) == repr(case.build(activation=default))


@activated
def test_tanh_and_its_tempered_sigmoid_give_one_model(case: Case) -> None:
    one = case.build(activation="tanh").double()
    two = case.build(activation="tempered-sigmoid:2,2,1").double()
    batch = case.batch(3)
    batch = batch.double() if batch.is_floating_point() else batch
    torch.testing.assert_close(one(batch), two(batch), rtol=1e-9, atol=1e-9)
