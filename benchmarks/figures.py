"""Draw `docs/figures`; needs `pip install reticent[plots]`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reticent.audit.roc_figure import draw_roc
from reticent.figures import COLOURS, save_figure
from reticent.methods.threshold_figure import draw

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


if __name__ == "__main__":
    threshold()
    attacks()
    poisoning()
