"""The frame of every page: head, title, links to its sections; no script, no network."""

from __future__ import annotations

from collections.abc import Mapping

from reticent.report.markup import Child, Markup, el
from reticent.report.style import sheet

# no page of ours loads anything; a browser that is told so will not, whatever is in it
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"


def document(
    body: Markup,
    *,
    title: str,
    over: str,
    heading: str,
    subject: str,
    sections: Mapping[str, str],
    footer: str,
    private: bool = False,
) -> str:
    """A whole page.

    Args:
        body: Its sections.
        title: For the browser's tab.
        over: A few words above the heading.
        heading: What the page is about.
        subject: A line below it.
        sections: What links to sections say, by key; those that are not in the body are left out.
        footer: The last line.
        private: Ask search engines to leave it alone.
    """
    links: list[Child] = [
        el("li", el("a", name, href=f"#{key}"))
        for key, name in sections.items()
        if f'<section id="{key}"' in body
    ]
    return "<!DOCTYPE html>\n" + el(
        "html",
        el(
            "head",
            el("meta", charset="utf-8"),
            el("title", title),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            el("meta", name="color-scheme", content="light dark"),
            el("meta", name="robots", content="noindex") if private else None,
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
            Markup(f"<style>{sheet()}</style>"),
        ),
        el(
            "body",
            el(
                "header",
                el("p", over, class_="over"),
                el("h1", heading),
                el("p", subject, class_="soft") if subject else None,
                el("nav", el("ul", links), aria_label="Sections") if len(links) > 2 else None,
            ),
            el("main", body),
            el("footer", el("p", footer)),
        ),
        lang="en",
    )
