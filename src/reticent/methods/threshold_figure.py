"""DPSUR's Figure 6: acceptance probabilities and their difference against β.

Needs matplotlib, which nothing else does; it is imported when a figure is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from reticent.errors import OptionError
from reticent.files import check_folder, write_atomically
from reticent.methods.threshold import BETA_OF_LARGEST_DIFFERENCE, thresholds

FORMATS = (".svg", ".png")
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
BETAS = np.linspace(-3.5, 3.5, 71)

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",  # text as text
    "svg.hashsalt": "reticent",  # the same file each time
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_METADATA = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
}


def check_plot(path: str | Path) -> Path:
    """Refuse a file that cannot be drawn or written, before anything is."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise OptionError("plot", str(path), f"must end in {' or '.join(FORMATS)}")
    if path.is_dir():
        raise OptionError("plot", str(path), "is a folder; name a file")
    check_folder("plot", path.parent)
    _matplotlib(path)
    return path


def draw(path: str | Path, valid_noises: Sequence[float], beta: float | None = None) -> None:
    """Write the figure for each σ_v of `valid_noises`, as SVG or PNG by the file's name.

    Args:
        path: Where to; ends in .svg or .png.
        valid_noises: One colour each.
        beta: A threshold to mark.
    """
    path = check_plot(path)
    matplotlib = _matplotlib(path)
    drawn = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own settings are
        matplotlib.rcParams.update(_STYLE)
        suffix = path.suffix.lower()
        figure = _figure(valid_noises, beta)
        figure.savefig(drawn, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
    write_atomically(path, drawn.getvalue())


def _figure(valid_noises: Sequence[float], beta: float | None) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0), layout="constrained")
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
    return figure


def _matplotlib(path: Path) -> Any:
    try:
        import matplotlib
    except ImportError:
        raise OptionError(
            "plot", str(path), "needs matplotlib: pip install reticent[plots]"
        ) from None
    return matplotlib
