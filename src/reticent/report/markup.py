"""HTML in which nothing but what this library wrote is ever markup.

Every piece of text is escaped where it enters an element. Data sets, classes and notes have names
that others chose.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Union

VOID = ("br", "hr", "img", "meta", "link", "col")
# what HTML does not allow, even escaped; lone surrogates cannot be written as UTF-8
_FORBIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = Union[str, int, float, None, Iterable["Child"]]  # noqa: UP007 (a name within itself)


def clean(text: object) -> str:
    r"""Text without characters that no page may hold.

    >>> clean("a\x00b")
    'a\ufffdb'
    """
    return _FORBIDDEN.sub("\ufffd", str(text))


def escape(text: object) -> Markup:
    """Text as HTML.

    >>> str(escape('<b title="x">'))
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return Markup(html.escape(clean(text), quote=True))


def joined(children: Iterable[Child]) -> Markup:
    """Children one after the other: text escaped, elements as they are, None left out."""
    parts: list[str] = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Markup):
            parts.append(child)
        elif isinstance(child, (str, int, float)):
            parts.append(escape(child))
        else:
            parts.append(joined(child))
    return Markup("".join(parts))


def el(tag: str, /, *children: Child, **attributes: str | int | bool | None) -> Markup:
    """One element; `class_` is class, `aria_label` is aria-label.

    >>> str(el("p", "1 < 2 ", el("b", "so"), class_="note"))
    '<p class="note">1 &lt; 2 <b>so</b></p>'
    """
    written = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        written += f" {attribute}" if value is True else f' {attribute}="{escape(value)}"'
    if tag in VOID:
        return Markup(f"<{tag}{written}>")
    return Markup(f"<{tag}{written}>{joined(children)}</{tag}>")


def table(
    head: Sequence[Child],
    rows: Iterable[Sequence[Child]],
    caption: Child,
    *,
    numbers: int = 1,
    wide: bool = False,
) -> Markup:
    """A table that scrolls by itself on a narrow screen.

    Args:
        head: Names of the columns.
        rows: Cells; the first of each row names it.
        caption: What the table shows.
        numbers: Columns from this one on hold numbers, which stand at the right.
        wide: Scroll rather than squeeze the columns.
    """

    def kind(column: int) -> str | None:
        return "n" if column >= numbers else None

    header = el("tr", [el("th", one, scope="col", class_=kind(c)) for c, one in enumerate(head)])
    body = [
        el(
            "tr",
            el("th", row[0], scope="row"),
            [el("td", cell, class_=kind(c)) for c, cell in enumerate(row[1:], 1)],
        )
        for row in rows
    ]
    return el(
        "div",
        el("table", el("caption", caption), el("thead", header), el("tbody", body)),
        class_="scroll wide" if wide else "scroll",
        tabindex=0,
        role="region",
        aria_label=clean(caption) if isinstance(caption, str) else "table",
    )


def facts(pairs: Iterable[tuple[Child, Child]]) -> Markup:
    """Names and values, as a list of descriptions; pairs without a value are left out."""
    return el(
        "dl",
        [
            el("div", el("dt", name), el("dd", value))
            for name, value in pairs
            if value is not None and value != ""
        ],
        class_="facts",
    )
