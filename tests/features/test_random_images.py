"""Features from random images: the same for each record alone, and files of weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from reticent import data, features
from reticent.errors import DataError, OptionError
from reticent.features import catalog, image_network, random_images, whitening
from reticent.features.image_network import load_network, save_network, weights_origin
from reticent.features.random_images import RandomImages, framed
from reticent.pretraining.contrastive import Pretraining

SHIPPED = Path(image_network.__file__).parent / "weights" / image_network.WEIGHTS

SMALL = {"parts": "1x2", "mirror": False, "process": "strokes", "images": 24}


def made(shape: tuple[int, int, int] = (1, 8, 8), **options: Any) -> RandomImages:
    return RandomImages(shape, **{**SMALL, **options})


@pytest.mark.parametrize(
    ("shape", "parts", "width"),
    [
        ((1, 8, 8), "3x1+1x2", 256 + 4 * 64),
        ((3, 28, 24), "2x2", 4 * 128),
        ((3, 8, 12), "2x1+scattering", 128 + 243 * 2 * 3),
        ((1, 20, 8), "scattering", 81 * 5 * 2),
        ((3, 40, 32), "1x3", 9 * 64),
    ],
)
@pytest.mark.parametrize("mirror", [False, True])
def test_each_image_is_mapped_on_its_own(
    shape: tuple[int, int, int], parts: str, width: int, mirror: bool
) -> None:
    transform = made(shape, parts=parts, mirror=mirror, images=12)
    images = torch.rand(5, *shape)
    whole = transform(images)
    assert whole.shape == (5, width)
    torch.testing.assert_close(whole.norm(dim=1), torch.ones(5))
    # whitening by fewer images than features amplifies rounding, up to 1/√ridge times
    close = {"rtol": 0.0, "atol": 3e-4}
    one_by_one = torch.cat([transform(image[None]) for image in images])
    torch.testing.assert_close(one_by_one, whole, **close)
    order = torch.tensor([3, 1, 4, 0, 2])
    torch.testing.assert_close(transform(images[order]), whole[order], **close)
    others = torch.rand(4, *shape)
    torch.testing.assert_close(transform(torch.cat((others, images)))[4:], whole, **close)
    assert transform(images[:0]).shape == (0, width)


def test_an_image_is_the_same_whatever_follows_to_the_last_bit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The network and whitening always see as many rows: fewer may round otherwise."""
    monkeypatch.setitem(random_images._PIECE, "cpu", 4)
    transform = made((3, 8, 8), parts="1x4+scattering", images=24)
    images = torch.rand(9, 3, 8, 8)
    whole = transform(images)
    for count in (1, 2, 5, 8):
        assert torch.equal(transform(images[:count]), whole[:count])
    assert torch.equal(transform(images.to(memory_format=torch.channels_last)), whole)


def test_pieces_and_layouts_matter_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = made((3, 8, 8))
    images = torch.rand(5, 3, 8, 8)
    whole = transform(images)
    last = transform(images.to(memory_format=torch.channels_last))
    torch.testing.assert_close(last, whole, rtol=0, atol=1e-4)
    torch.testing.assert_close(transform(images.double()), whole, rtol=0, atol=1e-4)
    monkeypatch.setitem(random_images._PIECE, "cpu", 2)
    torch.testing.assert_close(transform(images), whole, rtol=0, atol=1e-4)


def test_the_parts_are_the_groups_of_the_network() -> None:
    images = torch.rand(3, 1, 26, 30)
    net = load_network()
    seen = framed(images)
    first = net.get_submodule("group1")(net.stem(seen))
    second = net.get_submodule("group2")(first)
    third = net.get_submodule("group3")(second)
    expected = []
    for maps, places in ((third, 2), (first, 4)):
        channels = maps.shape[1]
        groups = F.relu(maps).reshape(3, 16, -1)
        variance = groups.var(dim=2, correction=0, keepdim=True)
        normal = (groups - groups.mean(2, keepdim=True)) / (variance + 1e-5).sqrt()
        normal = normal.reshape(3, channels, *maps.shape[2:])
        step = maps.shape[2] // places
        pooled = normal.reshape(3, channels, places, step, places, step).mean(dim=(3, 5))
        flat = pooled.flatten(1)
        expected.append(flat / flat.norm(dim=1, keepdim=True) * flat.shape[1] ** 0.5)
    scattered = features.Scattering((26, 30))(images)
    scattered = scattered.reshape(3, 27, -1)
    spread = scattered.var(dim=2, correction=0, keepdim=True)
    scattered = ((scattered - scattered.mean(2, keepdim=True)) / (spread + 1e-5).sqrt()).flatten(1)
    expected.append(scattered / scattered.norm(dim=1, keepdim=True) * scattered.shape[1] ** 0.5)
    found = made((1, 26, 30), parts="3x2+1x4+scattering").pooled(images)
    torch.testing.assert_close(found, torch.cat(expected, 1), rtol=1e-3, atol=1e-4)


