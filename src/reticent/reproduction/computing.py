"""What is computed without training an entry's model: functions by the kind of their table.

A function is called with the entry's settings, its options and a device, and returns numbers or
lists of numbers by measure. The modules are imported when a table asks for them.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from reticent.cli.settings import Settings
from reticent.errors import OptionError

Compute = Callable[[Settings, dict[str, Any], str], dict[str, Any]]
_HERE = "reticent.reproduction"
# kind: module and function
_WHERE: dict[str, tuple[str, str]] = {
    "noise": (f"{_HERE}.noise", "compute"),
    "distance": (f"{_HERE}.deniability", "distance"),
    "rejection": (f"{_HERE}.deniability", "rejection"),
    "updates": (f"{_HERE}.deniability", "updates"),
    "time": (f"{_HERE}.deniability", "step_time"),
}


def function(kind: str) -> Compute:
    """The function for tables of this kind."""
    if kind not in _WHERE:
        raise OptionError("kind", kind, f"is not computed; those that are: {', '.join(_WHERE)}")
    module, name = _WHERE[kind]
    found: Compute = getattr(import_module(module), name)
    return found
