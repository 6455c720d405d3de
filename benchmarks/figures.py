"""Draw `docs/figures`; needs `pip install reticent[plots]`."""

from __future__ import annotations

import json
from pathlib import Path

from reticent.audit.roc_figure import draw_roc
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


if __name__ == "__main__":
    threshold()
    attacks()
