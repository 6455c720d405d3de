"""Weights that start as Keras' defaults: its distributions, written down here once more."""

import math

import pytest
import torch
from torch import nn

from reticent import models
from reticent.errors import OptionError

SHAPES = {
    "mnist-cnn": (1, 28, 28),
    "cifar-cnn": (3, 32, 32),
    "scatter-cnn": (243, 8, 8),
    "imdb-bilstm": (80,),
}


def built(name, **options):
    return models.build(name, classes=10, input_shape=SHAPES[name], **options)


def fans(weight):
    """Inputs and outputs of one entry: channels times the kernel's area."""
    area = math.prod(weight.shape[2:])
    return weight.shape[1] * area, weight.shape[0] * area


@pytest.mark.parametrize("name", SHAPES)
def test_layers_start_as_keras_has_them(name):
    for module in built(name, start="keras").modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            limit = math.sqrt(6 / sum(fans(module.weight)))
            largest = float(module.weight.detach().abs().max())
            assert 0.9 * limit < largest <= limit
            # uniform: its deviation is limit / √3
            off = module.weight.detach().std() / (limit / math.sqrt(3)) - 1
            assert abs(float(off)) < 8 / math.sqrt(module.weight.numel())
            assert not module.bias.detach().any()


def test_the_recurrent_layer_starts_as_keras_has_it():
    lstm = built("imdb-bilstm", start="keras").lstm
    units = lstm.hidden_size
    for end in ("", "_reverse"):
        given, own, one, other = (
            getattr(lstm, f"{name}_l0{end}").detach()
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        # Keras draws all gates at once: a matrix of inputs times 4 · units
        limit = math.sqrt(6 / (given.shape[1] + 4 * units))
        assert 0.95 * limit < float(given.abs().max()) <= limit
        assert torch.allclose(own.T @ own, torch.eye(units), atol=1e-5)
        forget = torch.zeros(4 * units)
        forget[units : 2 * units] = 1
        assert torch.equal(one + other, forget)


def test_words_that_are_trained_start_near_zero_and_frozen_ones_stay():
    options = {"vocabulary": 50, "start": "keras"}
    trained = built("imdb-bilstm", words="trained", **options).embedding.weight
    assert 0.04 < float(trained.detach().abs().max()) <= 0.05
    frozen = built("imdb-bilstm", **options).embedding.weight
    assert torch.equal(frozen, built("imdb-bilstm", vocabulary=50).embedding.weight)


@pytest.mark.parametrize("name", SHAPES)
def test_a_seed_decides_and_pytorchs_defaults_stay_what_they_were(name):
    def weights(**options):
        return [p for p in built(name, **options).parameters() if p.ndim > 1 and p.requires_grad]

    def equal(one, other):
        return [torch.equal(a, b) for a, b in zip(one, other, strict=True)]

    keras, plain = weights(start="keras", seed=3), weights()
    assert all(equal(keras, weights(start="keras", seed=3)))
    assert not any(equal(keras, weights(start="keras", seed=4)))
    assert all(equal(plain, weights(start="torch")))
    assert not any(equal(plain, weights(start="keras")))


def test_what_is_neither_is_refused():
    with pytest.raises(OptionError, match=r"start = 'glorot': must be one of torch, keras"):
        built("mnist-cnn", start="glorot")
