"""The numbers the papers' tables imply, worked out by hand beside each model."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from reticent import models
from reticent.errors import OptionError
from reticent.gradients import check
from reticent.models.text import random_vectors


def count(name: str, *, classes: int | None = None, shape: Any = None, **options: Any) -> int:
    card = models.describe(name)
    model = models.build(
        name, classes=classes or card.classes, input_shape=shape or card.input_shape, **options
    )
    return models.parameter_counts(model)[0]


def test_mnist_cnn() -> None:
    conv1 = 16 * 1 * 8 * 8 + 16  # 28 -> 13 -> pool 12
    conv2 = 32 * 16 * 4 * 4 + 32  # 12 -> 5 -> pool 4
    fc1, fc2 = 32 * 4 * 4 * 32 + 32, 32 * 10 + 10
    assert conv1 + conv2 + fc1 + fc2 == 26_010
    assert count("mnist-cnn") == 26_010
    assert count("mnist-cnn", classes=3) == 26_010 - 7 * 33
    outputs = [row.output for row in _layers("mnist-cnn") if row.kind in ("Conv2d", "MaxPool2d")]
    assert outputs == [(16, 13, 13), (16, 12, 12), (32, 5, 5), (32, 4, 4)]


def test_cifar_cnn() -> None:
    channels = [3, 32, 32, 64, 64, 128, 128]
    convs = sum(9 * a * b + b for a, b in pairwise(channels))
    expected = convs + 128 * 4 * 4 * 128 + 128 + 128 * 10 + 10
    assert expected == 550_570
    assert count("cifar-cnn") == expected
    assert count("cifar-cnn", inputs="imagenet") == expected


def test_inputs_on_imagenets_scale() -> None:
    shape = {"classes": 10, "input_shape": (3, 32, 32)}
    plain = models.build("cifar-cnn", **shape)
    scaled = models.build("cifar-cnn", inputs="imagenet", **shape)
    x = torch.rand((5, 3, 32, 32), generator=torch.Generator().manual_seed(2))
    by_hand = x.clone()
    for channel, (mean, deviation) in enumerate(((0.485, 0.229), (0.456, 0.224), (0.406, 0.225))):
        by_hand[:, channel] = (x[:, channel] - mean) / deviation
    torch.testing.assert_close(scaled(x), plain(by_hand))
    assert "mean=(0.485, 0.456, 0.406), deviation=(0.229, 0.224, 0.225)" in str(scaled)
    labels = torch.tensor([0, 3, 9, 1, 3])
    assert check(scaled, nn.CrossEntropyLoss(), x, labels).raise_if_wrong().path == "fast"
    for options, says in (
        ({"inputs": "zero"}, "inputs = 'zero': must be one of plain, imagenet"),
        (
            {"inputs": "imagenet", "input_shape": (1, 32, 32)},
            r"images of 3 channels; these have shape \(1, 32, 32\)",
        ),
    ):
        with pytest.raises(OptionError, match=says):
            models.build("cifar-cnn", **{**shape, **options})


def test_digits_cnn() -> None:
    expected = (9 * 16 + 16) + (9 * 16 * 16 + 16) + (16 * 4 * 4 * 10 + 10)
    assert count("digits-cnn") == expected == 5_050


def test_imdb_bilstm() -> None:
    one_direction = 4 * 32 * (32 + 32) + 2 * 4 * 32
    expected = (100 * 32 + 32) + 2 * one_direction + (64 * 16 + 16) + (16 * 2 + 2)
    assert expected == 21_202
    model = models.build("imdb-bilstm", classes=2, input_shape=(80,))
    assert models.parameter_counts(model) == (expected, 20_000 * 100)


def test_dense() -> None:
    assert count("linear") == 600 * 100 + 100
    assert count("linear", shape=(1, 8, 8), classes=10) == 650
    assert count("linear-head") == 512 * 10 + 10
    assert count("linear-head", shape=(81, 8, 8), groups=27) == 81 * 64 * 10 + 10
    assert count("mlp", hidden=(20, 30)) == (64 * 20 + 20) + (20 * 30 + 30) + (30 * 10 + 10)


def test_scatter_cnn() -> None:
    grey = (9 * 81 * 16 + 16) + (9 * 16 * 32 + 32) + (32 * 4 * 4 * 32 + 32) + (32 * 10 + 10)
    assert count("scatter-cnn") == grey == 33_066
    colour = (9 * 243 * 64 + 64) + (9 * 64 * 64 + 64) + (64 * 4 * 4 * 10 + 10)
    assert count("scatter-cnn", shape=(243, 8, 8)) == colour == 187_210
    assert count("scatter-cnn", shape=(243, 8, 8), network="grey") != colour
    assert count("scatter-cnn", groups=0) == grey
    first = _layers("scatter-cnn")[0]
    assert (first.kind, first.output) == ("GroupNorm", (81, 7, 7))


def test_scatter_linear() -> None:
    assert count("scatter-linear") == 81 * 7 * 7 * 10 + 10
    assert count("scatter-linear", shape=(243, 8, 8), groups=0) == 243 * 8 * 8 * 10 + 10


@pytest.mark.parametrize("name", ["scatter-cnn", "scatter-linear"])
@pytest.mark.parametrize("shape", [(81, 7, 7), (243, 8, 8)])
def test_scatter_models_take_the_fast_path(name: str, shape: tuple[int, ...]) -> None:
    model = models.build(name, classes=10, input_shape=shape)
    inputs, targets = torch.rand(3, *shape), torch.tensor([1, 0, 9])
    found = check(model, nn.CrossEntropyLoss(), inputs, targets)
    found.raise_if_wrong()
    assert found.path == "fast"


@pytest.mark.parametrize(
    ("name", "depth", "width", "classes", "expected"),
    [("wrn-16-4", 16, 4, 10, 2_751_562), ("wrn-28-2", 28, 2, 100, 1_481_476)],
)
@pytest.mark.parametrize("standardize", [False, True])
def test_wide_resnets(
    name: str, depth: int, width: int, classes: int, expected: int, standardize: bool
) -> None:
    def conv(a: int, b: int, k: int) -> int:
        return a * b * k * k + b + (b if standardize else 0)  # weights, bias, gain

    total, before = conv(3, 16, 3), 16
    for filters in (16 * width, 32 * width, 64 * width):
        total += 2 * before + conv(before, filters, 1)  # the skip
        total += 2 * before + conv(before, filters, 3) + 2 * filters + conv(filters, filters, 3)
        later = (depth - 4) // 6 - 1
        total += later * 2 * (2 * filters + conv(filters, filters, 3))
        before = filters
    total += 2 * before + before * classes + classes
    assert count(name, standardize=standardize) == total
    if not standardize:
        assert total == expected


@pytest.mark.parametrize(("name", "convs"), [("wrn-16-4", 13), ("wrn-28-2", 25)])
def test_wide_resnet_depth_counts_its_3x3_layers(name: str, convs: int) -> None:
    model = _usual(name)
    kernels = [m.kernel_size for m in model.modules() if isinstance(m, nn.Conv2d)]
    assert kernels.count((3, 3)) == convs  # and the head makes a multiple of six and four
    assert kernels.count((1, 1)) == 3
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert {m.num_groups for m in norms} == {16}


def test_wide_resnet_halves_twice() -> None:
    outputs = {row.output for row in _layers("wrn-16-4") if row.kind == "Conv2d"}
    assert outputs == {(16, 32, 32), (64, 32, 32), (128, 16, 16), (256, 8, 8)}


def test_standardized_filters_have_no_mean_and_unit_norm() -> None:
    torch.manual_seed(0)
    conv = models.StandardizedConv2d(4, 5, 3, padding=1)
    filters = conv.filters()
    torch.testing.assert_close(filters.mean(dim=(1, 2, 3)), torch.zeros(5), rtol=0, atol=1e-6)
    torch.testing.assert_close(filters.flatten(1).norm(dim=1), torch.ones(5))
    shifted = models.StandardizedConv2d(4, 5, 3, padding=1)
    shifted.weight.data = 3 * conv.weight.data + 7
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(shifted(x), conv(x), rtol=1e-4, atol=1e-5)
    assert not isinstance(conv, nn.Conv2d)  # so that no rule for nn.Conv2d takes it
    assert "kernel_size=(3, 3)" in repr(conv)


def test_linear_head_normalises_each_group_without_parameters() -> None:
    model = models.build("linear-head", classes=2, input_shape=(6, 4, 4), groups=3)
    assert [name for name, _ in model.named_parameters()] == ["2.weight", "2.bias"]
    x = 5 + 3 * torch.randn(2, 6, 4, 4)
    assert isinstance(model, nn.Sequential)
    grouped = model[0](x).reshape(2, 3, -1)
    torch.testing.assert_close(grouped.mean(2), torch.zeros(2, 3), rtol=0, atol=1e-5)
    torch.testing.assert_close(grouped.var(2, correction=0), torch.ones(2, 3), rtol=1e-3, atol=1e-3)


def test_bilstm_reads_the_last_state_of_each_direction() -> None:
    model = models.build("imdb-bilstm", classes=2, input_shape=(7,), vocabulary=50)
    assert isinstance(model, models.BiLSTMClassifier)
    tokens = torch.randint(0, 50, (3, 7))
    words = model.projection(model.embedding(tokens)).relu()
    _, (last, _) = model.lstm(words)
    review = torch.cat([last[0], last[1]], dim=1)
    expected = model.classifier(model.hidden(review).relu())
    torch.testing.assert_close(model(tokens), expected)


def test_bilstm_embedding_is_the_given_one_and_frozen() -> None:
    vectors = torch.randn(11, 6)
    model = models.build("imdb-bilstm", classes=2, input_shape=(5,), vectors=vectors)
    assert isinstance(model, models.BiLSTMClassifier)
    table = model.embedding.weight
    assert torch.equal(table, vectors)
    assert table.data_ptr() != vectors.data_ptr()
    assert not table.requires_grad
    model(torch.randint(0, 11, (4, 5))).sum().backward()
    assert table.grad is None
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)


def test_bilstm_stand_in_table_is_the_same_for_every_seed() -> None:
    built = [
        models.build("imdb-bilstm", classes=2, input_shape=(5,), vocabulary=9, seed=seed)
        for seed in (0, 1)
    ]
    tables = [model.state_dict()["embedding.weight"] for model in built]
    assert torch.equal(tables[0], tables[1])
    assert torch.equal(tables[0], random_vectors(9))
    assert torch.equal(tables[0][0], torch.zeros(100))
    assert not torch.equal(
        built[0].state_dict()["projection.weight"], built[1].state_dict()["projection.weight"]
    )


def test_bilstm_words_may_be_trained_and_states_averaged() -> None:
    vectors = torch.randn(11, 6)
    options = {"words": "trained", "states": "mean", "vectors": vectors}
    built = [
        models.build("imdb-bilstm", classes=2, input_shape=(5,), seed=seed, **options)
        for seed in (0, 1)
    ]
    model = built[0]
    assert isinstance(model, models.BiLSTMClassifier)
    table = model.embedding.weight
    assert table.shape == (11, 100)  # as many words, and random vectors of the papers' length
    assert not torch.equal(table, built[1].state_dict()["embedding.weight"])
    assert abs(float(table.detach().std()) - 1) < 0.1
    tokens = torch.randint(0, 11, (4, 5))
    tokens[0] = 0
    words = model.projection(model.embedding(tokens)).relu()
    states, _ = model.lstm(words)
    expected = model.classifier(model.hidden(sum(states[:, k] for k in range(5)) / 5).relu())
    torch.testing.assert_close(model(tokens), expected)
    model(tokens).sum().backward()
    assert table.grad is not None
    assert bool(table.grad[0].any())  # padding is a word like others there


def test_bilstm_vectors_may_be_those_of_words_further_on() -> None:
    vectors = torch.randn(11, 6)
    vectors[0] = 0
    model = models.build("imdb-bilstm", classes=2, input_shape=(5,), vectors=vectors, offset=3)
    table = model.state_dict()["embedding.weight"]
    # Keras' list has its first word at 1, and its reviews have padding, start, unknown and words at
    # 0, 1, 2 and 4, 5, ...: here words are at 3, 4, ...
    by_list = torch.cat([torch.zeros(1, 6), vectors[3:], torch.zeros(4, 6)])
    expected = torch.cat([by_list[:3], by_list[4:]])[:11]
    assert torch.equal(table, expected)
    assert torch.equal(table[4], vectors[7])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"words": "learned"}, "words = 'learned': must be one of frozen, trained"),
        ({"states": "first"}, "states = 'first': must be one of last, mean"),
        ({"offset": -1}, "offset = -1: must be at least 0"),
        ({"offset": 9, "vocabulary": 9}, "offset = 9: must be at most 4, of 9 word indexes"),
        ({"offset": 3, "words": "trained"}, "offset = 3: is for frozen word vectors"),
        ({"vectors": torch.zeros(5)}, "vectors = (5,): must be a table"),
        ({"vectors": torch.full((5, 2), float("nan"))}, "NaN or infinity"),
        ({"vectors": "glove.txt"}, "vectors = 'str': must be a table"),
        ({"vectors": torch.zeros(5, 2), "vocabulary": 6}, "vectors has 5 rows"),
        ({"vocabulary": 1}, "must be at least 2"),
    ],
)
def test_bilstm_refuses_tables_that_cannot_work(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError) as caught:
        models.build("imdb-bilstm", classes=2, input_shape=(5,), **options)
    assert says in str(caught.value)


def _usual(name: str) -> nn.Module:
    card = models.describe(name)
    return models.build(name, classes=card.classes, input_shape=card.input_shape)


def _layers(name: str) -> list[models.Layer]:
    return models.layers(_usual(name), models.describe(name).sample())
