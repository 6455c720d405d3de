"""Whether a state can really be put back: nothing of a rejected candidate may live outside it.

`State` restores what optimizers and schedulers keep where PyTorch says they keep it. A wrapper may
keep more in attributes of its own, and a hook is called for candidates too: both are found here, by
trying, before anything is spent.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, optimizer
from torch.optim.lr_scheduler import LRScheduler

from reticent.errors import OptionError
from reticent.training.state import State

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
# set by PyTorch itself once a step was made, and read only to warn about the order of calls
_HARMLESS = ("_opt_called", "_step_count")
_DEPTH = 6


def check_restorable(state: State) -> None:
    """Make two steps with a made-up gradient, put the state back, and look for what stays."""
    name = type(state.optimizer).__name__
    hooks = (
        # a wrapper that never called its base class has none
        *getattr(state.optimizer, "_optimizer_step_pre_hooks", {}).values(),
        *getattr(state.optimizer, "_optimizer_step_post_hooks", {}).values(),
        *optimizer._global_optimizer_pre_hooks.values(),
        *optimizer._global_optimizer_post_hooks.values(),
    )
    if hooks:
        raise OptionError(
            "optimizer",
            name,
            "has step hooks, which would see candidates that are rejected; remove them (for an "
            "average of the weights there is average=)",
        )
    before = _kept(state)
    snapshot = state.snapshot()
    for size in (1e-3, 1e-2):
        state.advance(torch.full_like(state.parameters.values, size))
    state.restore(snapshot)
    after = _kept(state)
    changed = sorted(
        place for place in {*before, *after} if not _same(before.get(place), after.get(place))
    )
    if changed:
        raise OptionError(
            "optimizer",
            name,
            f"keeps {changed[0]!r} outside its state: a rejected candidate would leave a trace "
            "there; use an optimizer and scheduler of torch.optim, unwrapped",
        )


def _kept(state: State) -> dict[str, Any]:
    """Every tensor and plain value that the optimizer and the scheduler can reach."""
    found: dict[str, Any] = {}
    seen: set[int] = {id(state.parameters)}
    _walk("optimizer", state.optimizer, found, seen, 0)
    _walk("scheduler", state.scheduler, found, seen, 0)
    return found


def _walk(place: str, value: Any, found: dict[str, Any], seen: set[int], depth: int) -> None:
    if isinstance(value, _PLAIN):
        found[place] = value
        return
    if depth > _DEPTH or isinstance(value, nn.Parameter):  # parameters are the state's own
        return
    if isinstance(value, torch.Tensor):
        found[place] = value.detach().clone()
    elif isinstance(value, dict):
        for number, (key, item) in enumerate(value.items()):
            label = key if isinstance(key, (str, int)) else number
            _walk(f"{place}.{label}", item, found, seen, depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, item in enumerate(value):
            _walk(f"{place}.{number}", item, found, seen, depth + 1)
    elif isinstance(value, (Optimizer, LRScheduler)) or (
        hasattr(value, "__dict__") and not callable(value) and not isinstance(value, type)
    ):
        if id(value) in seen:
            return
        seen.add(id(value))
        for key, item in vars(value).items():
            if key not in _HARMLESS:
                _walk(f"{place}.{key}", item, found, seen, depth + 1)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return a.shape == b.shape and torch.equal(a, b)
    return type(a) is type(b) and (a == b or (a != a and b != b))
