"""The sections of a report that everybody may see."""

from __future__ import annotations

from typing import Any

from reticent.audit.books import BooksReport, model_check
from reticent.report.again import COMMAND, CONFIG_FILE, to_toml
from reticent.report.card import described
from reticent.report.drawings import HeldOut, by_class, confusion, learning_curve
from reticent.report.folder import PRIVATE_REPORT_FILE, RunFolder
from reticent.report.markup import Child, Markup, el, facts, table
from reticent.report.words import (
    delta_text,
    epsilon_text,
    guarantee,
    not_covered,
    not_the_model,
    number,
)
from reticent.training.diverged import in_words
from reticent.training.train import SEEDED_NOTE

_PARAMETERS = {
    "rate": "sampling rate",
    "multiplier": "noise multiplier",
    "valid_rate": "rate of the test",
    "valid_noise": "noise of the test",
    "beta": "threshold β",
    "trials": "trials at most",
    "epsilon": "ε of a choice",
    "reason": "",
}


def section(key: str, title: str, *children: Child, first: bool = False) -> Markup:
    """One section with its heading."""
    heading = el("h2", title, id=f"{key}-title")
    return el(
        "section",
        heading,
        *children,
        id=key,
        aria_labelledby=f"{key}-title",
        class_="first" if first else None,
    )


def guaranteed(folder: RunFolder, books: BooksReport) -> Markup:
    """What was guaranteed, in numbers and in words."""
    assert folder.run is not None
    run, found = folder.run, guarantee(folder.run)
    numbers = [el("div", el("dt", name), el("dd", value)) for name, value in found.numbers]
    accuracy = _last(run, "accuracy")
    if accuracy is not None:
        numbers.append(
            el("div", el("dt", "held-out accuracy"), el("dd", f"{100 * accuracy:.2f} %"))
        )
    return section(
        "guarantee",
        found.title,
        el(
            "div",
            el("dl", numbers, class_="big"),
            [el("p", text, class_="bad") for text in _against(folder, books)],
            el("p", found.sentence, class_="lead"),
            [el("p", _raised(text)) for text in found.plain],
            class_="card",
        ),
        first=True,
    )


def _against(folder: RunFolder, books: BooksReport) -> list[str]:
    """Why somebody should not rely on the statement, where there is a reason."""
    assert folder.run is not None
    found = []
    if folder.model_trouble is not None:
        found.append(not_the_model(folder.model_trouble))
    if not books.passed:
        found.append("The books of this run do not add up, see below: do not rely on this ε.")
    if folder.refuted:
        found.append("An audit of this run found something wrong with it: do not rely on this.")
    if folder.run.get("diverged"):
        stands = books.passed and not folder.refuted and folder.run["guarantee"] != "none"
        holds = " The guarantee holds." if stands else ""
        found.append(f"{_capital(in_words(folder.run['diverged']))}.{holds}")
    if SEEDED_NOTE in folder.run["ledger"].get("notes", ()):
        found.append(
            "Sampling and noise came from a stated seed: what follows holds only against those "
            "who neither know nor guess it."
        )
    return found


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _raised(text: str) -> list[Child]:
    """e^ε as it is printed."""
    first, *others = text.split("e^ε")
    return [first, *([el("i", "e"), el("sup", "ε"), other] for other in others)]


def _last(run: dict[str, Any], name: str) -> float | None:
    for line in reversed(run.get("metrics") or ()):
        if line.get(name) is not None:
            return float(line[name])
    return None


def limits(folder: RunFolder) -> Markup:
    """What the guarantee does not cover, and what the ledger noted."""
    assert folder.run is not None
    notes = [str(note) for note in folder.run["ledger"].get("notes", ())]
    private = guarantee(folder.run).kind == "differential-privacy"
    shown = not_covered(folder.run, folder.settings)
    return section(
        "limits",
        "What this does not cover",
        el(
            "ul",
            [el("li", el("strong", limit.name), " ", limit.text) for limit in shown],
            class_="plain",
        )
        if private
        else el("p", "There is no ε that could cover anything."),
        el("h3", "Noted in the ledger") if notes else None,
        el("ul", [el("li", note) for note in notes], class_="plain") if notes else None,
    )


def ledger(folder: RunFolder, books: BooksReport) -> Markup:
    """What was paid for what, and whether the books add up."""
    assert folder.run is not None
    run = folder.run
    rows = []
    for entry in run["ledger"]["entries"]:
        charge = dict(entry["charge"])
        kind = charge.pop("kind")
        parameters = ", ".join(
            f"{_PARAMETERS.get(name, name)} {number(value)}".strip()
            for name, value in charge.items()
        )
        fixed = "chosen on the way" if entry.get("adaptive") else "fixed beforehand"
        rows.append((entry["purpose"], f"{int(entry['count']):,}", kind, parameters, fixed))
    budget = run.get("budget")
    if run["statement"]["epsilon"] is None:
        said = "No bound follows from this ledger: what it lists has no ε."
    else:
        said = "Every use of the records was paid for before it was made. "
        spent = epsilon_text(run["statement"]["epsilon"])
        if budget:
            most, delta = number(budget["epsilon"]), delta_text(budget["delta"])
            said += f"The budget was ε = {most} at δ = {delta}; {spent} of it was spent."
    return section(
        "ledger",
        "The ledger",
        el("p", said),
        table(
            ("for", "times", "mechanism", "with", "size"),
            rows,
            "Charges, equal ones merged",
            numbers=99,
            wide=True,
        ),
        el("h3", "Do the books add up?"),
        el("p", "Recomputed from run.json and the model’s file when this page was made."),
        table(
            ("check", "", "found"),
            [
                (
                    check.name,
                    el("span", "yes", class_="good")
                    if check.passed
                    else el("span", "no", class_="bad"),
                    check.detail,
                )
                for check in (*books.checks, model_check(run, folder.model_trouble))
            ],
            "Checks of the books",
            numbers=99,
        ),
    )


