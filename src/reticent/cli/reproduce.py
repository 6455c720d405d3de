"""`reticent reproduce`: published tables, measured again; beside the claim the ε that holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column
from rich.table import Table as Shown

from reticent.cli.output import AsJson, errors, print_json, screen
from reticent.errors import OptionError, whole

# The tables are read through this command line's settings, so they are imported when it is called.
if TYPE_CHECKING:
    from reticent.reproduction.running import Event, Tell
    from reticent.reproduction.tables import Entry, Table

FOLDER = Path("reproductions")


def reproduce(
    table: Annotated[
        str | None, typer.Argument(help="PAPER/TABLE, or a TOML file; none: list them.")
    ] = None,
    listing: Annotated[
        bool, typer.Option("--list", help="List the tables and what they need.")
    ] = False,
    data: Annotated[list[str] | None, typer.Option(help="Only on this data set.")] = None,
    epsilon: Annotated[list[float] | None, typer.Option(help="Only at this ε.")] = None,
    columns: Annotated[list[str] | None, typer.Option(help="Only this column.")] = None,
    rows: Annotated[list[str] | None, typer.Option(help="Only this row.")] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only published, repaired or sound (DPSUR).")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many runs of each entry.")] = 1,
    lr: Annotated[float | None, typer.Option(help="Another learning rate; recorded.")] = None,
    workers: Annotated[int, typer.Option(help="How many processes share the device.")] = 1,
    together: Annotated[
        bool, typer.Option("--together", help="Train seeds and settings of a model at once.")
    ] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    out: Annotated[Path | None, typer.Option(help="Folder for results.")] = None,
    root: Annotated[str | None, typer.Option(help="Folder that holds the data sets.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a published table again; what is finished is kept, and a second call goes on."""
    from reticent.reproduction.tables import load

    if table is None or listing:
        return _list(table, root, as_json)
    loaded = load(table)
    entries = _selected(loaded, data, epsilon, columns, rows, variant)
    whole("seeds", seeds)
    changes: dict[str, Any] = {} if lr is None else {"lr": lr}
    folder = out or _folder(loaded, changes)
    return _run(loaded, entries, seeds, changes, folder, workers, together, device, root, as_json)


def _folder(table: Table, changes: dict[str, Any]) -> Path:
    changed = "".join(f"-{name}{value:g}" for name, value in changes.items())
    return FOLDER / f"{table.id.replace('/', '-')}{changed}"


def _selected(
    table: Table,
    data: list[str] | None,
    epsilon: list[float] | None,
    columns: list[str] | None,
    rows: list[str] | None,
    variant: list[str] | None,
) -> list[Entry]:
    """The entries that are asked for; none is an error."""
    if epsilon:
        if table.axis != "epsilon":
            shown = table.axis or "not a setting"
            raise OptionError("epsilon", epsilon[0], f"columns of this table are {shown}")
        if columns:
            raise OptionError("columns", columns[0], "means the same as --epsilon; give one")
        for value in epsilon:
            if value not in table.columns:
                works = ", ".join(f"{column:g}" for column in table.columns)
                raise OptionError("epsilon", value, f"is not in this table, which has {works}")
    chosen: list[Any] | None = list(epsilon) if epsilon else None
    if columns:
        by_text = {str(column): column for column in table.columns}
        chosen = [by_text.get(text, text) for text in columns]
    known = tuple(row.name for row in table.rows)
    entries = table.entries(
        data=_words(data, tuple(table.data)),
        columns=chosen,
        rows=_words(rows, known),
        variants=_words(variant, table.variants),
    )
    if not entries:
        raise OptionError("table", table.id, "has no entry that is all of this")
    return entries


def _words(given: list[str] | None, known: tuple[str, ...]) -> list[str] | None:
    """Options may be repeated, or separated by commas."""
    if not given:
        return None
    return [w for text in given for w in ([text] if text in known else text.split(","))]


