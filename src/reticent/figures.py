"""Figures as SVG or PNG files, the same bytes each time.

matplotlib takes a while to import: it is imported when a figure is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from reticent.errors import OptionError
from reticent.files import check_folder, write_atomically

FORMATS = (".svg", ".png")
# told apart by people with any kind of colour vision (Okabe and Ito 2008)
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")

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


def save_figure(
    path: str | Path, draw: Callable[[Any], None], *, size: tuple[float, float], mode: int = 0o644
) -> None:
    """Make a figure of this size in inches, have it drawn, and write it.

    Args:
        path: Where to; ends in .svg or .png.
        draw: Called with the empty `matplotlib.figure.Figure`.
        size: Width and height in inches.
        mode: Who may read the file.
    """
    path = check_plot(path)
    write_atomically(path, render_figure(draw, size=size, suffix=path.suffix.lower()), mode=mode)


def render_figure(
    draw: Callable[[Any], None],
    *,
    size: tuple[float, float],
    suffix: str = ".svg",
    style: dict[str, Any] | None = None,
) -> bytes:
    """A figure of this size in inches as the bytes of a file.

    Args:
        draw: Called with the empty `matplotlib.figure.Figure`.
        size: Width and height in inches.
        suffix: .svg or .png.
        style: matplotlib's settings, on top of those that all figures share.
    """
    matplotlib = _matplotlib()
    drawn = io.BytesIO()
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own settings are
        matplotlib.rcParams.update({**_STYLE, **(style or {})})
        from matplotlib.figure import Figure

        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        figure.savefig(drawn, format=suffix[1:], dpi=150, metadata=_METADATA[suffix])
    return drawn.getvalue()


def _matplotlib(path: Path | None = None) -> Any:
    try:
        import matplotlib
    except ImportError:
        raise OptionError(
            "plot",
            None if path is None else str(path),
            "needs matplotlib: pip install reticent[plots]",
        ) from None
    return matplotlib
