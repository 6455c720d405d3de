"""Features by image encoders that users bring, against the network itself."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reticent import data, features
from reticent.cli.auditing import AuditedRun
from reticent.cli.settings import Settings
from reticent.errors import CheckpointError, DataError, OptionError
from reticent.features import applying, image_encoder
from reticent.features.applying import feature_note
from reticent.features.whitening import public_images, whitening

SIDE, ROWS, WIDTH = 12, 4, 5
SHAPE = (3, 8, 8)


def network(channels: int = 3, seed: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        stem = nn.Conv2d(channels, WIDTH, 5, padding=2)
    return nn.Sequential(stem, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def resized(images: torch.Tensor) -> torch.Tensor:
    return F.interpolate(
        images, (SIDE, SIDE), mode="bicubic", antialias=True, align_corners=False
    ).clamp(0, 1)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoder") / "tiny.pt2"
    return features.export_encoder(network(), path, side=SIDE, rows=ROWS)


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand((7, *SHAPE), generator=torch.Generator().manual_seed(2))


@pytest.fixture
def few() -> data.Splits:
    splits = data.load("digits")
    return replace(
        splits,
        train=tuple(part[:20] for part in splits.train),
        test=tuple(part[:10] for part in splits.test),
    )


def test_vectors_are_the_networks(encoder, images):
    found = features.ImageEncoder(encoder, SHAPE, inputs="half", length=0)
    assert found.width == WIDTH
    with torch.no_grad():
        expected = network()((resized(images) - 0.5) / 0.5)
    torch.testing.assert_close(found(images), expected)
    one = features.ImageEncoder(encoder, SHAPE, inputs="0.5/0.5", length=2.5)
    torch.testing.assert_close(one(images), 2.5 * F.normalize(expected, dim=1))
    assert found(images[:0]).shape == (0, WIDTH)
    assert not list(found.parameters())


def test_public_scales_are_by_channel(encoder, images):
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    columns = [torch.tensor(values).view(3, 1, 1) for values in (mean, deviation)]
    with torch.no_grad():
        expected = network()((resized(images) - columns[0]) / columns[1])
    for inputs in ("imagenet", "0.485,0.456,0.406/0.229,0.224,0.225"):
        found = features.ImageEncoder(encoder, SHAPE, inputs=inputs, length=0)(images)
        torch.testing.assert_close(found, expected)
    plain = features.ImageEncoder(encoder, SHAPE, inputs="plain", length=0)(images)
    with torch.no_grad():
        torch.testing.assert_close(plain, network()(resized(images)))


def test_an_image_is_the_same_alone_and_among_others_to_the_last_bit(encoder, images):
    made = features.ImageEncoder(encoder, SHAPE)
    together = made(images)
    for row, image in zip(together, images, strict=True):
        assert torch.equal(made(image[None])[0], row)
    assert torch.equal(made(images.flip(0)), together.flip(0))


def test_mirror_images_are_averaged(encoder, images):
    plain = features.ImageEncoder(encoder, SHAPE, length=0)
    both = features.ImageEncoder(encoder, SHAPE, length=0, mirror=True)
    torch.testing.assert_close(both(images), (plain(images) + plain(images.flip(3))) / 2)
    torch.testing.assert_close(both(images), both(images.flip(3)))


def test_grey_images_become_as_many_channels_as_the_encoder_takes(encoder, tmp_path):
    grey = torch.rand((3, 1, SIDE, SIDE), generator=torch.Generator().manual_seed(4))
    made = features.ImageEncoder(encoder, (1, SIDE, SIDE), inputs="plain", length=0)
    with torch.no_grad():
        torch.testing.assert_close(made(grey), network()(grey.expand(-1, 3, -1, -1)))
    path = features.export_encoder(network(1), tmp_path / "grey.pt2", side=8, channels=1, rows=2)
    alone = features.ImageEncoder(path, (1, 8, 8), inputs="half", length=0)
    with torch.no_grad():
        torch.testing.assert_close(
            alone(grey[:, :, :8, :8]), network(1)((grey[:, :, :8, :8] - 0.5) / 0.5)
        )
    with pytest.raises(OptionError, match="takes 1 channels; these images have 3"):
        features.ImageEncoder(path, (3, 8, 8), inputs="half")
    with pytest.raises(OptionError, match="has 3 numbers; the encoder takes 1 channels"):
        features.ImageEncoder(path, (1, 8, 8), inputs="imagenet")


def test_whitening_is_by_random_images(encoder, images):
    made = features.ImageEncoder(encoder, SHAPE, images=64, ridge=0.5, length=3.0)
    raw = features.ImageEncoder(encoder, SHAPE, length=0)
    bank = public_images("mixed", 64, SHAPE).float() / 255
    expected = 3 * whitening(raw(bank), 0.5)(raw(images))
    torch.testing.assert_close(made(images), expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"inputs": "vgg"}, r"inputs = 'vgg': must be one of plain, imagenet, clip, half, or MEAN"),
        ({"inputs": "0.5/0"}, "must be a mean and a deviation greater than 0"),
        ({"inputs": "nan/1"}, "must be a mean and a deviation greater than 0"),
        ({"inputs": "1,2/0.5"}, "has 2 numbers; the encoder takes 3 channels"),
        ({"mirror": 1}, "mirror = 1: must be true or false"),
        ({"length": -1}, "length = -1: must be 0 or greater"),
        ({"length": float("nan")}, "length = nan"),
        ({"length": 1e300}, r"length = 1e\+300: must lie in"),
        ({"inputs": [0.5]}, r"inputs = \[0\.5\]: must be one of"),
        ({"process": "clouds"}, "process = 'clouds': must be one of mixed"),
        ({"ridge": -1}, "ridge = -1: must be greater than 0"),
        ({"images": 10**11}, "images = 100000000000: must lie in"),
        ({"images": -1}, "images = -1: must be at least 0"),
        ({"images": 8, "process": "clouds"}, "process = 'clouds': must be one of mixed"),
        ({"images": 8, "ridge": 0}, "ridge = 0: must be greater than 0"),
    ],
)
def test_options_that_cannot_work_are_refused(encoder, options, said):
    with pytest.raises(OptionError, match=said):
        features.ImageEncoder(encoder, SHAPE, **options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[:, :1], r"have shape \(7, 1, 8, 8\): these features are for \[n, 3, 8, 8\]"),
        (lambda x: (255 * x).to(torch.uint8), "must be floats in"),
        (lambda x: x - 1, r"values outside \[0, 1\], or NaN: image-encoder takes them"),
        (lambda x: x * float("nan"), r"values outside \[0, 1\], or NaN"),
    ],
)
def test_what_are_no_images_is_refused(encoder, images, change, said):
    with pytest.raises(DataError, match=said):
        features.ImageEncoder(encoder, SHAPE)(change(images))


def test_features_are_kept_and_follow_the_file(encoder, few, tmp_path):
    given = {"encoder": str(encoder), "inputs": "half"}
    made = features.apply(few, "image-encoder", given, root=tmp_path)
    expected = features.ImageEncoder(encoder, (1, 8, 8), inputs="half")(few.train[0])
    assert torch.equal(made.train[0], expected)
    assert "must not have been trained on the records" in made.notes[-1]
    assert str(encoder) not in made.notes[-1]
    assert encoder.name not in made.notes[-1]
    paths = features.locate(few, "image-encoder", given, root=tmp_path)
    stamps = [path.stat().st_mtime_ns for path in paths.values()]
    features.apply(few, "image-encoder", given, root=tmp_path)
    assert [path.stat().st_mtime_ns for path in paths.values()] == stamps
    copy = tmp_path / "moved.pt2"
    copy.write_bytes(encoder.read_bytes())
    moved = {**given, "encoder": str(copy)}
    assert features.locate(few, "image-encoder", moved, root=tmp_path) == paths
    features.export_encoder(network(seed=2), copy, side=SIDE, rows=ROWS)
    assert features.locate(few, "image-encoder", moved, root=tmp_path) != paths


def test_a_length_is_the_same_however_it_is_written(encoder, tmp_path):
    splits = data.load("digits")
    given = {"encoder": str(encoder), "inputs": "half", "mirror": True}
    whole, fraction = (
        features.locate(splits, "image-encoder", {**given, "length": n}, root=tmp_path)
        for n in (0, 0.0)
    )
    assert whole == fraction


def test_mirrored_images_are_kept_as_such(encoder, tmp_path):
    splits = data.load("digits")
    few = replace(splits, train=tuple(part[:9] for part in splits.train))
    for mirror in (False, True):
        given = {"encoder": str(encoder), "inputs": "half", "mirror": mirror}
        made = features.apply(few, "image-encoder", given, root=tmp_path)
        direct = features.ImageEncoder(encoder, (1, 8, 8), inputs="half", mirror=mirror)
        assert torch.equal(made.train[0], direct(few.train[0]))


def test_a_file_that_changes_while_features_are_made_is_noticed(encoder, tmp_path, monkeypatch):
    path = tmp_path / "tiny.pt2"
    path.write_bytes(encoder.read_bytes())
    splits = data.load("digits")
    build = applying.build

    def replaced(*words):
        features.export_encoder(network(seed=2), path, side=SIDE, rows=ROWS)
        return build(*words)

    monkeypatch.setattr(applying, "build", replaced)
    given = {"encoder": str(path), "inputs": "half"}
    with pytest.raises(DataError, match="changed meanwhile"):
        features.apply(splits, "image-encoder", given, root=tmp_path)
    assert not list(tmp_path.rglob("*.npy"))


def test_numbers_that_are_not_finite_for_some_images_name_the_encoder(tmp_path):
    class Dark(nn.Module):
        """Nothing over nothing, for black images."""

        def forward(self, x):
            return x.flatten(1) / x.flatten(1).sum(1, keepdim=True)

    path = features.export_encoder(Dark(), tmp_path / "dark.pt2", side=4, rows=3)
    made = features.ImageEncoder(path, (3, 4, 4), inputs="plain")
    assert made(torch.rand((2, 3, 4, 4))).isfinite().all()
    with pytest.raises(DataError, match=r"dark\.pt2: .* not finite for some images"):
        made(torch.zeros((2, 3, 4, 4)))


def test_images_of_any_form_are_resized(encoder):
    for shape in ((3, SIDE, 9), (3, 9, SIDE), (3, 20, 20)):
        images = torch.rand((2, *shape), generator=torch.Generator().manual_seed(5))
        found = features.ImageEncoder(encoder, shape, inputs="plain", length=0)(images)
        with torch.no_grad():
            torch.testing.assert_close(found, network()(resized(images)))


def test_whitening_rounds_an_image_the_same_alone_and_among_others(tmp_path):
    """A product of a few rows is computed otherwise than one of many."""
    wide = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 300))
    path = features.export_encoder(wide, tmp_path / "wide.pt2", side=SIDE, rows=ROWS)
    made = features.ImageEncoder(path, (3, SIDE, SIDE), images=400)
    images = torch.rand((2 * ROWS + 1, 3, SIDE, SIDE), generator=torch.Generator().manual_seed(6))
    together = made(images)
    for row, image in zip(together, images, strict=True):
        assert torch.equal(made(image[None])[0], row)


def test_clip_has_the_numbers_that_it_was_published_with():
    mean, deviation = image_encoder.NAMED["clip"]
    assert mean == (0.48145466, 0.4578275, 0.40821073)
    assert deviation == (0.26862954, 0.26130258, 0.27577711)


def test_standardising_knows_the_length(encoder):
    card = features.describe("image-encoder")
    reach = {n: card.reach((3, 8, 8), card.complete({"length": n})) for n in (1, 2.5, 0)}
    assert (reach[1].bound, reach[1].clip) == (1.0, 1.0)
    assert (reach[2.5].bound, reach[2.5].clip) == (2.5, 2.5)
    assert reach[0] == features.Reach()


def test_images_are_encoded_once_whatever_follows(encoder, few, tmp_path, monkeypatch):
    """Length and whitening are applied to kept vectors, bit for bit as in one go."""
    given = {"encoder": str(encoder), "inputs": "half"}
    features.apply(few, "image-encoder", given, root=tmp_path)
    assert len(list(tmp_path.rglob("*.npy"))) == 4  # of both splits, raw and of length 1
    changed = [{"length": 3.0}, {"images": 16, "ridge": 0.5}, {"length": 0.0}]
    direct = [
        features.apply(few, "image-encoder", {**given, **other}, root=tmp_path, keep=False)
        for other in changed
    ]
    encoded = []
    pooled = features.ImageEncoder.pooled

    def counting(self, images):
        encoded.append(len(images))
        return pooled(self, images)

    monkeypatch.setattr(features.ImageEncoder, "pooled", counting)
    for other, expected in zip(changed, direct, strict=True):
        made = features.apply(few, "image-encoder", {**given, **other}, root=tmp_path)
        assert torch.equal(made.train[0], expected.train[0])
        assert torch.equal(made.test[0], expected.test[0])
        assert made.notes == expected.notes
    assert set(encoded) == {0, 16}  # shapes, and the random images that whiten


def test_an_audit_refuses_another_encoder(encoder, tmp_path):
    other = features.export_encoder(network(seed=2), tmp_path / "b.pt2", side=SIDE, rows=ROWS)
    run = object.__new__(AuditedRun)
    run.folder = tmp_path
    then = feature_note("image-encoder", {"encoder": str(encoder)})
    run.report = {"ledger": {"notes": [then]}}
    for path, refused in ((encoder, False), (other, True)):
        run.settings = Settings(features="image-encoder", feature_options={"encoder": str(path)})
        if refused:
            with pytest.raises(CheckpointError, match="made with other files"):
                run._check_features()
        else:
            run._check_features()


def test_texts_are_refused(encoder):
    with pytest.raises(OptionError, match="takes images of"):
        features.catalog.build("image-encoder", (80,), {"encoder": str(encoder)}, {})
