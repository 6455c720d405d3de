"""Draw the pictures of `docs/concepts.md`; no number in them is typed.

    python benchmarks/pictures.py             # draw, from benchmarks/results
    python benchmarks/pictures.py --compute   # ask the accountant and the auditor again, then draw
    python benchmarks/pictures.py --check     # fail if a picture is not what the results give

Each file holds a digest of the numbers that were drawn (`stamps.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import norm

import reticent as rt
from machine import describe_machine
from reticent.audit.canaries import audit_canaries
from reticent.figures import COLOURS, render_figure
from reticent.files import to_json, write_atomically
from reticent.privacy import SampledGaussian, noise_for
from stamps import FIGURES, Panel, is_of, stamped

RESULTS = Path(__file__).parent / "results"
BLUE, ORANGE, GREEN = COLOURS[:3]
PAPER, INK, QUIET, FAINT = "#fefefe", "#1f2328", "#6e7781", "#e4e7eb"
STYLE = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), PAPER),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
    **{"axes.edgecolor": QUIET, "axes.titlesize": 9.5, "axes.titlelocation": "left"},
}
# a dark page asks for a dark picture; each colour has its counterpart
DARK = {
    PAPER: "#15191f",
    INK: "#e6edf3",
    QUIET: "#9aa4ae",
    FAINT: "#2d333b",
    BLUE: "#4fa8e0",
    ORANGE: "#f08a3c",
    GREEN: "#2fbf8f",
}
DELTA = 1e-5
N, BATCH = 60_000, 2048
NOISES = (1.0, 1.5, 2.15, 4.0)
STEPS = (30, 100, 300, 1000, 3000, 10_000)
GRADIENTS = ((0.7, -0.5), (1.9, 0.7), (0.5, 0.35), (-0.3, 0.75), (-1.5, 0.9), (-0.1, -0.7))
CLIP = 1.0


def compute() -> dict[str, Any]:
    """What the accountant and the auditor say."""
    growth = []
    for noise in NOISES:
        for steps in STEPS:
            ledger = rt.Ledger()
            ledger.charge(SampledGaussian(BATCH / N, noise), "training", count=steps)
            growth.append({"noise": noise, "steps": steps, "epsilon": ledger.epsilon(DELTA)})
    single = {str(epsilon): release_noise(epsilon) for epsilon in (1, 3, 8)}
    return {
        "what": "concepts",
        "delta": DELTA,
        "n": N,
        "batch": BATCH,
        "growth": growth,
        "one_release": single,
        "too_quiet": too_quiet(),
        "machine": describe_machine(),
    }


def release_noise(epsilon: float) -> float:
    """The noise with which one release of all records keeps within ε."""
    return noise_for(rt.Budget(epsilon, DELTA), lambda z: SampledGaussian(1.0, z), 1)


class Quiet(rt.DPSGD):
    """A bug on purpose: a quarter of the noise that is charged."""

    def release(self, run: Any) -> None:
        """DP-SGD's, but for the noise."""
        total = run.clipped_sum(run.sample(self.batch / run.n), self.bound_now(run))
        run.step(run.noisy(total, self.noise / 4) / self.batch)


def too_quiet() -> dict[str, float]:
    """A canary audit of the bug: what is stated, and what is shown."""
    torch.manual_seed(0)
    data = rt.data.load("digits")
    report = audit_canaries(
        torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)),
        data.train,
        method=Quiet(batch=11_437, clip=1.0),
        budget=rt.Budget(1.0, DELTA),
        steps=2,
        canaries=10_000,
    )
    return {"upper": report.upper.epsilon, "lower": report.bound("approximate").epsilon}