def _list(table: str | None, root: str | None, as_json: bool) -> None:
    from reticent.reproduction.listing import describe
    from reticent.reproduction.tables import load, names

    found = [describe(load(name), root) for name in (names() if table is None else (table,))]
    if as_json:
        return print_json(found)
    if table is not None:
        return _describe(found[0])
    shown = Shown(Column("table", no_wrap=True), "shows", "entries", "data")
    for line in found:
        data = ", ".join(
            name if here == "here" else f"[dim]{name} ({here})[/]"
            for name, here in line["data"].items()
        )
        title = f"{line['name']}: {line['title']}"
        shown.add_row(line["table"], title, str(line["entries"]), data)
    screen.print(shown)
    for paper in dict.fromkeys((line["table"].split("/")[0], line["paper"]) for line in found):
        screen.print(escape(f"{paper[0]}: {paper[1]}"), soft_wrap=True)
    screen.print("reticent reproduce PAPER/TABLE --data NAME --epsilon E narrows a table down")
    return None


def _describe(line: dict[str, Any]) -> None:
    shown = Shown(show_header=False)
    shown.add_row("paper", escape(line["paper"]))
    shown.add_row("table", escape(f"{line['name']}: {line['title']}"))
    shown.add_row("rows", escape(", ".join(line["rows"])))
    shown.add_row(str(line["axis"] or "columns"), ", ".join(map(str, line["columns"])) or "one")
    shown.add_row("measures", ", ".join(line["measures"]))
    shown.add_row("variants", ", ".join(line["variants"]))
    shown.add_row("data", ", ".join(f"{name} ({here})" for name, here in line["data"].items()))
    for note in line["notes"]:
        shown.add_row("note", escape(note))
    screen.print(shown)


def _run(
    table: Table,
    entries: list[Entry],
    seeds: int,
    changes: dict[str, Any],
    out: Path,
    workers: int,
    together: bool,
    device: str,
    root: str | None,
    as_json: bool,
) -> None:
    from reticent.reproduction.jobs import job_of
    from reticent.reproduction.reports import report
    from reticent.reproduction.running import run_jobs

    present = [entry for entry in entries if entry.missing is None]
    names = {
        job_of(table, entry, seed, **changes).key: _label(entry, seed)
        for entry in present
        for seed in range(seeds)
    }
    jobs = [job_of(table, entry, seed, **changes) for entry in present for seed in range(seeds)]
    if not as_json:
        _announce(table, entries, len(set(names)), out)
    with _told(names, quiet=as_json) as tell:
        try:
            outcomes = run_jobs(
                jobs,
                out,
                device=device,
                root=root,
                workers=workers,
                together=together,
                tell=tell,
            )
        except KeyboardInterrupt:
            errors.print(f"stopped; the same command goes on with what is in {out}")
            raise
    found = report(table, entries, outcomes, seeds=range(seeds), changes=changes)
    _write(table, outcomes, seeds, changes, out, as_json)
    if as_json:
        print_json(found)
    else:
        _show(found, out)
    _complain(found, outcomes.values())


def _label(entry: Entry, seed: int) -> str:
    column = "" if entry.column is None else f", {entry.column}"
    variant = "" if entry.variant == "sound" else f" ({entry.variant})"
    return f"{entry.row}{variant} on {entry.data}{column}, seed {seed}"


def _announce(table: Table, entries: list[Entry], jobs: int, out: Path) -> None:
    screen.print(f"[bold]{escape(table.paper)}[/], {escape(table.name)}: {escape(table.title)}")
    screen.print(f"{len(entries)} entries, {jobs} jobs; results in {out}")
    if any(entry.variant == "published" for entry in entries):
        screen.print("[bold]entries as published leak their records: no ε[/], whatever was claimed")


