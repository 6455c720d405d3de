"""The report as one page: no script, no network, nothing that is not in it."""

from __future__ import annotations

from reticent.audit.books import check_books
from reticent.errors import CheckpointError, OptionError
from reticent.report import private_sections, sections
from reticent.report.document import document
from reticent.report.folder import RunFolder
from reticent.report.markup import Markup, clean, el, joined
from reticent.training.result import RUN_FILE


def render(folder: RunFolder, *, private: bool = False) -> str:
    """The page of a run.

    Args:
        folder: What `read_folder` found.
        private: Show the audit and private diagnostics, with a warning.
    """
    if folder.run is None:
        return _page(folder, [_unfinished(folder), sections.configuration(folder)], private=False)
    try:
        books = check_books(folder.run)
        parts = [
            sections.guaranteed(folder, books),
            sections.limits(folder),
            sections.ledger(folder, books),
            sections.results(folder),
            private_sections.audit(folder) if private else sections.audit_hidden(folder),
            private_sections.diagnostics(folder) if private else None,
            sections.model_card(folder),
            sections.configuration(folder),
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        if isinstance(error, OptionError) and error.option == "plot":
            raise  # matplotlib is missing
        files = "run.json, audit.json or the diagnostics are" if private else f"{RUN_FILE} is"
        raise CheckpointError(
            f"run {folder.name!r}: {files} damaged, or of another version "
            f"({type(error).__name__}: {error})"
        ) from error
    return _page(folder, [part for part in parts if part is not None], private=private)


def _unfinished(folder: RunFolder) -> Markup:
    return sections.section(
        "guarantee",
        "Not finished",
        el(
            "div",
            el(
                "p",
                "This run was begun and has no result yet: nothing is guaranteed about it, and "
                "there is no model to speak of.",
                class_="lead",
            ),
            el(
                "p",
                "Go on with it: ",
                el("code", f"reticent train --resume {folder.name}"),
                " (with the path of its folder).",
            ),
            el(
                "p",
                "What it has released so far is spent all the same. If it is given up, count its "
                "whole budget.",
            ),
            class_="card",
        ),
        first=True,
    )


_TITLES = {
    "guarantee": "Guarantee",
    "limits": "Limits",
    "ledger": "Ledger",
    "results": "Results",
    "audit": "Audit",
    "diagnostics": "Diagnostics",
    "card": "Model card",
    "again": "Doing it again",
}


def _page(folder: RunFolder, parts: list[Markup], *, private: bool) -> str:
    settings = folder.settings
    method = ((folder.run or {}).get("method") or {}).get("name") or settings.get("method")
    subject = " on ".join(clean(word) for word in (method, folder.data) if word is not None)
    return document(
        joined([private_sections.warning() if private else None, *parts]),
        title=f"Privacy report: {clean(folder.name)}",
        over="Private privacy report" if private else "Privacy report",
        heading=folder.name,
        subject=subject,
        sections=_TITLES,
        footer="Made by Reticent from the run’s own files; it loads nothing.",
        private=private,
    )
