"""Which formats float32 products may be rounded to on the way, and how to forbid it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def _switches(device: torch.device) -> tuple[Any, ...]:
    """The settings of this device's matrix products and convolutions; none before torch 2.9."""
    backends: Any = torch.backends
    if device.type == "cuda":
        return (
            (backends.cuda.matmul, backends.cudnn.conv) if hasattr(backends.cudnn, "conv") else ()
        )
    return (
        (backends.mkldnn.matmul, backends.mkldnn.conv) if hasattr(backends.mkldnn, "matmul") else ()
    )


def allowed(device: torch.device) -> set[str]:
    """Formats in use, such as "tf32" and "bf16"; cuDNN convolutions use TF32 unless told not to."""
    switches = _switches(device)
    if switches:
        return {str(switch.fp32_precision) for switch in switches}
    found = {"highest": "", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]
    backends: Any = torch.backends
    tf32 = backends.cuda.matmul.allow_tf32 or backends.cudnn.allow_tf32
    return {found, "tf32" if tf32 and device.type == "cuda" else ""}


@contextmanager
def forbidden(device: torch.device) -> Iterator[None]:
    """Full float32 products, for comparisons; the settings come back as they were."""
    switches = _switches(device)
    if switches:
        before = [switch.fp32_precision for switch in switches]
        try:
            for switch in switches:
                switch.fp32_precision = "ieee"
            yield
        finally:
            for switch, value in zip(switches, before, strict=True):
                switch.fp32_precision = value
        return
    precision = torch.get_float32_matmul_precision()
    backends: Any = torch.backends
    cudnn = backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = False
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        backends.cudnn.allow_tf32 = cudnn
