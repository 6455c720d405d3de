"""Whether a training diverged: said of what it released, so it costs nothing.

A training is never cut off for it. Parameters between releases need not be public (a deniability
test promises something of the last ones only), and the planned releases are paid for anyway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

# In single precision such a parameter moves in steps of 64 or more: nothing is learned any more.
HUGE = 1e9


def divergence(
    model: nn.Module, metrics: Sequence[Mapping[str, float]] = ()
) -> dict[str, Any] | None:
    """What shows that a released model diverged, as plain data; None if nothing does.

    Args:
        model: The model as it is released.
        metrics: What was measured on held-out records, the last line after the last release; a
            `loss` that is not finite counts.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> divergence(model) is None
        True
        >>> _ = nn.init.constant_(model.bias, math.nan)
        >>> divergence(model)
        {'not_finite': 1, 'huge': 0, 'parameters': 3, 'outputs': False}
    """
    trained = [p.detach() for p in model.parameters() if p.requires_grad]
    if not trained:
        return None
    # one wait for the device, whatever the number of tensors
    counts = torch.stack([torch.stack([(~p.isfinite()).sum(), _huge(p)]) for p in trained])
    not_finite, huge = counts.sum(0).tolist()
    loss = metrics[-1].get("loss", 0.0) if metrics else 0.0
    outputs = not math.isfinite(loss)
    if not (not_finite or huge or outputs):
        return None
    total = sum(p.numel() for p in trained)
    return {"not_finite": not_finite, "huge": huge, "parameters": total, "outputs": outputs}


def _huge(values: torch.Tensor) -> torch.Tensor:
    return (values.isfinite() & (values.abs() > HUGE)).sum()


def in_words(found: Mapping[str, Any]) -> str:
    """One sentence for people, with what to do about it."""
    total, parts = found["parameters"], []
    if found["not_finite"]:
        parts.append(f"{found['not_finite']:,} of {total:,} parameters are not finite")
    if found["huge"]:
        parts.append(f"{found['huge']:,} of {total:,} parameters are larger than {HUGE:g}")
    if found["outputs"]:
        parts.append("outputs for held-out records are not finite, or their loss is not")
    return (
        f"the training diverged: {', '.join(parts)}. The model is of no use; what was spent is "
        "spent. Train with a smaller learning rate"
    )