def test_mirrored_images_have_the_same_features() -> None:
    images = torch.rand(3, 3, 8, 8)
    both, plain = made((3, 8, 8), mirror=True), made((3, 8, 8))
    torch.testing.assert_close(both.pooled(images), both.pooled(images.flip(3)), rtol=0, atol=1e-4)
    halves = (plain.pooled(images) + plain.pooled(images.flip(3))) / 2
    torch.testing.assert_close(both.pooled(images), halves, rtol=0, atol=1e-4)


def test_images_are_framed_or_resized() -> None:
    grey = torch.rand(2, 1, 24, 31)
    seen = framed(grey)
    assert seen.shape == (2, 3, 32, 32)
    for channel in range(3):
        assert torch.equal(seen[:, channel, 4:28, 0:31], grey[:, 0])
    torch.testing.assert_close(seen.sum(), 3 * grey.sum())  # black around
    for shape in ((1, 23, 28), (3, 8, 8), (3, 64, 40), (1, 32, 33)):
        resized = framed(torch.full((2, *shape), 0.25))
        torch.testing.assert_close(resized, torch.full((2, 3, 32, 32), 0.25))
        assert framed(torch.zeros(0, *shape)).shape == (0, 3, 32, 32)
    assert torch.equal(framed(seen), seen)


def test_the_whitening_is_learned_once_and_only_when_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[tuple[Any, ...]] = []
    draw = whitening.public_images

    def counting(*told: Any) -> torch.Tensor:
        drawn.append(told)
        return draw(*told)

    monkeypatch.setattr(whitening, "public_images", counting)
    transform = made()
    transform(torch.zeros(0, 1, 8, 8))
    assert drawn == []
    assert transform.state_dict().keys() == {f"network.{n}" for n in transform.network.state_dict()}
    transform(torch.rand(2, 1, 8, 8))
    transform(torch.rand(3, 1, 8, 8))
    assert drawn == [("strokes", 24, (1, 8, 8))]
    splits = data.load("digits")
    options = {**SMALL, "parts": "1x1"}
    for _ in range(2):  # the second time, from the files
        features.apply(_few(splits), "random-images", options)
    assert len(drawn) == 2


def _few(splits: data.Splits) -> data.Splits:
    train, test = (tuple(part[:6] for part in split) for split in (splits.train, splits.test))
    return data.Splits(train, test, splits.info, splits.extras, splits.notes)  # type: ignore[arg-type]


