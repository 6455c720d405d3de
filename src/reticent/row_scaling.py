"""Rows of numbers brought to a public size, each on its own.

Nothing here looks at two rows at once, so it costs no privacy. Only PyTorch is needed: a saved
classifier carries this function's text with it.
"""

from __future__ import annotations

import torch


def scale_rows(
    rows: torch.Tensor,
    low: torch.Tensor | None,
    high: torch.Tensor | None,
    length: str | float | None,
) -> torch.Tensor:
    """Map [low, high] to [-1, 1], clamping; then bring every row to length 1, or to at most 1.

    Args:
        rows: [n, features].
        low: Public lower bounds, one or one for each feature; None leaves values as they are.
        high: Public upper bounds.
        length: `unit` divides each row by its own length; a number is a public bound on the
            length: rows are cut to it and divided by it; None leaves lengths as they are.

    Example:
        >>> scale_rows(torch.tensor([[3.0, 4.0], [0.0, 0.0]]), None, None, "unit").tolist()
        [[0.6000..., 0.8000...], [0.0, 0.0]]
        >>> scale_rows(torch.tensor([[3.0, 4.0]]), None, None, 10.0).tolist()
        [[0.3000..., 0.4000...]]
    """
    if low is not None and high is not None:
        rows = 2 * (rows.clamp(low, high) - low) / (high - low) - 1
    if length is None:
        return rows
    if isinstance(length, str):  # "unit"
        largest = rows.abs().amax(1, keepdim=True)
        rows = rows / torch.where(largest > 0, largest, 1)  # else squares might overflow
        norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        return rows / torch.where(norms > 0, norms, 1)
    rows = rows / length
    return rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp(min=1)
