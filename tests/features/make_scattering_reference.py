"""Writes `scattering_reference.npz`: images and what Kymatio makes of them. Run by hand.

    python tests/features/make_scattering_reference.py

in an environment of its own with PyTorch, kymatio 0.3 and scipy < 1.15, which still has what
kymatio imports. Reticent is not needed there, and kymatio not for the tests.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from kymatio.torch import Scattering2D

# name: (images, channels, height, width), J, L, highest order
CASES = {
    "grey": ((3, 1, 28, 28), 2, 8, 2),
    "colour": ((2, 3, 32, 32), 2, 8, 2),
    "three_scales": ((2, 1, 24, 40), 3, 4, 2),
    "odd_sides": ((2, 2, 19, 14), 2, 5, 2),
    "smallest": ((2, 1, 8, 9), 3, 2, 2),
    "one_scale": ((2, 1, 8, 8), 1, 8, 2),
    "first_order": ((2, 1, 16, 12), 2, 3, 1),
}


def images(shape: tuple[int, ...], generator: np.random.RandomState) -> np.ndarray:
    """Noise, and a bright square on an uneven ground, in steps of 1/256."""
    made = generator.randint(0, 256, shape)
    height, width = shape[2:]
    slope = np.arange(height)[:, None] * 3 + np.arange(width) * 2
    made[1:] = slope % 97 + made[1:] // 8
    made[1:, :, height // 3 : height // 2, width // 4 : width // 2] += 100
    return (made / 256).astype(np.float32)


def main() -> None:
    generator = np.random.RandomState(0)
    arrays: dict[str, np.ndarray] = {}
    for name, (shape, scales, angles, order) in CASES.items():
        x = images(shape, generator)
        transform = Scattering2D(J=scales, shape=shape[2:], L=angles, max_order=order)
        arrays[f"{name}_images"] = x
        arrays[f"{name}_options"] = np.array([scales, angles, order])
        arrays[f"{name}_features"] = transform(torch.from_numpy(x)).flatten(1, 2).numpy()
    np.savez_compressed(Path(__file__).parent / "scattering_reference.npz", **arrays)


if __name__ == "__main__":
    main()
