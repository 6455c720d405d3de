"""PD-SGD's Figure 1: how far an update may lie from another batch and still be plausible."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from reticent.figures import COLOURS, save_figure
from reticent.methods.deniability import PROBABILITIES, smallest_distance

FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of σ, one line each


def draw(path: str | Path, sigma: float, gamma: float, dimension: int | None = None) -> None:
    """Write √(d*/k) against γ for several σ, as SVG or PNG by the file's name.

    Args:
        path: Where to; ends in .svg or .png.
        sigma: The middle one of the noise scales.
        gamma: Where to put the mark, in the middle of the axis.
        dimension: k; without it, √d*.
    """
    gammas = np.geomspace(gamma / 10, gamma * 10, 41).tolist()

    def reach(probability: float, noise: float, width: float) -> float:
        return math.sqrt(smallest_distance(probability, noise, width) / (dimension or 1))

    def panels(figure: Any) -> None:
        for axes, probability in zip(figure.subplots(1, 2), PROBABILITIES, strict=True):
            for colour, factor in zip(COLOURS, FACTORS, strict=False):
                noise = factor * sigma
                reached = [reach(probability, noise, width) for width in gammas]
                axes.plot(gammas, reached, color=colour, label=f"σ = {noise:g}")
            axes.plot([gamma], [reach(probability, sigma, gamma)], "o", color="0.2", markersize=4)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.set_xlabel("γ")
            axes.set_ylabel("√d*" if dimension is None else f"√(d*/k), k = {dimension}")
            axes.set_title(f"q(d*) = {probability:g}", fontsize=9)
            axes.legend(frameon=False, fontsize=7)

    save_figure(path, panels, size=(7.2, 3.0))
