"""The sections of a private report: the audit, and what the run saw."""

from __future__ import annotations

from typing import Any

from reticent.report.folder import RunFolder
from reticent.report.markup import Child, Markup, el, facts, table
from reticent.report.private_drawings import bounds, norms, roc, trials
from reticent.report.sections import section
from reticent.report.words import number


def warning() -> Markup:
    """What every private report begins with."""
    return el(
        "div",
        el(
            "p",
            el("strong", "Private: do not pass this page on."),
            " It shows numbers that were computed from the training records without noise. ε does "
            "not cover them; they are as private as the records themselves.",
        ),
        class_="warn",
        role="note",
    )


def audit(folder: RunFolder) -> Markup:
    """What the audit found."""
    found = folder.audit
    if found is None:
        return section(
            "audit",
            "Audit",
            el("p", "No audit of this run is in its folder; ", el("code", "reticent audit"), "."),
        )
    statement = (folder.run or {})["statement"]
    wrong = [str(text) for text in found.get("wrong", ())]
    charts: list[Child] = []
    if found.get("canaries"):
        charts.append(bounds(found["canaries"]).figure())
    if found.get("membership"):
        drawn = roc(found["membership"], statement["epsilon"], float(statement["delta"]))
        charts.append(drawn.figure())
    return section(
        "audit",
        "Audit",
        el("p", el("span", "Something is wrong with this run’s statement.", class_="bad"))
        if wrong
        else el("p", el("span", "Nothing was found", class_="good"), " that speaks against it."),
        el("ul", [el("li", text) for text in wrong], class_="plain") if wrong else None,
        el("div", charts, class_="pair") if charts else None,
        _attacks_about(found.get("membership")),
        [_checks(found[name], title) for name, title in _CHECKED if found.get(name)],
        _replay(found["replay"]) if found.get("replay") else None,
    )


_CHECKED = (("conduct", "Conduct of releases that were watched"),)


def _attacks_about(membership: dict[str, Any] | None) -> Child:
    if not membership:
        return None
    notes = [f"Attacked: {membership['about']}.", *map(str, membership.get("notes", ()))]
    return el("p", " ".join(notes), class_="soft gap")


def _checks(part: dict[str, Any], title: str) -> Child:
    return [
        el("h3", title),
        table(
            ("check", "", "found"),
            [
                (
                    check["name"],
                    el("span", "yes", class_="good")
                    if check["passed"]
                    else el("span", "no", class_="bad"),
                    check["detail"],
                )
                for check in part["checks"]
            ],
            title,
            numbers=99,
        ),
    ]


def _replay(replay: dict[str, Any]) -> Child:
    leaks = replay["leaks"]
    return [
        el("h3", "Replay with one record more"),
        el(
            "p",
            f"{replay['releases']} releases were made again with one record more and the same "
            f"coins: {len(leaks)} leaks found."
            if leaks
            else f"{replay['releases']} releases were made again with one record more and the "
            "same coins; nothing differed but what is paid for.",
        ),
    ]


def diagnostics(folder: RunFolder) -> Markup:
    """What the run saw on its way."""
    seen = folder.diagnostics
    if seen is None:
        return section(
            "diagnostics",
            "Private diagnostics",
            el(
                "p",
                "This run kept none; ",
                el("code", "reticent train --private-diagnostics"),
                " does.",
            ),
        )
    charts: list[Child] = []
    if seen.get("gradient_norms"):
        charts.append(norms(seen["gradient_norms"]).figure())
    drawn = trials(seen.get("releases") or [])
    if drawn is not None:
        charts.append(drawn.figure())
    peak = seen.get("peak_memory_bytes")
    return section(
        "diagnostics",
        "Private diagnostics",
        el("p", "Of the sitting in which the run was finished; earlier ones are not in it."),
        el("div", charts, class_="pair") if charts else None,
        facts([("peak memory", f"{number(peak / 2**20, 3)} MiB" if peak else None)]),
    )
