"""Draw `docs/figures`; needs `pip install reticent[plots]`.

python benchmarks/figures.py            # draw, from benchmarks/results
python benchmarks/figures.py --check    # fail if a figure is not what the results give
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Generator

import frontier_points as frontier
from reticent.audit.roc_figure import SIZE, roc_panel
from reticent.figures import COLOURS, save_figure
from reticent.methods.threshold_figure import draw
from reticent.pretraining.figures import figures, strokes
from reticent.pretraining.shapes import dead_leaves, fractals
from reticent.pretraining.textures import coloured_noise, random_networks
from stamps import FIGURES, Drawing

RESULTS = Path(__file__).parent / "results"


def threshold(folder: Path = FIGURES) -> None:
    # the σ_v of DPSUR's Figure 6, and the β the paper uses
    draw(folder / "threshold.svg", (0.8, 1.0, 1.3), beta=-1)


def attacks() -> Iterator[Drawing]:
    for path in sorted(RESULTS.glob("attacks-*.json")):
        record = json.loads(path.read_text())
        first = record["procedures"][0]
        curves = {name: [found["roc"]] for name, found in first["attacks"].items()}
        yield Drawing(f"attacks-{record['data']}-{record['records']}", roc_panel(curves), SIZE)


def poisoning() -> Iterator[Drawing]:
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

        yield Drawing(f"poisoning-{record['data']}", panel, (4.2, 3.0))


def results() -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*.json"))]


MARKERS = {frontier.NO_FLAW: "o", frontier.NOT_A_BOUND: "s", frontier.UNKNOWN: "D"}
SHORT = {"Deep learning with plausible deniability": "Plausible deniability"}
BELOW = 25.0  # points below our lowest: what is further down is left to the table


def accuracies() -> Iterator[Drawing]:
    """Accuracy against ε, one picture for each data set; published claims are hollow.

    What was trained on a part of the records is left to the table.
    """
    records = results()
    for data in frontier.searched(records, "frontier"):
        points = frontier.ours(records, data)

        def panel(figure: Any, data: str = data, points: list[frontier.Point] = points) -> None:
            axes = figure.subplots()
            best = [point for point in points if point.what == frontier.BEST]
            others = [p for p in points if p.what != frontier.BEST and p.records is None]
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

        yield Drawing(f"frontier-{data}", panel, (7.4, 3.6))


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


def searches() -> Iterator[Drawing]:
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

        yield Drawing(f"search-{data}", panel, (7.4, 3.8))


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


def scaling() -> Iterator[Drawing]:
    """Private over plain steps with their spread, one panel for each size."""
    from matplotlib.ticker import NullFormatter, NullLocator

    for path in sorted(RESULTS.glob("scaling-*.json")):
        record = json.loads(path.read_text())

        def panel(figure: Any, curves: list[dict[str, Any]] = record["curves"]) -> None:
            panels = figure.subplots(1, len(curves))
            for axes, curve in zip(panels, curves, strict=True):
                sizes = [point["size"] for point in curve["points"]]
                low, middle, high = zip(*(point["ratio"] for point in curve["points"]), strict=True)
                axes.fill_between(sizes, low, high, color="#0072b2", alpha=0.2, linewidth=0)
                axes.plot(sizes, middle, "o-", color="#0072b2", markersize=3)
                axes.axhline(1, color="0.6", linewidth=0.8, linestyle=":")
                axes.set_xscale("log")
                axes.set_xticks(sizes[::2], [f"{size:g}" for size in sizes[::2]])
                axes.xaxis.set_minor_locator(NullLocator())
                axes.xaxis.set_minor_formatter(NullFormatter())
                axes.set_ylim(bottom=0)
                axes.set_xlabel(curve["what"])
                axes.set_title(curve["model"], fontsize=6.5)
            panels[0].set_ylabel("private over plain")

        yield Drawing(f"scaling-{record['device']}", panel, (9.6, 2.4), {"font.size": 8})


def importance() -> Iterator[Drawing]:
    """DPIS's noise multipliers by epoch."""
    (record,) = (one for one in results() if one.get("what") == "importance")

    def panel(figure: Any) -> None:
        panels = figure.subplots(1, len(record["budgets"]), squeeze=False)[0]
        for axes, found in zip(panels, record["budgets"], strict=True):
            run, plain = found["dpis"][0], found["dpsgd"][0]
            epochs = range(1, len(run["noise"]) + 1)
            axes.step(epochs, run["noise"], where="post", label="DPIS (filter)")
            axes.axhline(plain["noise"], color="C1", label="DP-SGD (PLD)")
            axes.axhline(plain["by_rdp"], color="C1", linestyle=":", label="DP-SGD (RDP)")
            axes.plot(epochs, [s * plain["by_rdp"] for s in run["share"]], color="0.7", lw=0.8)
            axes.set_title(f"ε = {found['epsilon']:g}", fontsize=9)
            axes.set_xlabel("epoch")
            axes.set_ylim(bottom=0)
        panels[0].set_ylabel("noise multiplier σ_G")
        panels[0].legend(fontsize=7, loc="lower left")

    yield Drawing("importance", panel, (3.2 * len(record["budgets"]), 2.6))


def drawings() -> Iterator[Drawing]:
    """All that are drawn from results."""
    for some in (attacks, poisoning, accuracies, searches, scaling, importance):
        yield from some()


def stale() -> list[str]:
    """Those that are not drawn from the results of today."""
    return [one.name for one in drawings() if one.stale()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if a figure is out of date")
    if parser.parse_args().check:
        sys.exit("\n".join(f"{name}.svg is out of date" for name in stale()) or None)
    threshold()
    random_images()
    for one in drawings():
        one.save()


if __name__ == "__main__":
    main()
