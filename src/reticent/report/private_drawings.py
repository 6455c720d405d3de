"""Charts of numbers computed from the records without noise: for whoever holds the records."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

from reticent.report.charts import COLOUR, DASHES, SERIES, Chart, percent, share
from reticent.report.words import delta_text, epsilon_text, most_found, number

LEAST = 1e-4  # rates below are drawn at the edge


def roc(membership: dict[str, Any], epsilon: float | None, delta: float) -> Chart:
    """Every attack's ROC curve on logarithmic axes, and what ε allows at most."""
    curves = {
        str(name): [[(float(x), float(y)) for x, y in found["roc"]] for found in results]
        for name, results in membership["attacks"].items()
    }
    first = {str(name): results[0] for name, results in membership["attacks"].items()}

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.grid(True, axis="both")
        rates = [LEAST * (1 / LEAST) ** (k / 100) for k in range(101)]
        if epsilon is not None:
            allowed = [most_found(epsilon, delta, rate) for rate in rates]
            axes.fill_between(rates, allowed, 1, color=COLOUR["rule"], alpha=0.55, linewidth=0)
            axes.plot(rates, allowed, color=COLOUR["ink"], linewidth=1, label="ε allows")
        axes.plot(rates, rates, color=COLOUR["soft"], linewidth=1, dashes=(2, 2), label="guessing")
        for place, (name, found) in enumerate(curves.items()):
            for turn, curve in enumerate(found):
                # fewer than one of them cannot be accused: nothing is known farther left
                least = max(LEAST, 1 / int(first[name]["n_nonmembers"]))
                axes.plot(
                    [max(x, least) for x, _ in curve],
                    [max(y, LEAST) for _, y in curve],
                    drawstyle="steps-post",
                    color=SERIES[place % len(SERIES)],
                    linestyle=DASHES[place % len(DASHES)],
                    linewidth=1.4,
                    label=name if turn == 0 else None,
                )
        axes.set(xscale="log", yscale="log", xlim=(LEAST, 1), ylim=(LEAST, 1))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(percent)
        axes.set_xlabel("non-members accused")
        axes.set_ylabel("members found")
        figure.legend(loc="outside lower center", ncols=3, handlelength=2.2, columnspacing=1.2)

    best = max(first.items(), key=lambda one: one[1]["auc"]["value"])
    return Chart(
        "roc",
        "Attacks on membership",
        "Members found against non-members wrongly accused, both axes logarithmic: the lower "
        "left, where few are accused, matters most. Curves begin at one accused non-member. "
        + ("" if epsilon is None else "The grey area is ruled out by ε."),
        f"ROC curves of {len(curves)} membership attacks on logarithmic axes; the largest area "
        f"under a curve is {best[1]['auc']['value']:.3f}, by {best[0]}.",
        draw,
        ("attack", "AUC", "interval", "found at 1 % accused", "at 0.1 %", "better than guessing"),
        [
            (
                name,
                f"{found['auc']['value']:.3f}",
                f"{found['auc']['low']:.3f} – {found['auc']['high']:.3f}",
                share(_at(curves[name][0], 0.01), 2),
                share(_at(curves[name][0], 0.001), 2),
                "cannot be told" if found["chance"] else "yes" if _above(found) else "worse",
            )
            for name, found in first.items()
        ],
        size=(4.2, 4.2),
    )


def _above(found: dict[str, Any]) -> bool:
    return bool(found["auc"]["value"] > 0.5)


def _at(curve: list[tuple[float, float]], rate: float) -> float:
    """The largest TPR of a threshold with at most this FPR."""
    return max((y for x, y in curve if x <= rate), default=0.0)


