"""What a training computed: gradients of single records, as expected from public numbers.

How many records were really drawn is private; rates and numbers of draws are not, but where a
method hides how often it tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reticent.methods import DPIS, PDSGD, Method, Selena

_GRADIENTS, _NORMS = "sampling", "sum-sampling"  # streams of `Run.sample`


def gradient_evaluations(
    method: Method, conduct: Mapping[str, Any], n: int | None, steps: int
) -> float | None:
    """How many gradients of single records a training computed; None where that is not known.

    Args:
        method: What was trained with.
        conduct: What the run drew, as in `run.json`.
        n: The nominal number of records.
        steps: Releases that were made.

    Example:
        >>> from reticent.methods import DPSGD
        >>> drawn = {"draws": [{"stream": "sampling", "rate": 0.5, "count": 10}]}
        >>> gradient_evaluations(DPSGD(batch=50), drawn, 100, 10)
        500.0
    """
    if isinstance(method, PDSGD):
        return None  # as many batches as it took to decide
    if isinstance(method, Selena):
        first = method.split(steps)
        return float(method.batch * (first * method.models + steps - first))
    counts = {_NORMS: 0}
    for line in conduct.get("draws", ()):
        if line["count"] is None:
            return None
        counts[line["stream"]] = counts.get(line["stream"], 0) + int(line["count"])
    made = counts.get(_GRADIENTS, steps)  # what is shuffled is not drawn: once a step
    # DPIS computes on more records than it keeps, and on all of them once an epoch
    each = method.drawn if isinstance(method, DPIS) else getattr(method, "batch", None)
    if each is None or (counts[_NORMS] and n is None):
        return None
    return float(each * made + (n or 0) * counts[_NORMS])
