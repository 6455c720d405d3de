"""`reticent deniability`: what PD-SGD's test promises, before anything is trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from reticent.cli.output import AsJson, number, print_json, screen
from reticent.figures import check_plot
from reticent.methods.deniability import PROMISE, Certificate, certificate
from reticent.methods.deniability_figure import draw
from reticent.training import Result


def deniability(
    sigma: Annotated[float, typer.Option(help="Standard deviation of the noise on a gradient.")],
    gamma: Annotated[float, typer.Option(help="Largest plausible difference of log-densities.")],
    batches: Annotated[int, typer.Option(help="m, how many batches the records are split into.")],
    threshold: Annotated[
        int, typer.Option(help="T, how many must be plausible, the update's own included.")
    ] = 3,
    dimension: Annotated[
        int | None, typer.Option(help="k, the number of parameters, for √(d*/k).")
    ] = None,
    distance: Annotated[
        list[float] | None,
        typer.Option(help="A squared distance d to tabulate; as often as you like."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw d* against γ and σ to this .svg or .png file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how likely PD-SGD makes an update that lies far from all other batches."""
    found = certificate(sigma, gamma, batches, threshold, dimension, distance or ())
    if plot is not None:
        draw(check_plot(plot), sigma, gamma, dimension)
    if as_json:
        return print_json({**found.to_json(), "plot": None if plot is None else str(plot)})
    table = Table("d", "distance √d", "q(d)", "Lemma 2", "Corollary 1", "update passes")
    for row in found.rows:
        table.add_row(
            number(row.distance),
            number(math.sqrt(row.distance)),
            number(row.plausibility),
            number(row.bound),
            number(row.simple_bound),
            number(row.pass_probability),
        )
    screen.print(table)
    screen.print(
        "d: squared distance from the gradient of another batch\n"
        "q(d): how likely the update is plausible for that batch (Lemma 1), then two bounds on it\n"
        "update passes: with at most this probability, if all other batches are at least that far"
    )
    for line in limits(found):
        screen.print(line)
    screen.print(PROMISE)
    if threshold == 1:
        screen.print("[bold]With a threshold of 1 every update passes: nothing is promised.[/]")
    if plot is not None:
        screen.print(f"drawn to {plot}", soft_wrap=True, markup=False)
    return None


def limits(found: Certificate) -> list[str]:
    """The distances of a certificate in words."""
    lines = []
    for limit in found.limits:
        one = "beyond all numbers" if limit.one_batch is None else number(limit.one_batch)
        text = f"q(d) is at most {limit.probability:g} from d* = {one} on"
        normalised = found.normalised(limit.one_batch)
        if normalised is not None:
            text += f" (√(d*/k) = {number(normalised)})"
        if limit.update is not None:
            text += f"; an update passes so rarely from d = {number(limit.update)} on"
        lines.append(text)
    return lines


def without_epsilon(result: Result) -> list[tuple[str, str]]:
    """What a finished training says of a guarantee that is no ε: names and texts."""
    if result.guarantee == "plausible-deniability":
        return [
            ("guarantee", "plausible deniability of each update; no ε"),
            *(("certificate", text) for text in _kept(result.released["certificate"])),
            ("assumes", "that only the final model is seen, nothing of how it came about"),
        ]
    if result.guarantee == "empirical":
        return [("guarantee", "none that is proved: a defence against known attacks; no ε")]
    return [("guarantee", "none: this method promises nothing")]


def _kept(data: dict[str, Any]) -> list[str]:
    """The distances of a certificate as `run.json` holds it."""
    return [
        f"an update farther than {number(math.sqrt(limit['update']))} from all other batches "
        f"passes with probability at most {limit['probability']:g}"
        for limit in data["limits"]
        if limit["update"] is not None
    ]
