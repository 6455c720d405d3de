"""Per-example gradients: from a batch to a clipped sum, exactly."""

from __future__ import annotations

from reticent.gradients.batches import synthetic_like
from reticent.gradients.checking import Check, check
from reticent.gradients.clipping import Automatic, Clipping, Flat, Normalised, PerLayer
from reticent.gradients.engine import clipped_sum, clipped_sums
from reticent.gradients.isolating import isolation
from reticent.gradients.reference import per_example
from reticent.gradients.repeating import RepeatedLosses, RepeatedSum
from reticent.gradients.rules import CompositeRule, Rule, register_rule, unregister_rule
from reticent.gradients.sums import ClippedSum
from reticent.gradients.validation import replace_batchnorm, validate

__all__ = [
    "Automatic",
    "Check",
    "ClippedSum",
    "Clipping",
    "CompositeRule",
    "Flat",
    "Normalised",
    "PerLayer",
    "RepeatedLosses",
    "RepeatedSum",
    "Rule",
    "check",
    "clipped_sum",
    "clipped_sums",
    "isolation",
    "per_example",
    "register_rule",
    "replace_batchnorm",
    "synthetic_like",
    "unregister_rule",
    "validate",
]