def load(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def epsilon_says() -> tuple[Any, Panel, tuple[float, float]]:
    noises = load("concepts")["one_release"]

    def panel(figure: Any) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1.15, 1))
        noise = noises["1"]
        x = np.linspace(-3.2 * noise, 3.2 * noise + 1, 121)
        for centre, colour, label in ((0, BLUE, "without the record"), (1, ORANGE, "with it")):
            density = norm.pdf(x, centre, noise)
            left.plot(x, density, color=colour, label=label)
            left.fill_between(x, density, color=colour, alpha=0.12, linewidth=0)
        left.set(yticks=[], xlabel="what is released, in clipping bounds", ylim=(0, None))
        left.set_title("one release at ε = 1: two worlds")
        left.spines["left"].set_visible(False)
        left.margins(x=0)
        left.legend(frameon=False, loc="upper right", fontsize=8)
        share = np.linspace(0, 1, 201)
        shade = {"color": BLUE, "alpha": 0.14, "linewidth": 0, "label": "ruled out at ε = 1"}
        right.fill_between(share, allowed(share, 1), **shade)
        right.plot([0, 1], [1, 0], ":", color=QUIET)
        right.text(0.62, 0.4, "guessing", fontsize=8, color=QUIET, rotation=-45)
        for (text, noise), colour in zip(noises.items(), (BLUE, GREEN, ORANGE), strict=True):
            best = norm.cdf(norm.isf(share) - 1 / noise)
            right.plot(share, best, color=colour, label=f"ε = {text}")
        right.set(xlabel="wrongly accused", ylabel="overlooked", xlim=(0, 1), ylim=(0, 1))
        percent = ((0, 0.5, 1), ("0", "50 %", "100 %"))
        right.set_xticks(*percent)
        right.set_yticks(*percent)
        right.set_aspect("equal")
        right.set_title("what any test can do")
        handles, labels = right.get_legend_handles_labels()
        corner = {"frameon": False, "loc": "upper right", "fontsize": 8, "borderaxespad": 0}
        right.legend(handles[1:] + handles[:1], labels[1:] + labels[:1], **corner)

    return noises, panel, (7.4, 3.1)


def allowed(share: Any, epsilon: float) -> Any:
    """The least share that is overlooked, by (ε, δ) (Kairouz, Oh, Viswanath 2015)."""
    first = 1 - DELTA - math.exp(epsilon) * share
    second = math.exp(-epsilon) * (1 - DELTA - share)
    return np.maximum(np.maximum(first, second), 0)


def one_step() -> tuple[Any, Panel, tuple[float, float]]:
    raw = np.array(GRADIENTS)
    norms = np.linalg.norm(raw, axis=1, keepdims=True)
    clipped = raw * np.minimum(1, CLIP / norms)
    total = clipped.sum(0)
    noise = np.random.RandomState(0).normal(0, CLIP, 2)  # a multiplier of 1

    def panel(figure: Any) -> None:
        axes = figure.subplots(1, 4)
        titles = ("1  one gradient each", "2  clipped", "3  added up", "4  noise, once")
        for place, title in zip(axes, titles, strict=True):
            place.set(xlim=(-1.9, 3.0), ylim=(-1.75, 2.95), xticks=[], yticks=[])
            place.set_aspect("equal")
            place.set_title(title)
            place.spines[:].set_visible(False)
        for place, vectors in zip(axes, (raw, clipped), strict=False):
            circle(place, (0, 0), CLIP)
            for vector, before in zip(vectors, norms[:, 0], strict=True):
                arrow(place, (0, 0), vector, ORANGE if before > CLIP else BLUE)
        axes[0].text(0, -1.45, "clipping bound", ha="center", fontsize=8, color=QUIET)
        start = np.zeros(2)
        for vector, before in zip(clipped, norms[:, 0], strict=True):
            arrow(axes[2], start, vector, ORANGE if before > CLIP else BLUE, width=1.0)
            start = start + vector
        arrow(axes[2], (0, 0), total, INK)
        for radius in (1, 2):
            axes[3].add_patch(
                figure_circle(total, radius * CLIP, facecolor=GREEN, alpha=0.16, linewidth=0)
            )
        arrow(axes[3], (0, 0), total, QUIET, width=1.0)
        arrow(axes[3], total, noise, GREEN, width=1.0)
        arrow(axes[3], (0, 0), total + noise, INK)
        quiet = {"ha": "center", "fontsize": 8, "color": QUIET}
        axes[3].text(0.9, -1.7, "only the thick arrow is seen", **quiet)

    return {"gradients": GRADIENTS, "noise": noise.tolist()}, panel, (7.4, 2.3)


