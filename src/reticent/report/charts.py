"""Charts as SVG inside a page: colours from the page's palette, names for those who cannot see.

matplotlib draws with stand-in colours, which are replaced by the page's custom properties. What it
writes besides (ids, a style sheet of its own, fonts) would reach beyond the chart and is taken out.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reticent.figures import render_figure
from reticent.report.markup import Child, Markup, clean, el, escape, table

NAMES = ("ink", "soft", "rule", "c1", "c2", "c3", "c4", "c5", "c6", "c7", "card")
# stand-ins: matplotlib leaves black out, and would merge equal colours
COLOUR = {name: f"#01{place:02x}fe" for place, name in enumerate(NAMES)}
SERIES = tuple(COLOUR[name] for name in NAMES if re.fullmatch(r"c\d", name))
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))
SIZE = (4.2, 2.7)  # inches; letters stay readable on a phone

_STYLE: dict[str, Any] = {
    "font.size": 9.5,
    "text.color": COLOUR["ink"],
    "text.parse_math": False,  # a class may be called $x$
    "axes.labelcolor": COLOUR["soft"],
    "axes.edgecolor": COLOUR["rule"],
    "axes.linewidth": 0.8,
    "axes.labelsize": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.left": False,
    "grid.color": COLOUR["rule"],
    "grid.linewidth": 0.7,
    "xtick.color": COLOUR["rule"],
    "ytick.color": COLOUR["rule"],
    "xtick.labelcolor": COLOUR["soft"],
    "ytick.labelcolor": COLOUR["soft"],
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "lines.linewidth": 1.8,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "savefig.transparent": True,
}


@dataclass(frozen=True)
class Chart:
    """A picture with the numbers it shows.

    Attributes:
        key: Of all charts of a page different; its ids begin with it.
        title: What is seen, in a line.
        note: How to read it.
        label: What a screen reader says in the picture's place.
        draw: Draws into an empty figure.
        head: Columns of the table of its numbers.
        rows: Its numbers.
        size: Width and height in inches.
    """

    key: str
    title: str
    note: str
    label: str
    draw: Callable[[Any], None]
    head: Sequence[Child]
    rows: Sequence[Sequence[Child]]
    size: tuple[float, float] = SIZE

    def figure(self) -> Markup:
        """The chart as a figure of the page, its numbers behind a fold."""
        return el(
            "figure",
            el("figcaption", self.title),
            el("p", self.note) if self.note else None,
            svg(self.draw, key=self.key, label=self.label, size=self.size),
            el(
                "details",
                el("summary", "The numbers of this chart"),
                table(self.head, self.rows, self.title),
            ),
        )


def svg(
    draw: Callable[[Any], None], *, key: str, label: str, size: tuple[float, float] = SIZE
) -> Markup:
    """A figure as an SVG element for a page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that matplotlib's font lacks
        drawn = render_figure(draw, size=size, style=_STYLE).decode("utf-8")
    body = drawn[drawn.index("<svg") :]
    head, body = body.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)
    assert box is not None
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<style[^>]*>.*?</style>", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', body))
    body = re.sub(r' id="([^"]*)"', lambda m: f' id="{key}-{m[1]}"' if m[1] in used else "", body)
    body = re.sub(r'(url\(#|href="#)([\w-]+)', rf"\g<1>{key}-\2", body)
    for name, colour in COLOUR.items():
        body = body.replace(colour, f"var(--{name})")
    body = re.sub(r"(font: [^;\"]*?\d(?:px|pt)) [^;\"]*", r"\1 var(--sans)", body)
    body = re.sub(r"font-family: [^;\"]*", "font-family: var(--sans)", body)
    body = re.sub(r"\n\s*", "\n", body).strip()
    return Markup(f'<svg class="chart" role="img" aria-label="{escape(label)}" {box[0]}>{body}')


def short(name: object, most: int = 12) -> str:
    """A name that fits beside an axis."""
    text = " ".join(clean(name).split())
    return text if len(text) <= most else text[: most - 1] + "…"


def percent(value: float, _: Any = None) -> str:
    """A share as an axis writes it."""
    return f"{value * 100:.3g} %"


def share(value: float, digits: int = 1) -> str:
    """A share as a table writes it.

    >>> share(0.12345)
    '12.3 %'
    """
    return f"{100 * value:.{digits}f} %"
