"""One rule file per layer family; importing this package fills the registry."""

from __future__ import annotations

from reticent.gradients.rules import attention, conv, embedding, linear, norm, recurrent
from reticent.gradients.rules.base import (
    CompositeRule,
    NoFastPathError,
    Rule,
    register_rule,
    unregister_rule,
)

__all__ = [
    "CompositeRule",
    "NoFastPathError",
    "Rule",
    "attention",
    "conv",
    "embedding",
    "linear",
    "norm",
    "recurrent",
    "register_rule",
    "unregister_rule",
]