def results(folder: RunFolder) -> Markup:
    """Held-out results: the curve, by class, the confusion matrix."""
    assert folder.run is not None
    run = folder.run
    curve = learning_curve(run)
    data = run.get("held_out")
    held = HeldOut(data) if isinstance(data, dict) and "confusion" in data else None
    matrix = confusion(held) if held is not None else None
    left = [chart for chart in (curve, by_class(held) if held is not None else None) if chart]
    charts: list[Child] = [
        el("div", [chart.figure() for chart in column], class_="stack")
        for column in (left, [matrix] if matrix is not None else [])
        if column
    ]
    values = [
        ("held-out accuracy", _percent(_last(run, "accuracy"))),
        ("the largest class alone", None if held is None else _percent(held.largest)),
        ("held-out loss", _plain(_last(run, "loss"))),
        ("held-out records", None if held is None else f"{held.records:,}"),
    ]
    nothing = not charts and not any(value for _, value in values)
    return section(
        "results",
        "How good is it?",
        el("p", "This run was not evaluated.")
        if nothing
        else el(
            "p",
            "Measured on held-out records, exactly and without noise. ε says nothing about them: "
            "these numbers reveal what they reveal about the held-out records, most about rare "
            "classes. About the training records they say nothing that the model does not say. "
            "Where the held-out records are sensitive too, do not pass them on.",
        ),
        facts(values),
        el("div", charts, class_="pair gap") if charts else None,
        _no_counts() if held is None and not nothing else None,
        _mistakes(held) if held is not None and len(held.names) > 25 else None,
    )


def _no_counts() -> Markup:
    return el("p", "Results by class were not kept by this run.", class_="soft gap")


def _mistakes(held: HeldOut) -> Child:
    return [
        el("h3", "The most frequent mistakes"),
        table(
            ("true", "predicted", "records"),
            [(a, b, f"{count:,}") for a, b, count in held.mistakes()],
            f"Of {len(held.names)} classes, too many for a matrix",
            numbers=2,
        ),
    ]


def _percent(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.2f} %"


def _plain(value: float | None) -> str | None:
    return None if value is None else f"{value:.4f}"


def audit_hidden(folder: RunFolder) -> Markup:
    """In a public report: that there is an audit, and nothing of what it found."""
    text = (
        "An audit of this folder exists. What audits measure is computed from the records without "
        "noise and is as private as they are, so it is not shown here."
        if folder.audited
        else "No audit is in this folder."
    )
    return section(
        "audit",
        "Audit",
        el("p", text),
        el(
            "p",
            "Whoever holds the records can see it: ",
            el("code", "reticent report --private"),
            f" writes {PRIVATE_REPORT_FILE}.",
        )
        if folder.audited
        else el("p", "Whoever holds the records can make one: ", el("code", "reticent audit"), "."),
    )


def model_card(folder: RunFolder) -> Markup:
    """What the model is, and is for."""
    return section(
        "card",
        "Model card",
        facts(described(folder)),
        [
            el("h3", "What the records were turned into"),
            table(
                ("column", "kind", "how it became numbers", "cost"),
                folder.columns,
                f"The columns of {folder.data}",
                numbers=99,
            ),
        ]
        if folder.columns
        else None,
    )


def configuration(folder: RunFolder) -> Markup:
    """Everything needed to do it again."""
    run = folder.run or {}
    method = {k: v for k, v in (run.get("method") or {}).items() if v is not None}
    seeds = (run.get("config") or {}).get("public_seeds") or {}
    toml = to_toml(folder.settings)
    return section(
        "again",
        "Doing it again",
        [
            el("p", f"Save these settings as {CONFIG_FILE} and run:"),
            el("pre", el("code", COMMAND)),
            el(
                "p",
                "Sampling and noise are drawn anew each time, from a key that is kept nowhere, so "
                "the numbers will differ a little. And a second run on the same records spends "
                "its ε a second time.",
            ),
            el(
                "details",
                el("summary", CONFIG_FILE),
                el("pre", el("code", toml), tabindex=0, role="region", aria_label=CONFIG_FILE),
                open=True,
            ),
        ]
        if toml
        else el("p", "This run was not made by ", el("code", "reticent train"), "."),
        el("h3", "As it ran"),
        facts(
            [
                *((_title(name), _value(value)) for name, value in method.items()),
                ("releases", _whole(run.get("steps"))),
                ("records at once", _whole(run.get("microbatch"))),
                (
                    "time",
                    f"{run['seconds']:,} s"
                    if run.get("seconds") is not None
                    else "not kept: it depends on the records",
                ),
                *((f"seed of the {name}", _value(value)) for name, value in seeds.items()),
            ]
        )
        if run
        else None,
        el("h3", "Versions") if run.get("versions") else None,
        facts((name, str(value)) for name, value in (run.get("versions") or {}).items()),
    )


def _title(name: str) -> str:
    return {"name": "method", "noise": "noise multiplier", "clip": "clipping"}.get(
        name, name.replace("_", " ")
    )


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(one)}" for key, one in value.items() if one is not None)
    if isinstance(value, list):
        return ", ".join(_value(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value)


def _whole(value: Any) -> str | None:
    return None if value is None else f"{int(value):,}"
