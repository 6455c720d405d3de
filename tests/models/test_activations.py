from __future__ import annotations

import pytest
import torch
from torch import nn

from reticent.errors import OptionError
from reticent.models import TemperedSigmoid, activation


def test_tanh_is_the_tempered_sigmoid_of_2_2_1() -> None:
    x = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    expected = torch.tanh(x)
    for module in (TemperedSigmoid(2, 2, 1), activation("tempered-sigmoid")):
        torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-15)


def test_tempered_sigmoid_gradient_is_tanh_gradient() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64, requires_grad=True)
    (ours,) = torch.autograd.grad(TemperedSigmoid()(x).sum(), x)
    torch.testing.assert_close(ours, 1 - torch.tanh(x.detach()) ** 2, rtol=0, atol=1e-14)


def test_constants_are_scale_temperature_offset() -> None:
    module = activation("tempered-sigmoid:1.58,3.0,0.71")
    assert isinstance(module, TemperedSigmoid)
    assert (module.scale, module.temperature, module.offset) == (1.58, 3.0, 0.71)
    assert module(torch.tensor(0.0)).item() == pytest.approx(1.58 / 2 - 0.71)
    assert module(torch.tensor(100.0)).item() == pytest.approx(1.58 - 0.71)
    assert module(torch.tensor(-100.0)).item() == pytest.approx(-0.71)
    assert module(torch.tensor(0.2)).item() == pytest.approx(
        1.58 * torch.sigmoid(torch.tensor(0.6)).item() - 0.71
    )
    assert "scale=1.58, temperature=3, offset=0.71" in repr(module)


def test_plain_names() -> None:
    relu = activation("relu")
    assert isinstance(relu, nn.ReLU)
    assert not relu.inplace
    assert isinstance(activation(" tanh "), nn.Tanh)
    assert activation("tanh") is not activation("tanh")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("gelu", "must be one of relu, tanh, tempered-sigmoid"),
        ("", "must be one of relu"),
        ("relu:1", "takes no numbers"),
        ("tempered-sigmoid:", "tempered-sigmoid:1.58,3.0,0.71"),
        ("tempered-sigmoid:1,2", "scale,temperature,offset"),
        ("tempered-sigmoid:1,2,3,4", "scale,temperature,offset"),
        ("tempered-sigmoid:a,b,c", "scale,temperature,offset"),
        ("tempered-sigmoid:nan,1,1", "scale,temperature,offset"),
        ("tempered-sigmoid:0,1,1", "greater than 0"),
        ("tempered-sigmoid:1,-1,1", "greater than 0"),
        (3, "must be a text"),
    ],
)
def test_bad_text_is_refused_with_a_way_out(spec: str, says: str) -> None:
    with pytest.raises(OptionError, match="activation = ") as caught:
        activation(spec)
    assert says in str(caught.value)


def test_bad_constants_name_the_constant() -> None:
    with pytest.raises(OptionError, match=r"scale = -1: must be greater than 0"):
        TemperedSigmoid(-1, 1, 1)
    with pytest.raises(OptionError, match="temperature = 0"):
        TemperedSigmoid(1, 0, 1)
    with pytest.raises(OptionError, match="offset = inf"):
        TemperedSigmoid(1, 1, float("inf"))