@contextmanager
def _told(names: dict[str, str], *, quiet: bool) -> Iterator[Tell]:
    """Progress for people: jobs done, and how far each one under way is."""
    if quiet:
        yield lambda event: None
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=screen,
        transient=True,
    )
    with bar:
        every = bar.add_task("jobs", total=len(names))
        tasks: dict[str, Any] = {}

        def tell(event: Event) -> None:
            if event.what == "started":
                tasks[event.key] = bar.add_task(escape(names[event.key]), total=None)
            elif event.what == "going":
                bar.update(tasks[event.key], completed=event.done, total=event.total)
            else:
                bar.advance(every)
                if event.key in tasks:
                    bar.remove_task(tasks.pop(event.key))
                if event.outcome is not None and event.what == "ended":
                    bar.console.print(f"{escape(names[event.key])}: {_result(event.outcome)}")

        yield tell


def _result(outcome: Any) -> str:
    if outcome.state == "missing":
        return "[yellow]data missing[/]"
    if outcome.state != "done":
        return f"[red]failed[/]: {escape(outcome.error or '')}"
    numbers = (
        f"{name} {value:.4g}"
        for name, value in outcome.values.items()
        if isinstance(value, (int, float))
    )
    return f"{', '.join(numbers)} in {outcome.seconds:.1f} s"


def _write(
    table: Table,
    outcomes: dict[str, Any],
    seeds: int,
    changes: dict[str, Any],
    out: Path,
    as_json: bool,
) -> None:
    """The whole table as far as it is known, earlier calls included, as files."""
    from reticent.reproduction.drawing import draw
    from reticent.reproduction.jobs import Kept, job_of
    from reticent.reproduction.reports import report, write_report

    kept = Kept(out)
    everyone = sorted({*range(seeds), *kept.seeds()})
    entries = table.entries()
    known = dict(outcomes)
    for entry in entries:
        for seed in everyone:
            key = job_of(table, entry, seed, **changes).key
            if key not in known and (found := kept.read(key)) is not None:
                known[key] = found
    whole_table = report(table, entries, known, seeds=everyone, changes=changes)
    write_report(whole_table, out)
    try:
        draw(whole_table, out / "table.svg")
    except OptionError as error:  # no matplotlib
        if not as_json:
            screen.print(f"no figure: {escape(error.hint)}")


def _show(found: dict[str, Any], out: Path) -> None:
    from reticent.reproduction.reports import cell_text, epsilon_pair, rows_of

    columns = found["columns"] or [None]
    for data, title in found["data"].items():
        entries = [entry for entry in found["entries"] if entry["data"] == data]
        asked = [c for c in columns if any(e["column"] in (c, None) for e in entries)]
        for measure in found["measures"] if entries else ():
            unit = ", %" if measure in found["percent"] else ""
            heads = ("" if column is None else str(column) for column in asked)
            shown = Shown(f"{title}: {measure}{unit}", *heads)
            for label, cells in rows_of(entries):
                texts = []
                for column in asked:
                    entry = cells.get(column, cells.get(None))
                    pair = "–" if entry is None else epsilon_pair(entry)
                    text = "–" if entry is None else cell_text(entry, measure)
                    texts.append(text if pair == "–" else f"{text}\n[dim]ε {pair}[/]")
                shown.add_row(escape(label), *texts)
            screen.print(shown)
    screen.print("ours (published); ε claimed / proved")
    screen.print(f"table.json, table.md and the figure are in {out}")


def _complain(found: dict[str, Any], outcomes: Any) -> None:
    """Say once what is missing, and end with 1 if anything is."""
    missing = {outcome.error for outcome in outcomes if outcome.state == "missing"}
    asked = {entry["data"] for entry in found["entries"]}
    missing |= {f"{n}: {text}" for n, text in found["missing"].items() if n in asked}
    if missing:
        missing |= {f"{n}: {text}" for n, text in found["bring"].items() if n in asked}
    for text in sorted(missing):
        errors.print(f"[yellow]missing:[/] {escape(text)}", soft_wrap=True)
    failed = sum(outcome.state == "failed" for outcome in outcomes)
    if failed:
        errors.print(f"[red]{failed} failed[/]; table.md says why, the same command tries again")
    if missing or failed:
        raise typer.Exit(1)
