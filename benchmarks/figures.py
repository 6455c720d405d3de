"""Draw `docs/figures`; needs `pip install reticent[plots]`."""

from __future__ import annotations

from pathlib import Path

from reticent.methods.threshold_figure import draw

FIGURES = Path(__file__).parent.parent / "docs" / "figures"


def threshold(folder: Path = FIGURES) -> None:
    # the σ_v of DPSUR's Figure 6, and the β the paper uses
    draw(folder / "threshold.svg", (0.8, 1.0, 1.3), beta=-1)


if __name__ == "__main__":
    threshold()