def bounds(canaries: dict[str, Any]) -> Chart:
    """What canaries prove at least, against what the ledger of that training proves at most."""
    lower = [
        (str(one["family"]), None if one["epsilon"] is None else float(one["epsilon"]), one)
        for one in canaries["bounds"]
    ]
    upper = canaries["upper"]["epsilon"]
    largest = max([value for _, value, _ in lower if value is not None], default=0.0)

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.grid(False)
        axes.grid(True, axis="x")
        names = [name for name, _, _ in lower]
        for place, (_, value, _) in enumerate(lower):
            axes.barh(place, value or 0.0, color=COLOUR["c1"], height=0.5)
            axes.annotate(
                "no bound" if value is None else f"≥ {value:.2f}",
                (value or 0.0, place),
                textcoords="offset points",
                xytext=(5, 0),
                va="center",
            )
        if upper is not None:
            axes.axvline(upper, color=COLOUR["c2"], linewidth=1.6)
            axes.annotate(
                f"ledger: ≤ {upper:.2f}",
                (upper, 0),
                xycoords=("data", "axes fraction"),
                xytext=(-5, 1.02),
                textcoords=("offset points", "axes fraction"),
                ha="right",
                color=COLOUR["c2"],
            )
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, max(largest * 1.25, (upper or 0.0) * 1.08, 1e-3))
        axes.set_xlabel("ε")

    above = upper is not None and largest > upper
    return Chart(
        "bounds",
        "ε from both sides",
        "Of another training by the same settings, with records planted to be found. Bars: ε is "
        "at least that, from guessing which of them were used. Line: ε is at most that, from the "
        "ledger. " + ("A bar beyond the line speaks against it." if above else ""),
        f"Bar chart of {len(lower)} lower bounds on ε, the largest {largest:.2f}, against the "
        f"ledger's upper bound {epsilon_text(upper)}.",
        draw,
        ("lower bound", "ε at least", "confidence", "assumes"),
        [
            (
                name,
                "no bound" if value is None else f"{value:.4f}",
                share(float(one["confidence"]), 0),
                str(one["assumes"]),
            )
            for name, value, one in lower
        ],
        size=(4.2, 1.3 + 0.36 * max(len(lower), 2)),
    )


def norms(seen: dict[str, Any]) -> Chart:
    """The lengths of per-record gradients before clipping."""
    edges, counts = [float(e) for e in seen["edges"]], [int(c) for c in seen["counts"]]
    if len(edges) != len(counts) + 1 or len(counts) < 1:
        raise ValueError("the histogram of gradient norms has other edges than counts")
    low, high = (float(end) for end in seen["bound"])
    total, above = int(seen["records"]), int(seen["above"])
    longer_share = share(above / max(total, 1))

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        heights = [count / max(total, 1) for count in counts]
        longer = [left >= high for left in edges[:-1]]
        axes.bar(
            edges[:-1],
            heights,
            width=[b - a for a, b in pairwise(edges)],
            align="edge",
            color=[COLOUR["c2" if more else "c1"] for more in longer],
            edgecolor=COLOUR["card"],
            linewidth=0.6,
        )
        axes.axvline(high, color=COLOUR["ink"], linewidth=1.2)
        axes.annotate(
            f"clip {number(high)}",
            (high, 1),
            xycoords=("data", "axes fraction"),
            xytext=(5, -4),
            textcoords="offset points",
            va="top",
        )
        axes.set_ylim(top=1.18 * max(heights))
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(lambda value, _: delta_text(value))
        axes.yaxis.set_major_formatter(percent)
        axes.set_xlabel("gradient norm of a record, before clipping")

    bound = number(high) if low == high else f"{number(low)} to {number(high)}"
    return Chart(
        "norms",
        "Gradient norms and the clip",
        f"{longer_share} of {total:,} gradients were longer than the bound of {bound}.",
        f"Histogram of gradient norms; {longer_share} lie above the clipping bound {bound}.",
        draw,
        ("norm from", "to", "gradients"),
        [
            (number(a), number(b), f"{count:,}")
            for a, b, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ],
    )


def trials(releases: list[dict[str, Any]]) -> Chart | None:
    """How many candidates each release took, for methods that try until one passes."""
    took = [int(line["trials"]) for line in releases if "trials" in line]
    if not took:
        return None
    tally = {k: took.count(k) for k in sorted(set(took))}

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        axes.bar(list(tally), list(tally.values()), color=COLOUR["c1"], width=0.7)
        axes.set_xlabel("trials in a release")
        axes.set_ylabel("releases")
        for axis in (axes.xaxis, axes.yaxis):
            axis.get_major_locator().set_params(integer=True)

    mean = math.fsum(took) / len(took)
    return Chart(
        "trials",
        "Trials per release",
        f"{mean:.2f} on average, {max(took)} at most.",
        f"Bar chart of trials per release: {mean:.2f} on average, {max(took)} at most.",
        draw,
        ("trials", "releases"),
        [(f"{k}", f"{count:,}") for k, count in tally.items()],
    )
