"""Draw `docs/figures`; needs `pip install reticent[plots]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Generator

import frontier_points as frontier
from reticent.audit.roc_figure import draw_roc
from reticent.figures import COLOURS, save_figure
from reticent.methods.threshold_figure import draw
from reticent.pretraining.figures import figures, strokes
from reticent.pretraining.shapes import dead_leaves, fractals
from reticent.pretraining.textures import coloured_noise, random_networks

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parent.parent / "docs" / "figures"


def threshold(folder: Path = FIGURES) -> None:
    # the σ_v of DPSUR's Figure 6, and the β the paper uses
    draw(folder / "threshold.svg", (0.8, 1.0, 1.3), beta=-1)


def attacks(folder: Path = FIGURES) -> None:
    for path in sorted(RESULTS.glob("attacks-*.json")):
        record = json.loads(path.read_text())
        first = record["procedures"][0]
        curves = {name: [found["roc"]] for name, found in first["attacks"].items()}
        draw_roc(folder / f"attacks-{record['data']}-{record['records']}.svg", curves, mode=0o644)


def poisoning(folder: Path = FIGURES) -> None:
    for path in sorted(RESULTS.glob("poisoning-*.json")):
        record = json.loads(path.read_text())

        def panel(figure: Any, runs: list[dict[str, Any]] = record["runs"]) -> None:
            axes = figure.subplots()
            shares = sorted({run["share"] for run in runs})
            for colour, name in zip(COLOURS, ("poisoned", "normal"), strict=False):
                rates = [
                    [run[name]["rate"] for run in runs if run["share"] == share] for share in shares
                ]
                means = [100 * sum(some) / len(some) for some in rates]
                label = f"{name} batch{'' if name == 'poisoned' else 'es'}"
                axes.plot([100 * s for s in shares], means, "o-", color=colour, label=label)
            axes.set(ylim=(0, 100), xlabel="labels flipped, %", ylabel="updates rejected, %")
            axes.legend(frameon=False)

        save_figure(folder / f"poisoning-{record['data']}.svg", panel, size=(4.2, 3.0))


def results() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


MARKERS = {frontier.NO_FLAW: "o", frontier.NOT_A_BOUND: "s", frontier.UNKNOWN: "D"}
SHORT = {"Deep learning with plausible deniability": "Plausible deniability"}
BELOW = 25.0  # points below our lowest: what is further down is left to the table


def accuracies(folder: Path = FIGURES) -> None:
    """Accuracy against ε, one picture for each data set; published claims are hollow."""
    records = results()
    for data in frontier.searched(records, "frontier"):
        points = frontier.ours(records, data)

        def panel(figure: Any, data: str = data, points: list[frontier.Point] = points) -> None:
            axes = figure.subplots()
            best = [point for point in points if point.what == frontier.BEST]
            others = [point for point in points if point.what != frontier.BEST]
            _hollow(axes, data, floor=min(point.mean for point in best) - BELOW)
            if others:
                places = [p.epsilon for p in others], [p.mean for p in others]
                grey = {"color": "#888888", "markersize": 3, "label": "our other runs, proved ε"}
                axes.plot(*places, "o", **grey)
            means = [point.mean for point in best]
            spread = [
                [point.mean - min(point.accuracies) for point in best],
                [max(point.accuracies) - point.mean for point in best],
            ]
            proved = [point.epsilon for point in best]
            line = {"color": COLOURS[0], "markersize": 5, "capsize": 2, "fmt": "o-"}
            axes.errorbar(proved, means, yerr=spread, label="best recipe, proved ε", **line)
            for x, y in zip(proved, means, strict=True):
                where = {"textcoords": "offset points", "ha": "center", "fontsize": 7}
                axes.annotate(f"{y:.2f}", (x, y), (0, 6), **where)
            axes.margins(y=0.08)
            _axis(axes, "test accuracy, %")
            handles, labels = axes.get_legend_handles_labels()
            beside = {"loc": "outside right center", "frameon": False}
            figure.legend(handles[::-1], labels[::-1], **beside)

        save_figure(folder / f"frontier-{data}.svg", panel, size=(7.4, 3.6))


def _hollow(axes: Any, data: str, floor: float) -> None:
    """What was published, a colour for each paper and a shape for what its ε is worth."""
    shown = [claim for claim in frontier.claims(data) if not claim.encoder]
    papers = list(dict.fromkeys(claim.paper for claim in shown))
    for claim in shown:
        place = papers.index(claim.paper)
        xs, ys = [], []
        for epsilon, value in claim.accuracies.items():
            if value >= floor:
                xs.append(epsilon * (1 + 0.03 * (place - (len(papers) - 1) / 2)))  # side by side
                ys.append(value)
        style = {"color": COLOURS[1 + place], "markerfacecolor": "none", "markersize": 5}
        axes.plot(xs, ys, MARKERS[claim.status], **style)
    for place, paper in enumerate(papers):
        name = paper.partition(" (")[0]
        short = SHORT.get(name, name if len(name) < 30 else name.partition(",")[0])
        axes.plot([], [], "-", color=COLOURS[1 + place], label=short)
    for status, marker in MARKERS.items():
        if any(claim.status == status for claim in shown):
            style = {"color": "black", "markerfacecolor": "none", "markersize": 5}
            axes.plot([], [], marker, label=f"claimed ε, {status}", **style)


def _axis(axes: Any, label: str) -> None:
    axes.set_xscale("log")
    ticks = (0.5, 1, 2, 3, 4, 8)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set(xlabel="ε", ylabel=label)
    axes.grid(axis="y", color="#eeeeee")
    axes.set_axisbelow(True)


def searches(folder: Path = FIGURES) -> None:
    """What was tried: the candidates of the search, and the passes before it."""
    records = results()
    for data, record in frontier.searched(records, "search").items():
        before = frontier.explored(records, data)

        def panel(
            figure: Any,
            record: dict[str, Any] = record,
            before: list[dict[str, Any]] = before,
        ) -> None:
            left, right = figure.subplots(1, 2)
            candidates = record["candidates"]
            for number, one in enumerate(candidates):
                differing = {
                    name: value
                    for name, value in one["options"].items()
                    if any(other["options"][name] != value for other in candidates)
                }
                left.plot(
                    [row["epsilon"] for row in one["best"]],
                    [row["accuracy"] for row in one["best"]],
                    color=COLOURS[number % len(COLOURS)],
                    marker="o",
                    markersize=3,
                    linestyle="-" if number < len(COLOURS) else "--",
                    linewidth=2 if one["options"] == record["options"] else 0.8,
                    label=frontier.told(differing),
                )
            _axis(left, "best held-out accuracy, %")
            for number, colour in zip((1, 2, 3), COLOURS, strict=False):
                rows = [r for r in before if r["pass"] == number and "1" in r["best"]]
                places = [row["d"] for row in rows], [row["best"]["1"][0] for row in rows]
                label = f"pass {number}" if rows else None
                right.plot(*places, "o", color=colour, markersize=3, label=label)
            right.set_xscale("log")
            right.set(xlabel="numbers in a record's features", ylabel="the same at ε = 1")
            right.set_title("passes before the search", fontsize=9)
            left.set_title("the search", fontsize=9)
            right.legend(frameon=False)
            below = {"loc": "outside lower center", "ncols": 2, "frameon": False, "fontsize": 7}
            figure.legend(handles=left.get_lines(), **below)

        save_figure(folder / f"search-{data}.svg", panel, size=(7.4, 3.8))


def random_images(folder: Path = FIGURES) -> None:
    """A contact sheet of the random processes, one row each."""
    across, side, seed = 8, 40, 0
    coins = Generator().manual_seed(seed)
    textures = torch.cat((coloured_noise(32, side, coins), random_networks(32, side, coins)))
    rows = {
        "coloured noise": textures[:across],
        "random networks": textures[32 : 32 + across],
        "dead leaves": dead_leaves(textures, across, coins),
        "fractals": fractals(textures, across, coins),
        "strokes": strokes(across, side, coins),
        "figures": figures(textures, across, coins),
    }

    def panel(figure: Any) -> None:
        for axes, (name, images) in zip(figure.subplots(len(rows)), rows.items(), strict=True):
            framed = torch.nn.functional.pad(images, (1, 1, 1, 1), value=1.0)
            axes.imshow(
                torch.cat(list(framed), 2).permute(1, 2, 0).numpy(), interpolation="nearest"
            )
            axes.set_axis_off()
            axes.set_title(name, fontsize=7, loc="left", pad=2)

    save_figure(folder / "random-images.png", panel, size=(3.0, 2.9))


if __name__ == "__main__":
    threshold()
    random_images()
    attacks()
    poisoning()
    accuracies()
    searches()
