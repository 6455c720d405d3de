"""The transform against Kymatio's numbers and against what the mathematics promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reticent.errors import DataError, OptionError
from reticent.features import Scattering, scattering
from reticent.features.wavelets import low_pass, morlet

REFERENCE = np.load(Path(__file__).parent / "scattering_reference.npz")
CASES = sorted({name.rsplit("_", 1)[0] for name in REFERENCE.files})


def reference(name: str) -> tuple[Tensor, dict[str, int], Tensor]:
    images, options, features = (
        REFERENCE[f"{name}_{part}"] for part in ("images", "options", "features")
    )
    named = dict(zip(("scales", "angles", "order"), map(int, options), strict=True))
    return torch.from_numpy(images), named, torch.from_numpy(features)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kymatios_numbers(name: str, dtype: torch.dtype) -> None:
    images, options, expected = reference(name)
    size = (images.shape[2], images.shape[3])
    transform = Scattering(size, **options, dtype=dtype)
    features = transform(images)
    assert features.dtype == dtype
    torch.testing.assert_close(features, expected.to(dtype), rtol=0, atol=1e-5)
    assert features.shape[1:] == (images.shape[1] * transform.channels, *transform.shape)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_kymatios_numbers_on_cuda(name: str) -> None:
    images, options, expected = reference(name)
    transform = Scattering((images.shape[2], images.shape[3]), **options).cuda()
    torch.testing.assert_close(transform(images.cuda()).cpu(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("scales", "angles", "order", "channels"),
    [(1, 8, 2, 9), (2, 8, 2, 81), (2, 8, 1, 17), (3, 4, 2, 61), (3, 8, 2, 217)],
)
def test_number_of_coefficients(scales: int, angles: int, order: int, channels: int) -> None:
    transform = Scattering((17, 12), scales=scales, angles=angles, order=order)
    assert transform.channels == channels
    assert transform.shape == (17 >> scales, 12 >> scales)
    assert transform(noise(2, 1, 17, 12)).shape == (2, channels, *transform.shape)


@pytest.mark.parametrize(("scales", "angles"), [(2, 8), (3, 4)])
def test_wavelets_have_no_mean_and_together_at_most_unit_gain(scales: int, angles: int) -> None:
    size = (40, 32)
    gain = (low_pass(40, scales)[:, None] * low_pass(32, scales)).square()
    assert gain[0, 0] == pytest.approx(1, abs=1e-4)
    for scale in range(scales):
        for angle in range(angles):
            psi = morlet(size, scale, angle, angles)
            assert abs(psi[0, 0]) < 1e-12
            opposite = torch.roll(psi.flip(0, 1), (1, 1), (0, 1))
            gain += (psi.square() + opposite.square()) / 2
    assert gain.max() < 1.001  # Littlewood-Paley: the transform expands nothing
    assert gain.min() > 0.1


def test_energy_does_not_grow() -> None:
    transform = Scattering((28, 28))
    one, other = noise(4, 1, 28, 28), noise(4, 1, 28, 28, seed=1)
    padded = torch.nn.functional.pad(one - other, (4, 4, 4, 4), mode="reflect")
    apart = (transform(one) - transform(other)).square().sum((1, 2, 3)) * 16  # one of 4x4 is kept
    assert (apart <= padded.square().sum((1, 2, 3))).all()


def test_a_flat_image_has_only_a_mean() -> None:
    features = Scattering((28, 28))(torch.full((1, 1, 28, 28), 0.7))
    torch.testing.assert_close(features[:, 0], torch.full((1, 7, 7), 0.7), rtol=1e-4, atol=0)
    assert features[:, 1:].abs().max() < 1e-6


def test_order_zero_is_linear_and_the_rest_takes_moduli() -> None:
    transform = Scattering((16, 20), dtype=torch.float64)
    x, y = noise(3, 1, 16, 20), noise(3, 1, 16, 20, seed=1)
    of_x, of_y = transform(x), transform(y)
    assert_close = torch.testing.assert_close
    assert_close(transform(x + y)[:, 0], of_x[:, 0] + of_y[:, 0], rtol=1e-6, atol=1e-7)
    assert_close(transform(2.5 * x), 2.5 * of_x, rtol=1e-6, atol=1e-7)
    assert_close(transform(-x)[:, 0], -of_x[:, 0])
    assert_close(transform(-x)[:, 1:], of_x[:, 1:])
    assert (of_x[:, 1:] > -1e-9).all()


def test_a_shift_by_a_cell_shifts_the_features() -> None:
    x = torch.zeros(1, 1, 48, 48)
    x[..., 20:25, 18:26] = noise(5, 8)
    transform = Scattering((48, 48))
    here, there = transform(x), transform(torch.roll(x, (4, 8), (2, 3)))
    torch.testing.assert_close(here[..., :-1, :-2], there[..., 1:, 2:], rtol=0, atol=1e-5)
    nudged = torch.roll(x, 1, 3)
    moved = (transform(nudged) - here).norm() / here.norm()
    assert moved < 0.5 * (nudged - x).norm() / x.norm()


def test_stripes_answer_to_the_wavelets_across_them() -> None:
    wave = torch.cos(0.75 * torch.pi * torch.arange(32.0))
    down, across = wave.view(1, 1, 32, 1), wave.view(1, 1, 1, 32)
    transform = Scattering((32, 32), order=1)
    for image, angle in ((down, 3), (across, 7)):
        energy = transform(image.expand(1, 1, 32, 32))[0, 1:].square().sum((1, 2)).view(2, 8)
        assert energy.argmax() == angle  # of the first scale
        assert energy[0, angle] > 10 * energy[0, (angle + 4) % 8]


def test_pieces_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    transform = Scattering((28, 28))
    images = noise(11, 1, 28, 28)
    whole = transform(images)
    monkeypatch.setitem(scattering._WORKING_SET, "cpu", 1)
    assert transform._piece() == 1
    torch.testing.assert_close(transform(images), whole, rtol=0, atol=1e-6)
    assert torch.equal(transform(images), transform(images))


def test_channels_are_transformed_one_by_one() -> None:
    transform = Scattering((12, 12))
    images = noise(2, 3, 12, 12)
    apart = torch.cat([transform(images[:, c : c + 1]) for c in range(3)], 1)
    torch.testing.assert_close(transform(images), apart, rtol=0, atol=1e-6)


def test_no_images_and_views_of_images() -> None:
    transform = Scattering((12, 12))
    assert transform(torch.zeros(0, 3, 12, 12)).shape == (0, 243, 3, 3)
    images = noise(4, 1, 12, 12)
    before = images.clone()
    strided = images.transpose(2, 3).contiguous().transpose(2, 3)
    torch.testing.assert_close(transform(strided[::2]), transform(images)[::2], rtol=0, atol=1e-6)
    assert torch.equal(images, before)
    assert not transform(images.requires_grad_()).requires_grad
    assert not list(transform.parameters())
    assert not transform.state_dict()


def test_a_broken_image_breaks_only_its_own_features() -> None:
    images = noise(3, 1, 12, 12)
    good = Scattering((12, 12))(images)
    images[1, 0, 5, 5] = float("nan")
    features = Scattering((12, 12))(images)
    assert features[1].isnan().all()
    torch.testing.assert_close(features[[0, 2]], good[[0, 2]], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"scales": 0}, "scales = 0: must be at least 1"),
        ({"scales": -1}, "scales = -1"),
        ({"scales": 1.5}, "scales = 1.5: must be a whole number"),
        ({"scales": 4}, "for images of 28x15 at most 3 work"),
        ({"scales": 10**9}, "at most 3 work"),
        ({"angles": 0}, "angles = 0"),
        ({"order": 0}, "order = 0"),
        ({"order": 3}, "order = 3: must be 1 or 2"),
        ({"size": (1, 28)}, "none work"),
    ],
)
def test_options_that_cannot_work(options: dict[str, Any], says: str) -> None:
    size = options.pop("size", (28, 15))
    with pytest.raises(OptionError) as caught:
        Scattering(size, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (torch.zeros(2, 28, 28), "shape (2, 28, 28)"),
        (torch.zeros(2, 1, 28, 27), "[n, channels, 28, 28]"),
        (torch.zeros(2, 1, 28, 28, dtype=torch.uint8), "must be floats"),
    ],
)
def test_images_that_cannot_be_transformed(images: Tensor, says: str) -> None:
    with pytest.raises(DataError) as caught:
        Scattering((28, 28))(images)
    assert says in str(caught.value)
