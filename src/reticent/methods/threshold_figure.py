"""DPSUR's Figure 6: acceptance probabilities and their difference against β."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reticent.figures import COLOURS, save_figure
from reticent.methods.threshold import BETA_OF_LARGEST_DIFFERENCE, thresholds

BETAS = np.linspace(-3.5, 3.5, 71)


def draw(path: str | Path, valid_noises: Sequence[float], beta: float | None = None) -> None:
    """Write the figure for each σ_v of `valid_noises`, as SVG or PNG by the file's name.

    Args:
        path: Where to; ends in .svg or .png.
        valid_noises: One colour each.
        beta: A threshold to mark.
    """

    def panels(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for place, noise in enumerate(valid_noises):
            rows = thresholds(BETAS.tolist(), noise)
            colour, name = COLOURS[place % len(COLOURS)], f"σ_v = {noise:g}"
            left.plot(BETAS, [row.good for row in rows], color=colour, label=f"good, {name}")
            left.plot(BETAS, [row.bad for row in rows], "--", color=colour, label=f"bad, {name}")
            right.plot(BETAS, [row.difference for row in rows], color=colour, label=name)
        left.set_ylabel("probability of acceptance")
        right.set_ylabel("good less bad")
        right.axvline(BETA_OF_LARGEST_DIFFERENCE, color="0.6", linewidth=0.8, linestyle=":")
        for axes in (left, right):
            axes.set_xlabel("threshold β")
            axes.set_ylim(bottom=0)
            if beta is not None:
                axes.axvline(beta, color="0.2", linewidth=0.8, linestyle="-.")
            axes.legend(frameon=False, fontsize=7)

    save_figure(path, panels, size=(7.2, 3.0))
