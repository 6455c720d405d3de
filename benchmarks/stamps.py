"""Figures that say which numbers they were drawn from.

Another version of matplotlib draws the same numbers with other bytes. So a file holds a digest of
the numbers, and whether it is of today's is asked of that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reticent.figures import render_figure
from reticent.files import write_atomically

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
Panel = Callable[[Any], None]


def digest(numbers: Any) -> str:
    return hashlib.sha256(json.dumps(numbers, sort_keys=True).encode()).hexdigest()[:16]


def stamped(svg: str, numbers: Any, extra: str = "") -> bytes:
    """An SVG with the digest of its numbers."""
    before, tag, after = svg.partition("<defs>")
    assert tag
    return f"{before}<desc>{digest(numbers)}</desc>\n {extra}{tag}{after}".encode()


def is_of(path: Path, numbers: Any) -> bool:
    """Whether a file was drawn from these numbers."""
    return f"<desc>{digest(numbers)}</desc>" in path.read_text(encoding="utf-8")


def plotted(figure: Any) -> list[Any]:
    """What a figure shows: lines and areas with their numbers, and texts.

    Without what may differ between versions of matplotlib: names that it gives itself, and in
    which order it goes around an area.
    """

    def rounded(places: Any) -> list[str]:
        return [" ".join(f"{value:.9g}" for value in place) for place in places]

    found: list[Any] = []
    for axes in figure.axes:
        found.append([axes.get_title(), axes.get_xlabel(), axes.get_ylabel()])
        for line in axes.lines:
            label = str(line.get_label())
            found.append(["" if label.startswith("_") else label, rounded(line.get_xydata())])
        for area in axes.collections:
            corners = [rounded(path.vertices) for path in area.get_paths()]
            found.append(sorted({corner for one in corners for corner in one}))
        found += [[one.get_text(), rounded([one.get_position()])] for one in axes.texts]
    return found


@dataclass(frozen=True)
class Drawing:
    """A figure of the documents: how to draw it, and how large."""

    name: str
    panel: Panel
    size: tuple[float, float]
    style: dict[str, Any] | None = None

    def save(self, folder: Path = FIGURES) -> None:
        """Draw it, with the digest of what it shows."""
        shown: list[Any] = []

        def panel(figure: Any) -> None:
            self.panel(figure)
            shown.extend(plotted(figure))

        svg = render_figure(panel, size=self.size, style=self.style).decode()
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{self.name}.svg", stamped(svg, shown))

    def stale(self, folder: Path = FIGURES) -> bool:
        """Whether the file is not of the numbers of today; nothing is rendered."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=self.size)
        self.panel(figure)
        path = folder / f"{self.name}.svg"
        return not path.exists() or not is_of(path, plotted(figure))
