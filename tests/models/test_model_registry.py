from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest
import torch
from torch import nn

from reticent import models
from reticent.errors import ModelError, OptionError
from reticent.models import registry

CARD = models.ModelCard(
    name="mine",
    paper="none",
    summary="fc classes",
    input_shape=(3,),
    classes=2,
    options=(models.Option("bias", True, "add a bias"),),
)


def mine(*, classes: int, input_shape: tuple[int, ...], bias: bool) -> nn.Module:
    return nn.Linear(input_shape[0], classes, bias=bias)


@pytest.fixture(autouse=True)
def _registry_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_MODELS", dict(registry._MODELS))


def test_names_are_sorted_and_described() -> None:
    assert models.names() == (
        "cifar-cnn",
        "digits-cnn",
        "imdb-bilstm",
        "linear",
        "linear-head",
        "mlp",
        "mnist-cnn",
        "scatter-cnn",
        "scatter-linear",
        "wrn-16-4",
        "wrn-28-2",
    )
    for name in models.names():
        card = models.describe(name)
        assert card.name == name
        assert card.paper
        assert card.summary
        assert all(option.help for option in card.options)
        model = models.build(name, classes=card.classes, input_shape=card.input_shape)
        assert model(card.sample(2)).shape == (2, card.classes)
    with pytest.raises(FrozenInstanceError):
        models.describe("mlp").name = "other"  # type: ignore[misc]


def test_card_as_plain_data() -> None:
    card = models.describe("mlp")
    assert card.defaults() == {"hidden": (64,)}
    assert card.as_dict()["options"] == (
        {"name": "hidden", "default": (64,), "help": "the hidden layers' sizes, first to last"},
    )
    assert card.sample(3, (2, 5)).shape == (3, 2, 5)
    assert models.describe("imdb-bilstm").sample(3).dtype == torch.long


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name": "resnet"}, "model = 'resnet': must be one of cifar-cnn, digits-cnn"),
        ({"depth": 3}, "depth = 3: mnist-cnn has no such option; beside its shape it takes: start"),
        ({"name": "wrn-16-4", "depth": 3}, "it takes: groups, standardize"),
        ({"activation": "gelu"}, "activation = 'gelu': must be one of relu, tanh"),
        ({"name": "linear", "activation": "relu"}, "linear has no activation; leave it out"),
        ({"classes": 0}, "classes = 0: must be at least 1"),
        ({"classes": 2.5}, "classes = 2.5: must be a whole number"),
        ({"seed": -1}, "seed = -1: must be at least 0"),
        ({"input_shape": (28, 28)}, "takes images: (channels, height, width)"),
        ({"input_shape": (1, 28, 15)}, "mnist-cnn needs height and width of at least 16"),
        ({"input_shape": (0, 28, 28)}, "must be the sizes of one example"),
        ({"input_shape": ()}, "must be the sizes of one example"),
        ({"input_shape": 28}, "input_shape = 28: must be the sizes of one example"),
        ({"input_shape": "1x28"}, "must be the sizes of one example"),
        ({"input_shape": (1, 28.5, 28)}, "must be the sizes of one example"),
        ({"name": "cifar-cnn", "input_shape": (3, 7, 32)}, "at least 8"),
        ({"name": "digits-cnn", "input_shape": (1, 1, 8)}, "at least 2"),
        ({"name": "digits-cnn", "input_shape": (64,)}, "takes images"),
        ({"name": "wrn-28-2", "input_shape": (3, 3, 32)}, "wrn-28-2 needs height and width of at"),
        ({"name": "wrn-16-4", "input_shape": (32, 32)}, "wrn-16-4 takes images"),
        ({"name": "wrn-16-4", "groups": 3}, "1, 2, 4, 8, 16"),
        ({"name": "wrn-16-4", "standardize": "yes"}, "must be True or False"),
        ({"name": "imdb-bilstm", "input_shape": (80, 1)}, "takes word indexes"),
        ({"name": "mlp", "hidden": ()}, "must be one size or more"),
        ({"name": "mlp", "hidden": 64}, "must be one size or more"),
        ({"name": "mlp", "hidden": (64, 0)}, "hidden = 0: must be at least 1"),
        ({"name": "linear-head", "input_shape": (6,), "groups": 4}, "0, 1, 2, 3"),
        ({"name": "linear-head", "input_shape": (6,), "groups": 6}, "more than one value"),
        ({"name": "linear-head", "groups": -1}, "groups = -1: must be at least 0"),
        ({"name": "scatter-cnn", "input_shape": (1, 28, 28)}, "with --features scattering"),
        ({"name": "scatter-linear", "input_shape": (3, 32, 32)}, "takes scattering features"),
        ({"name": "scatter-cnn", "input_shape": (600,)}, "takes scattering features"),
        ({"name": "scatter-cnn", "input_shape": (9, 4, 4)}, "0, 1, 3, 9"),
        ({"name": "scatter-cnn", "input_shape": (81, 7, 7), "network": "mono"}, "grey, colour"),
        ({"name": "scatter-cnn", "input_shape": (243, 8, 1)}, "at least 2"),
    ],
)
def test_what_cannot_work_is_refused_with_a_way_out(arguments: dict[str, Any], says: str) -> None:
    given = {"name": "mnist-cnn", "classes": 10, "input_shape": (3, 32, 32), **arguments}
    if given["name"] == "mnist-cnn" and "input_shape" not in arguments:
        given["input_shape"] = (1, 28, 28)
    with pytest.raises(OptionError) as caught:
        models.build(given.pop("name"), **given)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("name", "least"), [("mnist-cnn", 16), ("cifar-cnn", 8), ("digits-cnn", 2), ("wrn-16-4", 4)]
)
def test_the_least_image_works(name: str, least: int) -> None:
    model = models.build(name, classes=2, input_shape=(1, least, least))
    assert model(torch.randn(1, 1, least, least)).shape == (1, 2)
    with pytest.raises(OptionError, match=f"at least {least}"):
        models.build(name, classes=2, input_shape=(1, least, least - 1))