def figure_circle(centre: Any, radius: float, **style: Any) -> Any:
    from matplotlib.patches import Circle

    return Circle(tuple(centre), radius, **style)


def circle(axes: Any, centre: Any, radius: float) -> None:
    style = {"facecolor": "none", "edgecolor": QUIET, "linestyle": "--", "linewidth": 0.9}
    axes.add_patch(figure_circle(centre, radius, **style))


def arrow(axes: Any, start: Any, vector: Any, colour: str, width: float = 1.6) -> None:
    end = (start[0] + vector[0], start[1] + vector[1])
    look = {"arrowstyle": "-|>", "color": colour, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, tuple(start), arrowprops={**look, "mutation_scale": 8})


def growth() -> tuple[Any, Panel, tuple[float, float]]:
    points = load("concepts")["growth"]

    def panel(figure: Any) -> None:
        axes = figure.subplots()
        for noise, colour in zip(NOISES, (ORANGE, COLOURS[3], BLUE, GREEN), strict=True):
            row = [point for point in points if point["noise"] == noise]
            steps, spent = ([point[name] for point in row] for name in ("steps", "epsilon"))
            axes.plot(steps, spent, "o-", color=colour, markersize=3)
            axes.annotate(
                f"noise {noise:g}",
                (steps[-1], spent[-1]),
                (6, -3),
                textcoords="offset points",
                color=colour,
                fontsize=8,
            )
        axes.set(xscale="log", yscale="log", xlabel="releases", ylabel="ε spent")
        axes.set_xticks((100, 1000, 10_000), ("100", "1,000", "10,000"))
        ticks = (0.1, 0.3, 1, 3, 10)
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([], minor=True)
        axes.set_xlim(None, 27_000)
        axes.grid(color=FAINT)
        axes.set_axisbelow(True)

    return points, panel, (5.6, 3.2)


def selection() -> tuple[Any, Panel, tuple[float, float]]:
    rows = load("selection")["rows"]
    numbers = [(row["data"], row["claimed"], row["exact"]) for row in rows]

    def panel(figure: Any) -> None:
        axes = figure.subplots()
        names = list(dict.fromkeys(name for name, *_ in numbers))
        titles = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
        line = len(numbers) + len(names)
        labels = []
        for name in names:
            line -= 1
            labels.append((line, titles.get(name, "IMDb")))
            for _, claimed, proved in (one for one in numbers if one[0] == name):
                line -= 1
                axes.plot([claimed, proved], [line, line], color=ORANGE, linewidth=2)
                axes.plot(claimed, line, "o", color=PAPER, markeredgecolor=QUIET, markersize=6)
                axes.plot(proved, line, "o", color=ORANGE, markersize=6)
                axes.text(proved + 0.12, line - 0.3, f"{proved:.2f}", fontsize=7.5)
                axes.text(claimed - 0.12, line - 0.3, f"{claimed:.2f}", fontsize=7.5, ha="right")
        axes.set_yticks(*zip(*labels, strict=True))
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.plot([], [], "o", color=PAPER, markeredgecolor=QUIET, label="claimed")
        axes.plot([], [], "o", color=ORANGE, label="proved")
        axes.set(xlim=(0.4, 6.8), xlabel="ε of the published settings")
        axes.set_ylim(-0.7, len(numbers) + len(names) - 0.3)
        axes.grid(axis="x", color=FAINT)
        axes.set_axisbelow(True)
        figure.legend(loc="outside upper center", ncols=2, frameon=False, fontsize=8)

    return numbers, panel, (5.6, 4.4)


