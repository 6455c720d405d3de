"""What `reticent compare` shows while it works: a table that fills, what runs now, time left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from reticent.comparison.outlook import Outlook, duration
from reticent.comparison.plans import Comparison
from reticent.comparison.results import gather
from reticent.reproduction.jobs import Outcome
from reticent.reproduction.measures import ACCURACY
from reticent.reproduction.running import ENDED, Event, Tell

NO_EPSILON = "*"  # beside methods whose ε is no guarantee


class View:
    """The table of a comparison as far as it is known.

    Attributes:
        names: What jobs are called, by key.
        outlook: How far they are.
    """

    def __init__(self, comparison: Comparison, workers: int) -> None:
        self._comparison = comparison
        self.names: dict[str, str] = {}
        self._shown: tuple[int, Table] | None = None
        kinds: dict[str, str] = {}
        for cell in comparison.cells:
            at = "" if cell.epsilon is None else f" at ε = {cell.epsilon:g}"
            for seed in range(comparison.seeds):
                key = comparison.job(cell, seed).key
                self.names[key] = f"{cell.label}{at}, seed {seed}"
                kinds[key] = cell.label
            if comparison.attacks:
                key = comparison.attack_job(cell).key
                self.names[key] = f"attacks on {cell.label}{at}"
                kinds[key] = f"attacks on {cell.label}"
        self.outlook = Outlook(kinds, workers)

    def __rich__(self) -> Group:
        known = len(self.outlook.outcomes)
        if self._shown is None or self._shown[0] != known:  # drawn four times a second
            self._shown = known, table(gather(self._comparison, dict(self.outlook.outcomes)))
        return Group(self._shown[1], self._now())

    def _now(self) -> Text:
        outlook = self.outlook
        going = []
        for key, (done, total) in list(outlook.going.items())[:4]:
            share = f" {100 * done // total} %" if total else ""
            going.append(f"{self.names[key]}{share}")
        more = len(outlook.going) - len(going)
        running = "; ".join(going) + (f" and {more} more" if more > 0 else "")
        made = len(outlook.outcomes)
        line = f"{made} of {made + outlook.left} done, time left {duration(outlook.seconds_left())}"
        return Text(f"now: {running}\n{line}" if running else line, style="dim")


def table(found: Mapping[str, Any]) -> Table:
    """Methods by ε: mean ± half-width of the confidence interval over seeds."""
    data = found["data"]["name"]
    heads = [Column(f"ε = {epsilon:g}", justify="right") for epsilon in found["epsilons"]]
    alone = any(cell["epsilon"] is None for cell in found["cells"])
    heads += [Column("no ε", justify="right")] if alone else []
    shown = Table(Column(escape(f"{data}: accuracy, %"), no_wrap=True), *heads)
    columns = [*found["epsilons"], *([None] if alone else [])]
    for method in found["methods"]:
        label = method["label"]
        cells = {c["epsilon"]: c for c in found["cells"] if c["method"] == label}
        mark = "" if method["guarantee"] == "differential-privacy" else NO_EPSILON
        texts = [
            cell_text(cells[column], found["seeds"]) if column in cells else ""
            for column in columns
        ]
        shown.add_row(escape(label) + mark, *texts)
    return shown


def cell_text(cell: Mapping[str, Any], seeds: int) -> str:
    """`91.25 ± 0.40`, and how many seeds it is of while some are missing."""
    if cell["mean"] is None:
        failed = any(one["state"] != "done" for one in cell["seeds"].values())
        return "[red]failed[/]" if failed else "[dim]…[/]"
    half = "" if cell["half_width"] is None else f" ± {cell['half_width']:.2f}"
    known = len(cell["accuracy"])
    count = "" if known == seeds else f" [dim]({known}/{seeds})[/]"
    return f"{cell['mean']:.2f}{half}{count}"


@contextmanager
def watched(view: View, console: Console, *, quiet: bool) -> Iterator[Tell]:
    """Show the table while jobs run; a line for each where there is no terminal."""
    live = Live(view, console=console, transient=True, refresh_per_second=4)

    def tell(event: Event) -> None:
        view.outlook.tell(event)
        if not quiet and not console.is_terminal and event.what == ENDED and event.outcome:
            name = view.names[event.key]
            console.print(f"{name}: {_said(event.outcome)}", markup=False, soft_wrap=True)

    if quiet or not console.is_terminal:
        yield tell
        return
    with live:
        yield tell


def _said(outcome: Outcome) -> str:
    if outcome.state != "done":
        return f"{outcome.state}: {outcome.error}"
    value = outcome.values.get(ACCURACY)
    found = f"accuracy {value:.2f} %" if isinstance(value, float) else "done"
    # where the time is private, nobody who reads a log needs it
    return found if outcome.seconds is None else f"{found} in {duration(outcome.seconds)}"
