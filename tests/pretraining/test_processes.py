"""Random processes: the same by seed, within [0, 1], and of the shapes they promise."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator, Tensor

from reticent.pretraining import contrastive
from reticent.pretraining.contrastive import draw_images
from reticent.pretraining.figures import figures, strokes
from reticent.pretraining.shapes import blurred, dead_leaves, fractals, grid, leaf, surface
from reticent.pretraining.textures import coloured_noise, random_networks

SIDE, COUNT = 16, 12


def coins(seed: int = 0) -> Generator:
    return Generator().manual_seed(seed)


def textures() -> Tensor:
    return coloured_noise(20, SIDE, coins(9))


PROCESSES: dict[str, Callable[[Generator], Tensor]] = {
    "coloured_noise": lambda c: coloured_noise(COUNT, SIDE, c),
    "random_networks": lambda c: random_networks(COUNT, SIDE, c),
    "dead_leaves": lambda c: dead_leaves(textures(), COUNT, c, leaves=8),
    "fractals": lambda c: fractals(textures(), COUNT, c, points=50),
    "strokes": lambda c: strokes(COUNT, SIDE, c),
    "figures": lambda c: figures(textures(), COUNT, c),
    "surface": lambda c: surface(textures(), COUNT, c),
    "blurred": lambda c: blurred(coloured_noise(COUNT, SIDE, c), c),
}


@pytest.mark.parametrize("name", PROCESSES)
def test_images_follow_from_the_seed_and_differ_from_one_another(name: str) -> None:
    images = PROCESSES[name](coins())
    assert images.shape == (COUNT, 3, SIDE, SIDE)
    assert images.dtype == torch.float32
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    torch.manual_seed(5)  # other randomness has no say
    assert torch.equal(PROCESSES[name](coins()), images)
    assert not torch.equal(PROCESSES[name](coins(1)), images)
    flat = images.flatten(1)
    if name != "surface":  # which draws from a small bank
        apart = torch.cdist(flat, flat) + torch.eye(COUNT)
        assert float(apart.min()) > 1e-3
    assert float(flat.std(1).max()) > 0.05  # and show something


def test_sides_need_not_be_powers_of_two() -> None:
    for side in (4, 7, 24):
        assert coloured_noise(2, side, coins()).shape == (2, 3, side, side)
        assert random_networks(2, side, coins()).shape == (2, 3, side, side)


def test_radii_of_leaves_follow_a_power_law(monkeypatch: pytest.MonkeyPatch) -> None:
    # An untilted, unlobed ellipse of equal axes has the mask |p - c| < r: its radius can be read
    # off. Everything that is drawn after the radius is set by hand.
    count, least, most = 8_000, 0.05, 0.6
    drawn = torch.rand(count, 1, 1, generator=coins())
    answers = iter([drawn])

    def uniform(shape: tuple[int, ...], low: float, high: float, coins: Generator) -> Tensor:
        first = next(answers, None)
        if first is not None:
            return first
        return torch.full(shape, high if (low, high) == (0.35, 1.0) else low)

    monkeypatch.setattr("reticent.pretraining.shapes.uniform", uniform)
    monkeypatch.setattr(torch, "randint", lambda *told, **how: torch.ones(told[-1], dtype=int))
    line = torch.linspace(0, 1, 8001)[None, None]
    radii = []  # centres are at the corner: masks reach along the line as far as the radius
    for part in drawn.split(500):
        answers = iter([part])
        mask, _ = leaf(
            line,
            torch.zeros_like(line),
            len(part),
            torch.full((len(part), 1, 1), least),
            coins(),
            low=0.0,
        )
        radii.append(mask.sum(-1).flatten() / 8000)
    found = torch.cat(radii).numpy()
    assert found.min() >= least - 1e-3
    assert found.max() <= most + 1e-3

    def distribution(r: np.ndarray) -> np.ndarray:  # of the density r^-3 on [least, most]
        inside = np.clip(r, least, most)
        return (least**-2 - inside**-2) / (least**-2 - most**-2)

    # Kolmogorov-Smirnov at a level of 1e-7; the grid adds at most 40/m² · 1/8000 to the distance
    test = stats.kstest(found, distribution)
    assert test.pvalue > 1e-7
    assert test.statistic < 0.03


def test_leaves_cover_what_lies_behind_and_the_ground_shows_through() -> None:
    ground = torch.full((1, 3, SIDE, SIDE), 0.5)
    none = dead_leaves(ground, 3, coins(), leaves=0)
    assert torch.equal(none, ground.expand(3, -1, -1, -1))
    few = dead_leaves(ground, 200, coins(), leaves=1)
    many = dead_leaves(ground, 200, coins(), leaves=30)
    bare = [float((images == 0.5).all(1).float().mean()) for images in (few, many)]
    assert 0.5 < bare[0] < 1
    assert bare[1] < bare[0] - 0.2
    in_front = (few != 0.5).any(1, keepdim=True).expand_as(few)  # the first leaf is the same
    assert torch.equal(many[in_front], few[in_front])


def test_maps_of_fractals_are_contractions(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    gather = torch.gather

    def watching(values: Tensor, dim: int, index: Tensor) -> Tensor:
        if values.dim() == 4:
            seen.append(values)
        return gather(values, dim, index)

    monkeypatch.setattr(torch, "gather", watching)
    fractals(textures(), 50, coins(), points=4)
    singular = torch.linalg.svdvals(seen[0])
    assert float(singular.max()) < 0.95 + 1e-5
    assert float(singular[..., 0].min()) > 0.4 - 1e-5
    ratio = singular[..., 1] / singular[..., 0]
    assert float(ratio.min()) > 0.2 - 1e-4
    assert (torch.linalg.det(seen[0]) < 0).any()  # mirrored ones among them


def test_noise_falls_with_the_frequency() -> None:
    # before it is squashed, in (|fx|^a + |fy|^b + 0.3)^-c; squashing is monotone, and the mean
    # spectrum still falls
    images = coloured_noise(200, 32, coins()).mean(1)
    power = torch.fft.rfft2(images - images.mean((1, 2), keepdim=True)).abs().square().mean(0)
    rings = [float(power[k, k]) for k in (1, 2, 4, 8, 15)]
    assert rings == sorted(rings, reverse=True)
    assert rings[0] > 20 * rings[-1]


def test_strokes_are_white_on_black_and_figures_in_the_middle() -> None:
    ink = strokes(100, 32, coins())
    assert torch.equal(ink[:, 0], ink[:, 1])
    assert torch.equal(ink[:, 0], ink[:, 2])
    border = torch.ones(32, 32, dtype=torch.bool)
    border[2:-2, 2:-2] = False
    assert not ink[..., border].any()
    shares = (ink[:, 0] > 0.5).float().mean((1, 2))
    assert float(shares.min()) > 0.005
    assert float(shares.max()) < 0.6
    more = strokes(100, 32, coins(), most=1)
    assert float(more.mean()) < float(ink.mean())
    things = figures(coloured_noise(10, 32, coins(1)), 100, coins())
    filled = (things > 0).all(1).float().mean(0)  # how often each place is part of the thing
    assert float(filled[16, 16]) > 0.5
    assert float(filled[0].max()) < 0.3
    shown = things[(things > 0).all(1)[:, None].expand_as(things)]
    assert float(shown.min()) >= 0.05 - 1e-6


def test_blurring_keeps_flat_images_and_smooths_others() -> None:
    flat = torch.full((4, 3, 6, 6), 0.3)
    torch.testing.assert_close(blurred(flat, coins()), flat)
    spot = torch.zeros(50, 3, 7, 7)
    spot[:, :, 3, 3] = 1
    soft = blurred(spot, coins())
    torch.testing.assert_close(soft.sum((2, 3)), torch.ones(50, 3))
    # amount a leaves 1 - 3a/4 in the middle and a/16 in a corner
    amount = soft[:, 0, 2, 2] * 16
    torch.testing.assert_close(soft[:, 0, 3, 3], 1 - 0.75 * amount)
    assert float(amount.std()) > 0.2


def test_grid_and_surfaces() -> None:
    y, x = grid(4, torch.device("cpu"))
    assert x[0, 0].tolist() == [0.125, 0.375, 0.625, 0.875]
    assert torch.equal(y[0], x[0].T)
    one = torch.arange(9.0).reshape(1, 1, 3, 3).expand(1, 3, 3, 3) / 9
    taken = surface(one, 40, coins())
    for image in taken:  # the same numbers, elsewhere
        assert torch.equal(image[0].flatten().sort().values, one[0, 0].flatten())
    assert len(taken.flatten(1).unique(dim=0)) == 2  # one shift for all, and its transpose


def test_a_bank_holds_all_processes_shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive, "_PIECE", 32)
    told: list[tuple[int, int]] = []
    bank = draw_images(50, 8, coins(), progress=lambda *done: told.append(done))
    assert told == [(32, 50), (50, 50)]
    assert bank.dtype == torch.uint8
    assert bank.shape == (50, 3, 8, 8)
    assert torch.equal(draw_images(50, 8, coins()), bank)
    assert torch.equal(draw_images(32, 8, coins()), bank[:32])
    assert len(bank.flatten(1).unique(dim=0)) == 50
    assert math.isclose(sum(share for _, share in contrastive._SHARES), 1)