def audited() -> tuple[Any, Panel, tuple[float, float]]:
    rows = []
    for one in load("canaries-cpu")["audits"]:
        if one["rate"] == 1:
            first = one["runs"][0]
            rows.append((f"budget {one['epsilon']:g}", first["bounds"], first["upper"]))
    kept = [(name, bounds["approximate"], upper) for name, bounds, upper in rows]
    broken = load("concepts")["too_quiet"]
    kept.append(("a quarter\nof the noise", broken["lower"], broken["upper"]))

    def panel(figure: Any) -> None:
        axes = figure.subplots()
        end = 9.0
        for line, (_, lower, upper) in enumerate(reversed(kept)):
            refuted = lower > upper
            axes.barh(line, end - upper, 0.5, upper, color=BLUE, alpha=0.2, linewidth=0)
            axes.barh(line, lower, 0.5, color=ORANGE, alpha=0.25, linewidth=0)
            axes.plot([upper] * 2, [line - 0.3, line + 0.3], color=BLUE, linewidth=2)
            axes.plot([lower] * 2, [line - 0.3, line + 0.3], color=ORANGE, linewidth=2)
            axes.text(lower, line + 0.34, f"{lower:.2f}", ha="center", fontsize=7.5)
            axes.text(upper, line + 0.34, f"{upper:.2f}", ha="center", fontsize=7.5)
            told = "they overlap: the statement is false" if refuted else "ε lies here"
            middle = end - 2.3 if refuted else (lower + upper) / 2
            if refuted or upper > 3:
                axes.text(middle, line - 0.08, told, ha="center", fontsize=8)
        axes.set_yticks(range(len(kept)), [name for name, *_ in reversed(kept)])
        axes.tick_params(left=False)
        axes.spines["left"].set_visible(False)
        axes.set(xlim=(0, end), ylim=(-0.5, len(kept) - 0.2), xlabel="ε")
        above = {"facecolor": BLUE, "alpha": 0.2, "label": "ruled out by the ledger: proved"}
        below = {"facecolor": ORANGE, "alpha": 0.25, "label": "ruled out by the audit: shown"}
        from matplotlib.patches import Patch

        handles = [Patch(linewidth=0, **below), Patch(linewidth=0, **above)]
        beside = {"loc": "outside upper center", "ncols": 2, "frameon": False, "fontsize": 8}
        figure.legend(handles=handles, **beside)

    return kept, panel, (6.2, 2.9)


PICTURES = {
    "concepts-epsilon": epsilon_says,
    "concepts-step": one_step,
    "concepts-growth": growth,
    "concepts-selection": selection,
    "concepts-audit": audited,
}


def draw(name: str) -> bytes:
    """A picture for light and dark pages, with the digest of its numbers."""
    numbers, panel, size = PICTURES[name]()
    text = render_figure(panel, size=size, style=STYLE).decode()
    rules = "".join(
        f'[style*="{part}: {light}"]{{{part}:{dark}!important}}'
        for light, dark in DARK.items()
        for part in ("fill", "stroke")
    )
    css = f"<style>@media (prefers-color-scheme: dark){{{rules}}}</style>"
    return stamped(text, numbers, f"{css}\n ")


def stale() -> list[str]:
    """The pictures that are not drawn from the numbers of today."""
    return [
        name
        for name, numbers in ((name, make()[0]) for name, make in PICTURES.items())
        if not is_of(FIGURES / f"{name}.svg", numbers)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compute", action="store_true", help="ask accountant and auditor again")
    parser.add_argument("--check", action="store_true", help="fail if a picture is out of date")
    parser.add_argument("--out", type=Path, default=FIGURES)
    options = parser.parse_args()
    if options.check:
        sys.exit("\n".join(f"{name}.svg is out of date" for name in stale()) or None)
    if options.compute:
        write_atomically(RESULTS / "concepts.json", to_json(compute()))
    for name in PICTURES:
        write_atomically(options.out / f"{name}.svg", draw(name))


if __name__ == "__main__":
    main()
