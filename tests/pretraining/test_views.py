"""Views of an image: shape, range and seed, and what each change does alone."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor

from reticent.pretraining import views
from reticent.pretraining.views import cropped, recoloured, view


def coins(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


@pytest.mark.parametrize("side", [8, 12, 20])
def test_views_keep_shape_and_range_and_follow_from_the_seed(side: int) -> None:
    images = torch.rand(9, 3, 12, 12)
    seen = view(images, side, coins())
    assert seen.shape == (9, 3, side, side)
    assert float(seen.min()) >= 0
    assert float(seen.max()) <= 1
    assert torch.equal(view(images, side, coins()), seen)
    assert not torch.equal(view(images, side, coins(1)), seen)


def test_a_whole_view_is_the_image_or_its_mirror_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views.math, "log", lambda ratio: 0.0)  # no other proportions
    images = torch.rand(40, 3, 8, 8)
    seen = cropped(images, 8, coins(), smallest=1.0)
    kept, mirrored = ((seen - one).abs().amax((1, 2, 3)) < 1e-4 for one in (images, images.flip(3)))
    assert bool((kept ^ mirrored).all())
    # a fair coin gives fewer than 4 or more than 36 of 40 with a probability below 1e-7
    assert 4 <= int(mirrored.sum()) <= 36


def test_parts_are_as_large_as_they_should_be() -> None:
    # an image whose values are its places: a crop's slope is its size
    line = torch.linspace(0, 1, 64)
    slopes = []
    for image in (line.expand(64, 64), line[:, None].expand(64, 64)):
        images = image.expand(200, 3, 64, 64)
        seen = cropped(images, 32, coins(), smallest=0.3)[:, 0]
        high, low = seen.amax((1, 2)), seen.amin((1, 2))
        slopes.append((high - low) * 32 / 31)
    area = slopes[0] * slopes[1]
    assert float(area.min()) > 0.27
    assert float(area.max()) < 1.1
    assert float(area.std()) > 0.1


def test_colours_change_image_by_image() -> None:
    grey = torch.rand(300, 1, 6, 6).expand(-1, 3, -1, -1)
    seen = recoloured(grey, coins())
    # grey stays grey: hue and saturation turn about the grey axis (YIQ's is rounded)
    assert float((seen - seen.mean(1, keepdim=True)).abs().max()) < 5e-3
    colours = torch.rand(300, 3, 6, 6) * 0.5 + 0.25
    seen = recoloured(colours, coins())
    spread = (seen - seen.mean(1, keepdim=True)).abs().amax((1, 2, 3))
    # a fifth is made grey; 300 coins stray from 60 to beyond 20 or 110 with p < 1e-7
    assert 20 <= int((spread < 2e-2).sum()) <= 110
    unchanged = (seen - colours).abs().amax((1, 2, 3)) < 1e-4
    # a fifth of the colours is left alone, of which 0.8 in colour and 0.7 not blurred: 34 of 300
    assert 5 <= int(unchanged.sum()) <= 80


def test_an_image_has_its_own_choices() -> None:
    images = torch.rand(1, 3, 8, 8).expand(30, -1, -1, -1)
    seen = view(images, 8, coins()).flatten(1)
    apart: Tensor = torch.cdist(seen, seen) + torch.eye(30)
    assert float(apart.min()) > 1e-3
