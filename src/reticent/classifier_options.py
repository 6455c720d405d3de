"""Options of a private classifier, checked and made into numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from reticent.errors import DataError, OptionError, positive


def delta_for(delta: float | str, n: int) -> float:
    """δ as a number; `auto` is well below one record in n."""
    if not isinstance(delta, str):
        return positive("delta", delta)
    if delta != "auto":
        raise OptionError("delta", delta, "must be a number or 'auto'")
    return min(1e-5, 0.1 / n)


def row_norm_for(row_norm: Any) -> str | float | None:
    """The `length` of `scale_rows`, checked."""
    if row_norm is None or (isinstance(row_norm, str) and row_norm == "unit"):
        return row_norm
    if isinstance(row_norm, str):
        raise OptionError("row_norm", row_norm, "must be 'unit', a number or None")
    return positive("row_norm", row_norm)


def bounds_for(
    bounds: Any, features: int | None
) -> tuple[torch.Tensor, torch.Tensor] | tuple[None, None]:
    """The public bounds as tensors, checked."""
    if bounds is None:
        return None, None
    try:
        low, high = (np.asarray(side, dtype=np.float64) for side in bounds)
    except (TypeError, ValueError):
        raise OptionError("bounds", bounds, "must be a pair (low, high) of numbers") from None
    for side in (low, high):
        if side.ndim > 1 or (side.ndim == 1 and features not in (None, len(side))):
            raise OptionError(
                "bounds", bounds, f"must be numbers, or one for each of {features} features"
            )
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise OptionError("bounds", bounds, "must be finite, each low below its high")
    return torch.from_numpy(low), torch.from_numpy(high)


def encoded(labels: np.ndarray[Any, Any], classes: np.ndarray[Any, Any]) -> Any:
    """Positions in `classes`, int64."""
    known = np.isin(labels, classes)
    if not known.all():
        first = int(np.flatnonzero(~known)[0])
        raise DataError(
            f"label {labels[first]!r} (row {first}) is not among the classes "
            f"{', '.join(map(str, classes.tolist()))}"
        )
    return np.searchsorted(classes, labels).astype(np.int64)