def test_features_of_a_data_set_follow_the_weights(tmp_path: Path, home: Path) -> None:
    splits = _few(data.load("digits"))
    options = {**SMALL, "parts": "1x1"}
    found = features.apply(splits, "random-images", options)
    assert "nothing is charged" in found.notes[-1]
    torch.testing.assert_close(
        found.train[0], made(parts="1x1")(splits.train[0]), rtol=0, atol=1e-4
    )
    other = tmp_path / "other.safetensors"
    state = load_file(SHIPPED)
    save_file({name: value.flip(0) for name, value in state.items()}, other)
    theirs = {**options, "weights": str(other)}
    changed = features.apply(splits, "random-images", theirs)
    assert not torch.allclose(changed.train[0], found.train[0], atol=1e-2)
    before = features.locate(splits, "random-images", theirs)
    save_file({name: 2 * value for name, value in state.items()}, other)  # under the same name
    assert features.locate(splits, "random-images", theirs) != before
    again = features.apply(splits, "random-images", theirs)
    assert not torch.allclose(again.train[0], changed.train[0], atol=1e-2)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 8, 8), r"shape \(2, 8, 8\): these features are for \[n, 1, 8, 8\]"),
        (torch.zeros(2, 3, 8, 8), "these features are for"),
        (torch.zeros(2, 8, 8, 1), "these features are for"),
        (torch.zeros(2, 1, 8, 8, dtype=torch.uint8), "torch.uint8: .* divide bytes by 255"),
        (torch.full((2, 1, 8, 8), 255.0), r"outside \[0, 1\]"),
        (torch.full((2, 1, 8, 8), -0.5), r"outside \[0, 1\]"),
        (torch.full((2, 1, 8, 8), torch.nan), "NaN"),
    ],
)
def test_what_are_no_such_images_is_refused(images: torch.Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        made()(images)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((4, 8, 8), {}, r"channels first: 4 channels in \(4, 8, 8\)"),
        ((28, 28, 1), {}, "channels first: 28 channels"),
        ((1, 3, 28), {}, "at least 4x4 pixels, not 3x28"),
        ((1, 8, 8), {"parts": "4x2"}, "parts = '4x2': '4x2' is neither GxS"),
        ((1, 8, 8), {"parts": ""}, "parts = ''"),
        ((1, 8, 8), {"parts": "1x2+"}, "parts = '1x2\\+'"),
        ((1, 8, 8), {"mirror": "no"}, "mirror = 'no': must be true or false"),
        ((1, 8, 8), {"process": "photos"}, "process = 'photos': must be one of mixed"),
        ((1, 8, 8), {"ridge": 0}, "ridge = 0: must be greater than 0"),
        ((1, 8, 8), {"images": 0}, "images = 0: must be at least 1"),
        ((1, 8, 8), {"weights": 3}, "weights = 3: must be the name of a file"),
        ((1, 8, 8), {"weights": "nowhere/there"}, "weights = 'nowhere/there': cannot be read: No"),
        ((1, 8, 8), {"weights": "a\0b"}, "cannot be read: embedded null"),
    ],
)
def test_what_cannot_work_is_named(
    shape: tuple[int, int, int], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        made(shape, **options)


def test_texts_are_no_images() -> None:
    with pytest.raises(OptionError, match=r"takes images .*; these inputs have shape \(80,\)"):
        catalog.build("random-images", (80,), {}, {})


def test_files_that_hold_other_things_are_refused(tmp_path: Path) -> None:
    path, state = tmp_path / "weights", load_file(SHIPPED)
    whole = SHIPPED.read_bytes()
    for wrong in (b"", b"weights", whole[:5000], whole[:-1], whole + b"more"):
        path.write_bytes(wrong)
        with pytest.raises(OptionError, match="is no whole safetensors file"):
            load_network(str(path))
        assert weights_origin(str(path)) == {} or wrong == whole[:-1] or wrong[:9] == whole[:9]
    with pytest.raises(OptionError, match="cannot be read: Is a directory"):
        load_network(str(tmp_path))
    del state["stem.bias"]
    save_file(state, path)
    with pytest.raises(OptionError, match=r"this network's \d+ tensors: stem.bias is missing"):
        load_network(str(path))
    save_file({**load_file(SHIPPED), "classifier.bias": torch.zeros(3)}, path)
    with pytest.raises(OptionError, match=r"it has classifier\.bias"):
        load_network(str(path))
    save_file({**load_file(SHIPPED), "stem.bias": torch.zeros(3)}, path)
    with pytest.raises(OptionError, match=r"stem.bias has shape \(3,\), not \(16,\)"):
        load_network(str(path))
    save_file({**load_file(SHIPPED), "stem.bias": torch.full((16,), torch.nan)}, path)
    with pytest.raises(OptionError, match=r"stem\.bias holds numbers that are not finite"):
        load_network(str(path))


def test_weights_are_kept_with_how_they_were_learned(tmp_path: Path) -> None:
    path, plan = tmp_path / "new" / "weights.safetensors", Pretraining(steps=3, seed=5)
    net = load_network()
    save_network(path, net, plan, 2.5)
    again = load_network(str(path))
    for one, other in zip(net.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)  # the shipped ones are halves already
        assert not other.requires_grad
    told = weights_origin(str(path))
    assert told.pop("version")
    assert told == {**plan.to_json(), "loss": 2.5}
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_shipped_weights_say_where_they_come_from() -> None:
    told = weights_origin()
    assert set(Pretraining().to_json()) <= set(told)
    assert 0 < told["loss"] < 8
    card = features.describe("random-images").to_json()
    assert json.loads(json.dumps(card))["learned"] == told
    assert features.describe("scattering").to_json()["learned"] == {}
