"""Which formats float32 products may be rounded to on the way, and how to choose.

| precision | layers compute in                | norms and sums | the guarantee                   |
|-----------|----------------------------------|----------------|---------------------------------|
| float32   | float32                          | float32        | bound less a slack of 5e-5      |
| tf32      | products of 11 bits              | the same       | bound less a slack of 4e-3      |
| bf16      | bfloat16, where autocast says so | float32 or     | that of the products norms and  |
|           |                                  | TF32 products  | sums are made of                |

A gradient is whatever the layers computed: rounding there changes the model's progress, not what
one record can contribute. That is decided by norms and sums, which are never in half precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from reticent.errors import OptionError, one_of

PRECISIONS = ("float32", "tf32", "bf16")


def _switches(device: torch.device) -> tuple[Any, ...]:
    """The settings of matrix products, convolutions and recurrent layers; none before torch 2.9."""
    backends: Any = torch.backends
    own = backends.cudnn if device.type == "cuda" else backends.mkldnn
    if not hasattr(own, "conv"):
        return ()
    products = backends.cuda.matmul if device.type == "cuda" else own.matmul
    return products, own.conv, own.rnn


def allowed(device: torch.device) -> set[str]:
    """Formats in use, such as "tf32" and "bf16"; cuDNN uses TF32 unless told not to."""
    switches = _switches(device)
    if switches:
        return {str(switch.fp32_precision) for switch in switches}
    found = {"highest": "", "high": "tf32", "medium": "bf16"}[torch.get_float32_matmul_precision()]
    backends: Any = torch.backends
    tf32 = backends.cuda.matmul.allow_tf32 or backends.cudnn.allow_tf32
    return {found, "tf32" if tf32 and device.type == "cuda" else ""}


def of_convolutions(device: torch.device) -> set[str]:
    """The same for convolutions alone."""
    switches = _switches(device)
    if switches:
        return {str(switches[1].fp32_precision)}
    return {"tf32"} if torch.backends.cudnn.allow_tf32 and device.type == "cuda" else set()


@contextmanager
def products_like_convolutions(device: torch.device) -> Iterator[None]:
    """Matrix products in the format of convolutions, where they stand for a part of one."""
    switches = _switches(device)
    if not switches:
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = bool(torch.backends.cudnn.allow_tf32)
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        return
    products, convolutions, _ = switches
    before = products.fp32_precision
    products.fp32_precision = convolutions.fp32_precision
    try:
        yield
    finally:
        products.fp32_precision = before


@contextmanager
def precision(name: str | None, device: torch.device) -> Iterator[None]:
    """What layers compute in; None leaves PyTorch's settings as they are."""
    if name is None:
        yield
        return
    check_precision(name, device)
    if name == "float32":
        with forbidden(device):
            yield
    elif name == "tf32":
        with _set(device, "tf32"):
            yield
    else:
        # weights change between calls that a graph replays, so a cache of cast ones would be stale
        with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
            yield


def check_precision(name: str | None, device: torch.device) -> None:
    """Refuse a precision this device does not have."""
    if name is None:
        return
    one_of("precision", name, PRECISIONS)
    if name == "tf32" and device.type != "cuda":
        raise OptionError("precision", name, f"is for CUDA devices; this one is {device.type!r}")


def forbidden(device: torch.device) -> AbstractContextManager[None]:
    """Full float32 products, for comparisons; the settings come back as they were."""
    return _set(device, "ieee")


@contextmanager
def _set(device: torch.device, wanted: str) -> Iterator[None]:
    """Products, convolutions and recurrent layers in this format, "ieee" or "tf32"."""
    switches = _switches(device)
    if switches:
        before = [switch.fp32_precision for switch in switches]
        try:
            for switch in switches:
                switch.fp32_precision = wanted
            yield
        finally:
            for switch, value in zip(switches, before, strict=True):
                switch.fp32_precision = value
        return
    precision = torch.get_float32_matmul_precision()
    backends: Any = torch.backends
    cudnn = backends.cudnn.allow_tf32
    try:
        torch.set_float32_matmul_precision("highest" if wanted == "ieee" else "high")
        backends.cudnn.allow_tf32 = wanted == "tf32"
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        backends.cudnn.allow_tf32 = cudnn
