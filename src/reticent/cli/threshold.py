"""`reticent threshold`: what DPSUR's threshold β does, before anything is trained."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from reticent.cli.output import AsJson, number, print_json, screen
from reticent.figures import check_plot
from reticent.methods.threshold import BETA_OF_LARGEST_DIFFERENCE, difference, thresholds
from reticent.methods.threshold_figure import draw

BETAS = tuple(step / 2 for step in range(-6, 7))


def threshold(
    valid_sigma: Annotated[
        float,
        typer.Option("--valid-sigma", "--valid-noise", help="σ_v, noise multiplier of the test."),
    ],
    beta: Annotated[
        float | None, typer.Option(help="One threshold, in units of C_v; by default -3 to 3.")
    ] = None,
    good_share: Annotated[
        float, typer.Option(help="Assumed share of candidates that lower the loss.")
    ] = 0.5,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the probabilities to this .svg or .png file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how often DPSUR accepts good and bad candidates, by its threshold β."""
    rows = thresholds(BETAS if beta is None else (beta,), valid_sigma, good_share)
    best = BETA_OF_LARGEST_DIFFERENCE
    largest = difference(best, valid_sigma)
    if plot is not None:
        draw(check_plot(plot), (valid_sigma,), beta)
    if as_json:
        return print_json(
            {
                "valid_noise": valid_sigma,
                "good_share": good_share,
                "largest_difference": {"beta": best, "difference": largest},
                "thresholds": [row.to_json() for row in rows],
                "plot": None if plot is None else str(plot),
            }
        )
    table = Table("β", "good", "bad", "difference", "ratio", "share good", "trials")
    for row in rows:
        marked = row.beta == best
        table.add_row(
            f"{row.beta:g}",
            f"{row.good:.4f}",
            f"{row.bad:.4f}",
            f"{row.difference:.4f}" + (" ←" if marked else ""),
            _large(row.ratio),
            "-" if row.good_among_accepted is None else f"{row.good_among_accepted:.4f}",
            _large(row.trials),
            style="bold" if marked else None,
        )
    screen.print(table)
    screen.print(
        f"good, bad: the probability that such a candidate is accepted, at σ_v = {valid_sigma:g}\n"
        f"difference: largest at β = {best:g}, where it is {largest:.4f}\n"
        "ratio: of good to bad; ε grows with it\n"
        f"share good: among the accepted, if it is {good_share:g} among all candidates\n"
        "trials: candidates per accepted update, expected for that share"
    )
    if plot is not None:
        screen.print(f"drawn to {plot}", soft_wrap=True, markup=False)
    return None


def _large(value: float) -> str:
    return "over 1e308" if value == math.inf else number(value)
