"""ROC curves of attacks on logarithmic axes, where the few false accusations are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp
from pathlib import Path
from typing import Any

from reticent.figures import COLOURS, save_figure

LEAST = 1e-4  # rates below are drawn at the edge
SIZE = (4.6, 3.6)
Curve = Sequence[Sequence[float]]  # (FPR, TPR) points, as `Leakage.roc` has them


def draw_roc(
    path: str | Path,
    curves: Mapping[str, Sequence[Curve]],
    *,
    epsilon: float | None = None,
    delta: float = 0.0,
    mode: int = 0o600,
) -> None:
    """Draw every attack's curve; with ε, what (ε, δ) differential privacy allows at most.

    Args:
        path: Where to; ends in .svg or .png.
        curves: Of each attack, one curve for each target.
        epsilon: An upper bound that the training promises.
        delta: Its δ.
        mode: Who may read the file; its owner alone, as the records that it was computed from.
    """
    save_figure(path, roc_panel(curves, epsilon, delta), size=SIZE, mode=mode)


def roc_panel(
    curves: Mapping[str, Sequence[Curve]], epsilon: float | None = None, delta: float = 0.0
) -> Callable[[Any], None]:
    """What draws the curves into an empty figure."""

    def panel(figure: Any) -> None:
        axes = figure.subplots()
        for place, (name, found) in enumerate(curves.items()):
            for number, curve in enumerate(found):
                fpr, tpr = zip(*curve, strict=True)
                colour = COLOURS[place % len(COLOURS)]
                label = name if number == 0 else None
                axes.plot(_above(fpr), _above(tpr), color=colour, label=label)
        ends = [LEAST * (1 / LEAST) ** (i / 100) for i in range(101)]
        axes.plot(ends, ends, color="0.6", linewidth=0.8, linestyle=":", label="guessing")
        if epsilon is not None:
            most = [_allowed(rate, epsilon, delta) for rate in ends]
            axes.plot(ends, most, color="0.2", linewidth=0.8, linestyle="--", label="ε allows")
        axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
        axes.set_xlabel("false positive rate")
        axes.set_ylabel("true positive rate")
        axes.legend(frameon=False, fontsize=7, loc="lower right")

    return panel


def _allowed(fpr: float, epsilon: float, delta: float) -> float:
    """The largest TPR at this FPR (Kairouz, Oh, Viswanath 2015)."""
    return min(exp(epsilon) * fpr + delta, 1 - exp(-epsilon) * (1 - fpr - delta), 1.0)


def _above(rates: Sequence[float]) -> list[float]:
    return [max(rate, LEAST) for rate in rates]
