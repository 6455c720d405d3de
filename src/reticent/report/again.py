"""How to do a run again: its settings as TOML, and the command."""

from __future__ import annotations

import json
import math
from typing import Any

_BUDGET = ("epsilon", "delta", "noise")  # refused beside non_private
CONFIG_FILE, COMMAND = "run.toml", "reticent train --config run.toml --out runs/again"


def to_toml(settings: dict[str, Any]) -> str:
    """Settings as a file for `reticent train --config`.

    >>> print(to_toml({"data": "digits", "lr": 3.0, "noise": None, "model_options": {"width": 8}}))
    data = "digits"
    lr = 3.0
    model_options = { width = 8 }
    """
    unmeant = _BUDGET if settings.get("non_private") else ()
    return "\n".join(
        f"{_key(name)} = {_value(value)}"
        for name, value in settings.items()
        if value is not None and value != {} and name not in unmeant
    )


def _key(name: str) -> str:
    bare = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if bare else _text(name)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            return str(value)
        return repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(one) for one in value) + "]"
    if isinstance(value, dict):
        inside = ", ".join(
            f"{_key(str(k))} = {_value(v)}" for k, v in value.items() if v is not None
        )
        return f"{{ {inside} }}" if inside else "{}"
    return _text(str(value))