def test_describe_an_unknown_model() -> None:
    with pytest.raises(OptionError, match="must be one of cifar-cnn"):
        models.describe("nothing")


def test_shape_may_be_a_torch_size_or_a_list() -> None:
    for shape in (torch.Size([1, 8, 8]), [1, 8, 8]):
        models.build("digits-cnn", classes=10, input_shape=shape)


def test_default_device_does_not_move_or_change_a_model() -> None:
    plain = models.build("linear", classes=2, input_shape=(3,))
    with torch.device("meta"):
        inside = models.build("linear", classes=2, input_shape=(3,))
    for one, two in zip(plain.parameters(), inside.parameters(), strict=True):
        assert torch.equal(one, two)


def test_register_your_own() -> None:
    assert models.register(CARD)(mine) is mine
    assert "mine" in models.names()
    model = models.build("mine", classes=2, input_shape=(3,), bias=False)
    assert models.parameter_counts(model) == (6, 0)
    with pytest.raises(OptionError, match="already a model"):
        models.register(CARD)(mine)
    models.register(replace(CARD, summary="new"), replace=True)(mine)
    assert models.describe("mine").summary == "new"


def test_register_checks_the_builder_against_its_card() -> None:
    with pytest.raises(OptionError, match=r"must take classes, input_shape, bias, activation"):
        models.register(replace(CARD, activation="tanh"))(mine)
    with pytest.raises(OptionError, match="must be one of relu"):
        models.register(replace(CARD, activation="swish"))
    assert "mine" not in models.names()


def test_a_model_that_mixes_examples_is_refused() -> None:
    def normalised(*, classes: int, input_shape: tuple[int, ...], bias: bool) -> nn.Module:
        return nn.Sequential(
            nn.BatchNorm1d(input_shape[0]), mine(classes=classes, input_shape=(3,), bias=bias)
        )

    models.register(CARD)(normalised)
    with pytest.raises(ModelError, match=r"model 'mine': 0 is a BatchNorm1d.*nn.GroupNorm"):
        models.build("mine", classes=2, input_shape=(3,))


def test_wide_resnet_depth() -> None:
    with pytest.raises(OptionError, match="6k"):
        models.WideResNet(17, 2, channels=3, classes=2, activation=nn.ReLU)
    tiny = models.WideResNet(10, 1, channels=1, classes=2, activation=nn.Tanh)
    assert tiny(torch.randn(2, 1, 8, 8)).shape == (2, 2)
